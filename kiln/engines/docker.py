"""Docker: BuildKit builds through the client that can, everything else through the SDK (which cannot build so)."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from kiln import dockerd, run
from kiln.engines import clients, transfer
from kiln.errors import KilnError, UserError

if TYPE_CHECKING:
    from docker import DockerClient

DEBIAN_CLIENT = Path("/usr/bin/docker")
# The engine writes the whole image to disk before the first byte of a save, and after the last one of a load.
TRANSFER_TIMEOUT_S = 3600


def find(address: str = "") -> Docker:
    """Return the engine at `address` (default: what the environment says), driven by the first client that can build.

    Raises UserError that lists every client on PATH and why it will not do.
    """
    variables = dockerd.environment(address) if address else {}
    passed_over: list[clients.Client] = []
    for path in clients.on_path():
        client = clients.probe(path, variables)
        if not client.fault:
            return Docker(client, address or dockerd.environment_address(), variables, tuple(map(str, passed_over)))
        passed_over.append(client)
    found = "".join(f"\n  {client}" for client in passed_over) or " (there is none)"
    raise UserError(
        f"no docker client on PATH can do BuildKit builds:{found}",
        hint="install Debian's docker.io, or the docker-buildx plugin of the client that you have",
    )


def quietly(address: str = "") -> Docker | None:
    """Return an engine that answers, None if there is none: for commands that only tell what is there."""
    try:
        return find(address)
    except KilnError:
        return None


@dataclass(frozen=True)
class Docker:
    """One engine and the client that drives its builds. `variables` lead both there."""

    client: clients.Client
    address: str
    variables: Mapping[str, str] = field(default_factory=dict)
    passed_over: tuple[str, ...] = ()

    def describe(self) -> str:
        """Say which client and engine these are."""
        return f"{self.client} with BuildKit of dockerd {self.client.server} at {self.address}"

    def version(self) -> str:
        """Return the engine's version."""
        return self.client.server

    def build(
        self,
        *,
        context: Path,
        dockerfile: Path,
        tag: str,
        args: Mapping[str, str],
        labels: Mapping[str, str],
        secrets: Mapping[str, Path],
        no_cache: bool,
        log: Path,
        on_line: Callable[[str], None],
    ) -> str:
        """Build without network and return the image's id; a secret is a file, mounted and never part of a layer."""
        with tempfile.TemporaryDirectory(prefix="kiln-build-") as folder:
            id_file = Path(folder) / "id"
            argv = [
                *self._build_command(), "--network=none", "--progress=plain", f"--iidfile={id_file}",
                f"--tag={tag}", f"--file={dockerfile}",
                *(f"--build-arg={key}={value}" for key, value in args.items()),
                *(f"--label={key}={value}" for key, value in labels.items()),
                *(f"--secret=id={name},src={path}" for name, path in secrets.items()),
                *(["--no-cache"] if no_cache else []),
                str(context),
            ]  # fmt: skip
            done = run.stream(argv, log=log, on_line=on_line, env={**self.variables, "DOCKER_BUILDKIT": "1"})
            if done.returncode != 0:
                raise run.CommandFailed(done, log)
            return id_file.read_text().strip()

    def _build_command(self) -> list[str]:
        command = str(self.client.path)
        return (
            [command, "buildx", "build", "--load", "--provenance=false"] if self.client.buildx else [command, "build"]
        )

    def image_id(self, ref: str) -> str | None:
        """Return the id of an image, None if there is none of that name."""
        from docker.errors import ImageNotFound

        with self._sdk() as sdk:
            try:
                return sdk.images.get(ref).id
            except ImageNotFound:
                return None

    def layer_count(self, ref: str) -> int:
        """Return how many layers an image has."""
        with self._sdk() as sdk:
            return len(sdk.images.get(ref).attrs["RootFS"]["Layers"])

    def images(self, prefix: str) -> tuple[str, ...]:
        """Return the names of all images that start with `prefix`, sorted."""
        with self._sdk() as sdk:
            names = (tag for image in sdk.images.list() for tag in image.tags)
            return tuple(sorted(name for name in names if name.startswith(prefix)))

    def tag(self, ref: str, name: str) -> None:
        """Give an image one more name, `repository:tag`."""
        repository, _, word = name.rpartition(":")
        with self._sdk() as sdk:
            sdk.images.get(ref).tag(repository, word)

    def remove(self, ref: str) -> None:
        """Remove a name, and the image with its last one; a missing one is fine."""
        from docker.errors import ImageNotFound

        with self._sdk() as sdk, suppress(ImageNotFound):
            sdk.images.remove(ref)

    @contextmanager
    def save(self, ref: str) -> Iterator[BinaryIO]:
        """Open the `docker save` archive of an image; it is streamed, never a file of ours."""
        with self._sdk(TRANSFER_TIMEOUT_S) as sdk:
            name = ref if ":" in ref else f"{ref}:latest"
            with closing(sdk.api.get_image(name, chunk_size=transfer.CHUNK)) as chunks:
                yield transfer.reader(chunks)

    @contextmanager
    def load(self) -> Iterator[BinaryIO]:
        """Open a sink for a `docker save` archive; a fault of the engine is raised at the end of the block."""

        def feed(chunks: Iterator[bytes]) -> None:
            with self._sdk(TRANSFER_TIMEOUT_S) as sdk:
                for event in sdk.api.load_image(chunks):  # type: ignore[no-untyped-call]
                    if "error" in event:
                        raise KilnError(f"the engine did not load the image: {event['error']}")

        with transfer.sink(feed) as stream:
            yield stream

    def data_root(self) -> Path | None:
        """Return the engine's folder, if the engine is on this machine."""
        if not self.address.startswith("unix://"):
            return None
        with self._sdk() as sdk:
            root = Path(str(sdk.info()["DockerRootDir"]))
        return root if root.exists() else None

    @contextmanager
    def _sdk(self, timeout_s: int = 120) -> Iterator[DockerClient]:
        import docker
        from docker.errors import DockerException
        from requests import RequestException

        try:
            with closing(docker.from_env(timeout=timeout_s, environment={**os.environ, **self.variables})) as client:
                yield client
        except (DockerException, RequestException) as error:
            raise KilnError(f"the engine at {self.address}: {error}") from error
