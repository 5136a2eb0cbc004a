"""`inv lock`: resolve what versions.yaml and images/ ask for, write the locks, and say what changed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import requests
from packaging.version import Version
from pypi_simple import DistributionPackage

from kiln import aptlock, images, indexes, locks, pylock, uv, versions, whole
from kiln.aptlock import AptResolution
from kiln.errors import UserError
from kiln.images import Image
from kiln.indexes import Places, Unavailable
from kiln.intent import Base, Stack
from kiln.locks import Artifact, LockFile
from kiln.settings import Settings
from kiln.versions import Versions

PARTS = (*locks.PARTS, "tools")


@dataclass(frozen=True, order=True)
class Change:
    """One package of one lock before and after; empty for absent."""

    lock: str
    name: str
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.name}: {self.old or 'new'} -> {self.new or 'gone'}"


@dataclass(frozen=True)
class Request:
    """All that a resolution depends on."""

    settings: Settings
    versions: Versions
    chain: tuple[Image, ...]
    places: Places
    upgrade: tuple[str, ...] = ()
    apt: dict[Base, AptResolution] = field(default_factory=dict)

    def debian(self, base: Base) -> AptResolution:
        """Resolve the Debian packages, once for all stacks of one base."""
        if base not in self.apt:
            self.apt[base] = aptlock.resolve(self.settings, base, locks.apt_names(self.chain))
        return self.apt[base]


def lock(
    settings: Settings,
    stacks: Iterable[str] = (),
    parts: Iterable[str] = PARTS,
    upgrade: tuple[str, ...] = (),
    *,
    dry: bool = False,
) -> tuple[Change, ...]:
    """Write the locks of the stacks (none named: all), keeping versions that still fit except those of `upgrade`
    ("all": none is kept). `dry` writes nothing. Returns what changed."""
    intent = versions.load(settings.root / "versions.yaml")
    chain = tuple(images.load_all(settings.root).values())
    request = Request(settings, intent, chain, indexes.places(settings), upgrade)
    chosen = [intent.stack(name) for name in stacks] or list(intent.stacks.values())
    wanted = _known_parts(parts)
    changes = [change for stack in chosen for part in wanted for change in _stack_part(request, stack, part, dry)]
    if "tools" in parts:
        changes += _write(request, "", "tools", _tools(request), dry)
    return tuple(sorted(changes))


def _known_parts(parts: Iterable[str]) -> list[str]:
    unknown = sorted(set(parts) - set(PARTS))
    if unknown:
        raise UserError(f"no lock is called {', '.join(unknown)}", hint=f"known: {', '.join(PARTS)}")
    return [part for part in locks.PARTS if part in parts]


def _stack_part(request: Request, stack: Stack, part: str, dry: bool) -> list[Change]:
    makers: Mapping[str, Callable[[Request, Stack], LockFile]] = {"apt": _apt, "python": _python, "sources": _sources}
    return _write(request, stack.name, part, makers[part](request, stack), dry)


def _apt(request: Request, stack: Stack) -> LockFile:
    found = request.debian(stack.base)
    inputs = locks.inputs("apt", stack, request.chain)
    return LockFile(inputs, found.epoch, {"": found.debs}, stack.base.suite or "")


def _python(request: Request, stack: Stack) -> LockFile:
    prefer = {wheel.name: wheel.version for wheel in _former(request, stack.name, "python")}
    found = pylock.resolve(stack, request.chain, request.places, prefer, request.upgrade)
    inputs = locks.inputs("python", stack, request.chain)
    names = [image.name for image in request.chain]
    groups = {name: tuple(wheel for wheel in found.wheels if wheel.image == name) for name in names}
    return LockFile(inputs, found.epoch, {name: wheels for name, wheels in groups.items() if wheels})


def _sources(request: Request, stack: Stack) -> LockFile:
    wanted = locks.sources_of(stack, request.chain)
    found = [_sdist(request.places, project, version) for project, version in sorted(wanted.items())]
    epoch = max((uploaded for _, uploaded in found), default=0)
    return LockFile(locks.inputs("sources", stack, request.chain), epoch, {"": tuple(sdist for sdist, _ in found)})


def _sdist(places: Places, project: str, version: str) -> tuple[Artifact, int]:
    """Find a source distribution in the first index that has it, and its upload time; nothing of it is run."""
    looked = []
    with requests.Session() as session:
        for index in places.indexes():
            try:
                for package in indexes.page(session, index, project).packages:
                    if _is_sdist(package, version):
                        return _locked_sdist(session, project, version, package)
                looked.append(f"{indexes.shown(index)}: no sdist of {version}")
            except Unavailable as error:
                looked.append(f"{indexes.shown(index)}: {error}")
    text = f"no source distribution of {project} {version}; looked in " + ", ".join(looked)
    raise UserError(text, hint="see stacks.*.components in versions.yaml, or set PIP_INDEX_URL")


def _is_sdist(package: DistributionPackage, version: str) -> bool:
    if package.package_type != "sdist" or package.version is None or "sha256" not in package.digests:
        return False
    return Version(package.version) == Version(version)


def _locked_sdist(
    session: requests.Session, project: str, version: str, package: DistributionPackage
) -> tuple[Artifact, int]:
    size = package.size or indexes.size_of(session, package.url)
    uploaded = int(package.upload_time.timestamp()) if package.upload_time else 0
    return Artifact(project, version, package.filename, size, package.digests["sha256"]), uploaded


def _tools(request: Request) -> LockFile:
    """Lock the tools' own wheels: none of what they depend on is needed."""
    target = pylock.target_of(request.versions.stack(request.versions.defaults.stack))
    roots = [f"{name}=={version}" for name, version in request.versions.tools.items()]
    packages = uv.compile_roots(roots, target, request.places, uv.Rules(deps=False))
    chosen = [(package, pylock.choose(package, target)) for package in packages]
    tools = tuple(Artifact(one.name, one.version, file.name, file.size, file.sha256) for one, file in chosen)
    return LockFile(locks.tool_inputs(request.versions), max(file.uploaded for _, file in chosen), {"": tools})


def _former(request: Request, stack: str, part: str) -> tuple[Artifact, ...]:
    """Return the artefacts of the lock as it is now; none if it is missing or damaged."""
    try:
        return locks.read(request.settings.root, locks.path_of(stack, part)).all()
    except UserError:
        return ()


def _write(request: Request, stack: str, part: str, made: LockFile, dry: bool) -> list[Change]:
    name = locks.path_of(stack, part)
    changes = compare(name, _former(request, stack, part), made.all())
    if not dry:
        whole.write(request.settings.root / name, locks.dump(made, locks.command(stack, part)).encode())
    return changes


def compare(lock_name: str, old: Sequence[Artifact], new: Sequence[Artifact]) -> list[Change]:
    """Return the packages whose version or bytes differ, sorted."""
    before, after = ({one.name: one for one in side} for side in (old, new))
    names = sorted(before.keys() | after.keys())
    differing = [name for name in names if _identity(before.get(name)) != _identity(after.get(name))]
    return [Change(lock_name, name, _shown(before.get(name)), _shown(after.get(name))) for name in differing]


def _identity(artifact: Artifact | None) -> tuple[str, str] | None:
    return (artifact.version, artifact.sha256) if artifact else None


def _shown(artifact: Artifact | None) -> str:
    return f"{artifact.version} ({artifact.sha256[:8]})" if artifact else ""
