"""buildah: builds without a daemon, as root or as a plain user; images, caches and configuration below `.kiln/`."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import resource
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from kiln import host, run
from kiln.engines import progress
from kiln.engines.dockerfile import inherit_args
from kiln.engines.progress import Line
from kiln.engines.request import Request
from kiln.errors import KilnError, UserError
from kiln.settings import Settings

PROGRAMS = ("buildah", "podman", "runc")
ROOTLESS_PROGRAMS = (*PROGRAMS, "newuidmap")
# podman refuses a runroot of more than 50 bytes; sockets below it must stay under the kernel's 107.
LONGEST_RUN_DIR = 50 - len("/run")
_TIMEOUT_S = 300
# buildah's default of `--ulimit nproc`.
_PROCESSES = 32768
# Names without it are looked for in registries.
_LOCAL = "localhost/"


def find(settings: Settings) -> Buildah:
    """Return the engine of this home, its configuration written. Raises UserError if it cannot work here."""
    here = folder(settings)
    found = Buildah(here, _run_dir(here))
    found.configure()
    done = found.call("info", check=False)
    if done.returncode != 0:
        raise UserError(f"buildah cannot work here: {done.stderr.strip()[-500:]}", hint=_hint(done.stderr))
    return found


def quietly(settings: Settings) -> Buildah | None:
    """Return the engine of this home if it has been used, None otherwise."""
    here = folder(settings)
    return Buildah(here, _run_dir(here)) if (here / "storage.conf").exists() and host.which("buildah") else None


def folder(settings: Settings) -> Path:
    """Return where images, caches and configuration are."""
    return settings.home / "buildah"


def _hint(said: str) -> str:
    if "subuid" in said or "newuidmap" in said:
        ids = "--add-subuids 100000-165535 --add-subgids 100000-165535"
        return f"a plain user needs a range of ids: sudo usermod {ids} $USER"
    return "as a plain user this takes user namespaces and a kernel >= 5.13; root or a Docker daemon need neither"


def _run_dir(here: Path) -> Path:
    """Return where locks and sockets are: below our folder, or where the path is short enough."""
    if len(os.fsencode(here)) <= LONGEST_RUN_DIR:
        return here / "run"
    key = hashlib.sha256(os.fsencode(here)).hexdigest()[:8]
    return Path("/run" if host.is_root() else tempfile.gettempdir()) / f"kiln-{key}"


@dataclass(frozen=True)
class Buildah:
    """One storage of images below `home`, which any number of processes may use."""

    home: Path
    run_dir: Path

    @property
    def runtime(self) -> str:
        """Return the name that testinfra has for what runs containers of these images."""
        return "podman"

    @property
    def variables(self) -> Mapping[str, str]:
        """Return the environment that makes buildah and podman use this storage and nothing of the host's."""
        rootless = {} if host.is_root() else {"XDG_RUNTIME_DIR": str(self.run_dir)}
        return {
            "CONTAINERS_STORAGE_CONF": str(self.home / "storage.conf"),
            "CONTAINERS_CONF": str(self.home / "containers.conf"),
            "TMPDIR": str(self.home / "tmp"),  # cache mounts are there, too
            "PATH": host.search_path(),
            **rootless,
        }

    def configure(self) -> None:
        """Write the configuration and make the folders."""
        for path in (self.home / "tmp", self.run_dir):
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
        images, run_root = self.home / "images", self.run_dir / "storage"
        (self.home / "storage.conf").write_text(
            f'[storage]\ndriver = "overlay"\ngraphroot = "{images}"\nrootless_storage_path = "{images}"\n'
            f'runroot = "{run_root}"\n'
        )
        (self.home / "containers.conf").write_text(
            "[containers]\ndefault_ulimits = []\n"
            '[engine]\ncgroup_manager = "cgroupfs"\nevents_logger = "none"\nruntime = "runc"\n'
            f'tmp_dir = "{self.run_dir / "podman"}"\n'
        )

    def describe(self) -> str:
        """Say which program this is, as whom it works and where."""
        return f"buildah {self.version()} {'as root' if host.is_root() else 'rootless'}, images in {self.home}"

    def version(self) -> str:
        """Return buildah's version."""
        return self.call("--version").stdout.split()[2]

    def build(self, request: Request, on_line: Callable[[Line], None]) -> str:
        """Build without network, each step a layer, and return the image's id; `no_cache` also empties cache mounts.

        Never from buildah's cache of steps: it does not look at what a mount shows, and a stage that is cached is not
        there for `--mount=from`.
        """
        tmp = self.home / "tmp"
        try:
            with self._lock(fcntl.LOCK_SH), tempfile.TemporaryDirectory(dir=tmp) as fresh:
                file = Path(fresh) / "Dockerfile"
                file.write_text(inherit_args(request.dockerfile.read_text(encoding="utf-8")), encoding="utf-8")
                done = run.stream(
                    [*_build_command(request.tag, file), *request.options(), request.context],
                    log=request.log,
                    on_line=lambda text: on_line(progress.parse_steps(text)),
                    env={**self.variables, "TMPDIR": fresh if request.no_cache else str(tmp)},
                )
        finally:
            self.prune()
        if done.returncode != 0:
            raise run.CommandFailed(done, request.log)
        return self.image_id(request.tag) or ""

    def image_id(self, ref: str) -> str | None:
        """Return the id of an image, None if there is none of that name."""
        found = self._inspect(ref)
        return f"sha256:{found['FromImageID']}" if found else None

    def layer_count(self, ref: str) -> int:
        """Return how many layers an image has."""
        found = self._inspect(ref)
        if found is None:
            raise KilnError(f"buildah has no image {ref}")
        return len(found["OCIv1"]["rootfs"]["diff_ids"])

    def images(self, prefix: str) -> tuple[str, ...]:
        """Return the names of all images that start with `prefix`, sorted."""
        names = (name.removeprefix(_LOCAL) for image in self._listed() for name in image["names"] or ())
        return tuple(sorted(name for name in names if name.startswith(prefix)))

    def tag(self, ref: str, name: str) -> None:
        """Give an image one more name, `repository:tag`."""
        self.call("tag", _local(ref), _local(name))

    def remove(self, ref: str) -> None:
        """Remove a name, and the image with its last one; a missing one is fine."""
        if self.image_id(ref):
            self.call("rmi", _local(ref))

    @contextmanager
    def save(self, ref: str) -> Iterator[BinaryIO]:
        """Open the `docker save` archive of an image; it is streamed, never a file of ours."""
        argv: list[str | Path] = [_program(), "push", "--quiet", _local(ref), "docker-archive:/dev/stdout"]
        with run.reading(argv, env=self.variables) as stream:
            yield stream

    def load(self, layout: Path, ref: str) -> None:
        """Load the image of an OCI layout under a name."""
        before = {name for image in self._listed() for name in image["names"] or ()}
        image = self.call("pull", "--quiet", f"oci:{layout}", timeout_s=None).stdout.strip()
        self.call("tag", image, _local(ref))
        # A pull names the image after the layout's path.
        for name in {name for each in self._listed() for name in each["names"] or ()} - before - {_local(ref)}:
            self.call("rmi", name)

    def data_root(self) -> Path | None:
        """Return the folder that fills up when images are built."""
        return self.home

    def prune(self) -> None:
        """Remove what builds leave: working containers, and images without a name. Not while another one builds."""
        with self._lock(fcntl.LOCK_EX | fcntl.LOCK_NB) as alone:
            if alone:
                self.call("rm", "--all", check=False)
                self.call("rmi", "--prune", check=False)

    def wipe(self) -> None:
        """Remove all of it. Files of other ids than the plain user's can only be removed in its user namespace."""
        self.prune()
        enter: list[str | Path] = []
        if host.is_root():
            host.unmount_below((self.home, self.run_dir))
        else:
            # podman keeps a process that holds the user namespace and its mounts.
            run.run(["podman", "system", "migrate"], check=False, timeout_s=_TIMEOUT_S, env=self.variables)
            enter = [_program(), "unshare"]
        run.run([*enter, "rm", "-rf", "--one-file-system", self.home, self.run_dir], env={"PATH": host.search_path()})

    def call(self, *words: str, check: bool = True, timeout_s: float | None = _TIMEOUT_S) -> run.Completed:
        """Run one command of buildah on this storage."""
        return run.run([_program(), *words], check=check, timeout_s=timeout_s, env=self.variables)

    def _inspect(self, ref: str) -> dict[str, Any] | None:
        done = self.call("inspect", "--type=image", _local(ref), check=False)
        if done.returncode != 0:
            if "not known" in done.stderr:
                return None
            raise run.CommandFailed(done)
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def _listed(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self.call("images", "--json").stdout or "[]")
        return found

    @contextmanager
    def _lock(self, how: int) -> Iterator[bool]:
        """Hold the storage's lock; yields whether it was to be had."""
        with (self.home / "building.lock").open("w") as file:
            try:
                fcntl.flock(file, how)
            except BlockingIOError:
                yield False
            else:
                yield True


def _program() -> Path:
    return host.which("buildah") or Path("buildah")


def _build_command(tag: str, file: Path) -> list[str | Path]:
    return [
        _program(), "build", f"--isolation={'oci' if host.is_root() else 'rootless'}", "--runtime=runc",
        "--network=none", "--pull=never", "--http-proxy=false", "--format=docker", "--layers", "--no-cache",
        "--force-rm", "--identity-label=false", *_limits(), f"--tag={_local(tag)}", f"--file={file}",
    ]  # fmt: skip


def _local(ref: str) -> str:
    """Name an image of ours so that no registry is asked for it; an id stays as it is."""
    return ref if ref.startswith((_LOCAL, "sha256:")) else f"{_LOCAL}{ref}"


def _limits() -> list[str]:
    """Lower buildah's default limit of processes to ours: raising one is more than a plain user may do."""
    hard = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    return [f"--ulimit=nproc={hard}:{hard}"] if 0 < hard < _PROCESSES else []
