"""`inv reproduce`: build a finished plan once more, elsewhere and from nothing, and compare every byte."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from filelock import FileLock, Timeout

from kiln import compare, diffoscope, dockerd, elsewhere, host, inventory, result, run, services
from kiln.building import PROGRAMS
from kiln.compare import Comparison
from kiln.diffoscope import Explanation
from kiln.elsewhere import Condition, Elsewhere
from kiln.engines import buildah
from kiln.errors import CheckFailed, UserError
from kiln.plan import Plan
from kiln.result import Result
from kiln.settings import Settings
from kiln.store import Store

Announce = Callable[[str], None]
# Started in the other place, before the build looks for an engine: one that answers on the host has no part in it.
_OWN_ENGINE = "from kiln import cli, services, settings; services.own_engine_up(settings.from_env(), cli.announce)"
_THEN = '"$1" -c "$2" && shift 2 && exec "$@"'


PROGRAMS_OF: Mapping[str, tuple[str, ...]] = {
    "docker": ("docker", "dockerd"), "classic": ("dockerd",),
    "buildah": buildah.PROGRAMS if host.is_root() else buildah.ROOTLESS_PROGRAMS,
}  # fmt: skip


@dataclass(frozen=True)
class Options:
    """How to rebuild. `engine` "" is another one than before; `jobs` is the cores it gets, and compile jobs too."""

    engine: str = ""
    jobs: int = 0
    keep: bool = False
    quiet: bool = False


@dataclass(frozen=True)
class Report:
    """What came out. `kept` is the folder of the rebuild, empty if it was removed."""

    plan: str
    tag: str
    engines: tuple[str, str]
    wall_s: float
    conditions: tuple[Condition, ...]
    comparison: Comparison
    explanations: tuple[Explanation, ...]
    kept: str

    @property
    def same(self) -> bool:
        return self.comparison.level == "identical"

    def as_dict(self) -> dict[str, object]:
        """Return the report as plain data."""
        return {**asdict(self), "comparison": self.comparison.as_dict(), "same": self.same}


@dataclass(frozen=True)
class Rebuild:
    """One rebuild: the plan, its first result, and the folder with the other checkout and the other home."""

    settings: Settings
    plan: Plan
    built: Result
    options: Options
    announce: Announce

    @property
    def folder(self) -> Path:
        return self.settings.home / "reproduce" / f"{self.plan.id[:12]}-{self.options.engine}"

    @property
    def there(self) -> Settings:
        """The settings of the other place."""
        return replace(self.settings, root=self.folder / "tree", home=self.folder / "home")

    def run(self) -> Report:
        """Rebuild and compare; the folder goes unless it is worth a look. Raises CheckFailed if the rebuild breaks."""
        with self._alone():
            self.remove()
            self._copy()
            place = elsewhere.prepare(self.settings, self.there.root, self.there.home, self._cores())
            started = time.monotonic()
            again = self._build(place)
            report = self._compare(again, place, time.monotonic() - started)
            if not report.kept:
                self.remove()
        file = self.folder.with_name(f"{self.folder.name}.json")
        file.write_text(json.dumps(report.as_dict(), indent=1) + "\n", encoding="utf-8")
        return report

    def remove(self) -> None:
        """Remove what an earlier rebuild left: its engine and its folder."""
        if self.folder.exists():
            discard(self.there)
            shutil.rmtree(self.folder)

    def _cores(self) -> int:
        return min(self.options.jobs or 1, host.cpus())

    @contextmanager
    def _alone(self) -> Iterator[None]:
        locks = self.settings.home / "locks"
        locks.mkdir(parents=True, exist_ok=True)
        try:
            with FileLock(locks / f"reproduce-{self.folder.name}.lock", timeout=0):
                yield
        except Timeout:
            raise UserError(f"another `inv reproduce` of plan {self.plan.id[:12]} is at work") from None

    def _copy(self) -> None:
        self.folder.mkdir(parents=True)
        copy_tracked(self.settings.root, self.there.root)
        again = plan_of(self.there, self.plan)
        if again.id != self.plan.id:
            raise UserError(
                f"the files that git tracks make another plan, {again.id[:12]}, than this tree, {self.plan.id[:12]}",
                hint="git status: what is new there and takes part must be added",
            )
        share_store(self.plan, Store(self.settings.store), self.there.store)

    def _build(self, place: Elsewhere) -> Result:
        jobs = [f"--jobs={self.options.jobs}"] if self.options.jobs else []
        build: list[str | Path] = [
            sys.executable, "-m", "invoke", "--search-root", self.there.root, "build", *words(self.plan), *jobs,
            f"--engine={self.options.engine}", "--no-push", "--no-test", "--no-cache",
            *(["--json"] if self.options.quiet else []),
        ]  # fmt: skip
        if self.options.engine != "buildah":
            build = ["sh", "-c", _THEN, "sh", sys.executable, _OWN_ENGINE, *build]
        self.announce(f"building plan {self.plan.id[:12]} again with {self.options.engine} in {self.folder}")
        try:
            status = run.relay([*place.argv, *build], out=self.folder / "out", cwd=self.there.root, env=place.env)
        finally:
            services.engine_down(self.there)
        again = result.load(self.there, self.plan.id)
        if status == 0 and again:
            return again
        logs = self.there.logs / self.plan.id[:12]
        text = f"the rebuild ended with {status}; its logs are in {logs}, the same command starts it again"
        raise (UserError(text) if status == UserError.exit_code else CheckFailed(text))

    def _compare(self, again: Result, place: Elsewhere, wall_s: float) -> Report:
        paths = Path(self.built.layout), Path(again.layout)
        found = compare.compare(*paths)
        words = diffoscope.explain(self.settings, *paths, found) if found.level == "different" else ()
        keep = self.options.keep or found.level != "identical"
        return Report(
            self.plan.id, self.plan.tag, (first_engine(self.settings, self.plan), self.options.engine), wall_s,
            place.conditions, found, words, str(self.folder) if keep else "",
        )  # fmt: skip


def reproduce(settings: Settings, plan: Plan, options: Options, announce: Announce) -> Report:
    """Rebuild a plan that is built. Raises UserError if it is not, CheckFailed if the rebuild breaks."""
    built = result.load(settings, plan.id)
    if built is None:
        command = f"inv build {' '.join(words(plan))}"
        raise UserError(f"plan {plan.id[:12]} is not built, so there is nothing to reproduce", hint=command)
    before = first_engine(settings, plan)
    engine = options.engine or ("docker" if before.startswith("buildah") else "buildah")
    if engine not in PROGRAMS_OF:
        raise UserError(f"engine {engine!r} is not known", hint=f"one of {', '.join(PROGRAMS_OF)}")
    host.ensure(settings, (*PROGRAMS, *PROGRAMS_OF[engine]), announce)
    return Rebuild(settings, plan, built, replace(options, engine=engine), announce).run()


def words(plan: Plan) -> list[str]:
    """Return the options that name a plan."""
    found = {"gpu": plan.gpu.name, "stack": plan.stack.name, "kernels": plan.kernels, "image": plan.image}
    found |= {"with": ",".join(plan.choice.added), "without": ",".join(plan.choice.left_out)}
    return [f"--{name}={value}" for name, value in found.items() if value] + ["--i-know"] * plan.choice.i_know


def plan_of(settings: Settings, plan: Plan) -> Plan:
    """Make the plan again from another checkout."""
    return inventory.plan_for(
        settings,
        gpu=plan.gpu.name,
        stack=plan.stack.name,
        kernel_set=plan.kernels,
        image=plan.image,
        choice=plan.choice,
    )


def first_engine(settings: Settings, plan: Plan) -> str:
    """Return the engine of the first build, as its provenance has it."""
    try:
        said = json.loads(result.path(settings, plan.id).with_name("provenance.json").read_bytes())
        return str(said["predicate"]["runDetails"]["builder"]["version"]["engine"]) or "not recorded"
    except (OSError, ValueError, KeyError, TypeError):
        return "not recorded"


def copy_tracked(root: Path, dest: Path) -> None:
    """Copy the files that git tracks, as they are now, readable by their owner only."""
    done = run.run(["git", "-C", root, "ls-files", "-z", "--cached"], check=False)
    if done.returncode != 0:
        raise UserError("not a git checkout, so that nobody can tell what belongs to it", source=str(root))
    for name in filter(None, done.stdout.split("\0")):
        source, target = root / name, dest / name
        if source.is_symlink() or source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target, follow_symlinks=False)
            if not source.is_symlink():
                target.chmod(0o700 if os.access(source, os.X_OK) else 0o600)


def share_store(plan: Plan, store: Store, dest: Path) -> None:
    """Link what the plan needs, and nothing else, into another store."""
    dest.mkdir(parents=True, exist_ok=True)
    for artefact in plan.artefacts():
        link = dest / artefact.sha256
        if store.has(artefact) and not link.exists():
            link.hardlink_to(store.path(artefact.sha256))


def places(settings: Settings) -> Iterator[Path]:
    """Yield the homes of rebuilds that are still there."""
    yield from (settings.home / "reproduce").glob("*/home")
    yield from (settings.home / "reproduce").glob("test-*")


def discard(there: Settings) -> None:
    """Stop the engine of another home and remove what only it can remove."""
    services.engine_down(there)
    shutil.rmtree(dockerd.run_dir(there), ignore_errors=True)
    if storage := buildah.quietly(there):
        storage.wipe()
