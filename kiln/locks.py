"""Lock files: the exact artefacts of a stack, machine-written, without a URL; and whether they are stale."""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from kiln.errors import Problem, UserError
from kiln.images import Image
from kiln.intent import Stack
from kiln.versions import Versions

PARTS = ("apt", "python", "sources")
# Bumped when the same intent is resolved into another lock by kiln's own code.
FORMAT = "2"


@dataclass(frozen=True)
class Artifact:
    """One file, known by its hash."""

    name: str
    version: str
    file: str
    size: int
    sha256: str


@dataclass(frozen=True)
class Wheel(Artifact):
    """A wheel, the image that installs it, and when it was uploaded (unix seconds)."""

    image: str = ""
    epoch: int = 0


@dataclass(frozen=True)
class Deb(Artifact):
    """A Debian package; `path` is its place below a mirror's root, `epoch` the time of the index that named it."""

    arch: str = ""
    path: str = ""
    suite: str = ""
    epoch: int = 0


Source = Artifact


@dataclass(frozen=True)
class StackLock:
    """All locks of a stack. `epoch` is the time of the newest input, unix seconds."""

    stack: str
    epoch: int
    debs: tuple[Deb, ...]
    wheels: tuple[Wheel, ...]
    sources: tuple[Source, ...]
    tools: tuple[Artifact, ...]

    source_epoch: int = 0

    def epoch_of(self, images: Iterable[str], *, with_sources: bool) -> int:
        """Return the time of the newest input of some images: an upload to one image leaves those below it alone."""
        names = set(images)
        wheels = (wheel.epoch for wheel in self.wheels if wheel.image in names)
        sources = [self.source_epoch] if with_sources else []
        return max((*wheels, *(deb.epoch for deb in self.debs), *sources), default=self.epoch)

    def artifacts(self) -> tuple[Artifact, ...]:
        """Return every artefact of the stack and the tools."""
        return (*self.debs, *self.wheels, *self.sources, *self.tools)


@dataclass(frozen=True)
class LockFile:
    """One lock file as values; `groups` holds wheels by image, or everything under ""."""

    inputs: str
    epoch: int
    groups: Mapping[str, tuple[Artifact, ...]]
    suite: str = ""

    def all(self) -> tuple[Artifact, ...]:
        """Return every artefact, group after group."""
        return tuple(artifact for group in self.groups.values() for artifact in group)


def load(root: Path, stack: str) -> StackLock:
    """Read the locks of one stack. Raises UserError for a missing or damaged file."""
    apt, python, sources = (read(root, path_of(stack, part)) for part in PARTS)
    return StackLock(
        stack=stack,
        epoch=max(apt.epoch, python.epoch, sources.epoch),
        debs=tuple(deb for deb in apt.all() if isinstance(deb, Deb)),
        wheels=tuple(wheel for wheel in python.all() if isinstance(wheel, Wheel)),
        sources=sources.all(),
        tools=read(root, path_of("", "tools")).all(),
        source_epoch=sources.epoch,
    )


def path_of(stack: str, part: str) -> str:
    """Return the lock's path below the root; tools belong to no stack."""
    return "locks/tools.toml" if part == "tools" else f"locks/{stack}/{part}.toml"


def command(stack: str, part: str) -> str:
    """Return the command that writes the lock."""
    return "inv lock --tools" if part == "tools" else f"inv lock --{part} --stack {stack}"


def read(root: Path, name: str) -> LockFile:
    """Read one lock file, every field checked. Raises UserError."""
    try:
        data = tomllib.loads((root / name).read_text(encoding="utf-8"))
        lists = data["wheels"] if "wheels" in data else {"": data.get("debs", data.get("artifacts", ()))}
        context = str(data.get("suite", "")), int(data["epoch"])
        groups = {group: tuple(_artifact(group, item, *context) for item in items) for group, items in lists.items()}
        return LockFile(str(data["inputs"]), context[1], groups, context[0])
    except FileNotFoundError:
        raise UserError("this lock does not exist", hint=_writer(name), source=name) from None
    except (tomllib.TOMLDecodeError, KeyError, TypeError, ValueError) as error:
        raise UserError(f"the lock is damaged: {error}", hint=_writer(name), source=name) from None


def problems(root: Path, versions: Versions, chain: Sequence[Image], stack: str) -> list[Problem]:
    """Return what is missing or stale among the stack's locks; reads only their heads."""
    intents = {(stack, part): inputs(part, versions.stack(stack), chain) for part in PARTS}
    intents["", "tools"] = tool_inputs(versions)
    found = (_staleness(root, owner, part, intent) for (owner, part), intent in intents.items())
    return [problem for problem in found if problem]


def inputs(part: str, stack: Stack, chain: Sequence[Image]) -> str:
    """Return the sha256 of all intent that decides one part's lock: a pure function, no file is read."""
    intent = {"apt": _apt_intent, "python": _python_intent, "sources": _sources_intent}[part](stack, chain)
    return _digest([FORMAT, part, intent])


def tool_inputs(versions: Versions) -> str:
    """Return the sha256 of the intent behind locks/tools.toml."""
    return _digest([FORMAT, "tools", dict(versions.tools)])


def sources_of(stack: Stack, chain: Iterable[Image]) -> dict[str, str]:
    """Return the projects that are built from source, each with its version."""
    pairs = ((project, component) for image in chain for project, component in image.sources.items())
    return {project: stack.components[component] for project, component in pairs if component in stack.components}


def apt_names(chain: Iterable[Image]) -> tuple[str, ...]:
    """Return the Debian packages that the images ask for."""
    return tuple(sorted({name for image in chain for name in image.apt}))


def dump(lock: LockFile, writer: str) -> str:
    """Write a lock as text: a head, then one line per artefact, sorted."""
    head = f'# Written by `{writer}`; do not edit.\ninputs = "{lock.inputs}"\nepoch = {lock.epoch}\n'
    if lock.suite:
        return head + f'suite = "{lock.suite}"\n\n' + _array("debs", lock.all())
    if set(lock.groups) == {""}:
        return head + "\n" + _array("artifacts", lock.groups[""])
    return head + "\n[wheels]\n" + "\n".join(_array(name, items) for name, items in lock.groups.items())


def _array(name: str, items: Iterable[Artifact]) -> str:
    lines = "".join(f"    {_line(item)},\n" for item in sorted(items, key=lambda item: item.name))
    return f"{name} = [\n{lines}]\n"


def _line(item: Artifact) -> str:
    fields = {"name": item.name, "version": item.version, "size": item.size, "sha256": item.sha256}
    last: dict[str, object] = {"arch": item.arch, "path": item.path} if isinstance(item, Deb) else {"file": item.file}
    if isinstance(item, Wheel):
        last = {"uploaded": item.epoch, **last}
    pairs = ", ".join(f"{key} = {json.dumps(value)}" for key, value in {**fields, **last}.items())
    return "{" + pairs + "}"


def _artifact(image: str, item: Mapping[str, object], suite: str, epoch: int) -> Artifact:
    """Read one line; a path may not leave the folder it is meant for. Raises KeyError, ValueError."""
    name, version, sha256 = str(item["name"]), str(item["version"]), str(item["sha256"])
    path = PurePosixPath(str(item.get("path") or item["file"]))
    size = item["size"]
    if not re.fullmatch("[0-9a-f]{64}", sha256) or not isinstance(size, int):
        raise ValueError(f"{name} has no sha256 or no size")
    if path.is_absolute() or ".." in path.parts or ("path" not in item and len(path.parts) != 1):
        raise ValueError(f"{name} has the path {str(path)!r}")
    if "path" in item:
        return Deb(name, version, path.name, size, sha256, str(item["arch"]), str(path), suite, epoch)
    if image:
        return Wheel(name, version, path.name, size, sha256, image, int(str(item["uploaded"])))
    return Artifact(name, version, path.name, size, sha256)


def _staleness(root: Path, stack: str, part: str, intent: str) -> Problem | None:
    name = path_of(stack, part)
    try:
        with (root / name).open(encoding="utf-8") as file:
            head = "".join(file.readline() for _ in range(3))
    except FileNotFoundError:
        return Problem(name, "this lock does not exist", command(stack, part))
    if f'inputs = "{intent}"' not in head:
        return Problem(name, "stale: versions.yaml or images/ ask for something else since", command(stack, part))
    return None


def _writer(name: str) -> str:
    path = PurePosixPath(name)
    return command(path.parent.name, path.stem)


def _apt_intent(stack: Stack, chain: Sequence[Image]) -> object:
    return [stack.base.suite, stack.base.components, stack.base.security, apt_names(chain)]


def _python_intent(stack: Stack, chain: Sequence[Image]) -> object:
    images = [
        [image.name, stack.requirements(image.name), stack.no_deps_requirements(image.name), image.python_globs]
        for image in chain
    ]
    rules = [stack.constraints, stack.overrides, stack.as_of]
    cuda = [stack.cuda, *([stack.toolkit] if stack.toolkit else [])]
    return [stack.python, *cuda, stack.base.suite, images, rules, sorted(sources_of(stack, chain))]


def _sources_intent(stack: Stack, chain: Sequence[Image]) -> object:
    return sources_of(stack, chain)


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
