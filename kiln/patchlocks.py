"""What patched files must hash to: locks/patches/<component>-<version>.toml, machine-written, read without a source.

A file's bytes depend only on the patches that touch it, so one line for each file and each set of patches on it covers
every choice of `--with` and `--without`.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from kiln import locks
from kiln.errors import Problem, UserError
from kiln.locks import Artifact, Wheel
from kiln.patches import Patch

COMMAND = "inv patches.refresh"
# Where setuptools puts what lies elsewhere in a source; "" is not installed at all. A wheel's files lie where they go.
INSTALLED = {
    "flashinfer": {
        "3rdparty/cutlass/": "flashinfer/data/cutlass/", "3rdparty/spdlog/": "flashinfer/data/spdlog/",
        "3rdparty/cccl/": "flashinfer/data/cccl/", "csrc/": "flashinfer/data/csrc/",
        "include/": "flashinfer/data/include/", "flashinfer/": "flashinfer/", "": "",
    },
}  # fmt: skip


@dataclass(frozen=True, order=True)
class PatchedFile:
    """One file after its patches: their labels, and the sha256 of its bytes, empty if they remove it."""

    component: str
    file: str
    patches: tuple[str, ...]
    sha256: str

    @property
    def installed(self) -> str:
        """Return its place below site-packages, empty if it has none."""
        places = INSTALLED.get(self.component)
        if places is None:
            return self.file
        prefix = next(prefix for prefix in places if self.file.startswith(prefix))
        return places[prefix] + self.file.removeprefix(prefix) if places[prefix] else ""


def component_of(artifact: Artifact) -> str:
    """`flashinfer-python` → `flashinfer`: the folder of its patches and the name of its tar."""
    return artifact.name.replace("_", "-").removesuffix("-python")


def pinned(files: Iterable[Artifact], components: Iterable[str]) -> dict[str, Artifact]:
    """Return what a stack's patches apply to out of its wheels and sources: the source of each component, or its wheel
    if it is not built here."""
    known = set(components)
    return {component_of(file): file for file in files if component_of(file) in known}


def read_pinned(root: Path, stack: str, components: Iterable[str]) -> dict[str, Artifact]:
    """Return `pinned` of a stack's locks, of which only the lines that matter are parsed. Raises UserError."""
    known, found = set(components), list[Artifact]()
    for part in ("python", "sources"):
        name = locks.path_of(stack, part)
        try:
            lines = (root / name).read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            raise UserError("this lock does not exist", hint=locks.command(stack, part), source=name) from None
        starts = tuple(f'    {{name = "{start}' for start in known)
        found += [_artifact(line) for line in lines if line.startswith(starts)]
    return pinned(found, known)


def renamed(wheel: Wheel, queue: Iterable[Patch]) -> Wheel:
    """Return the wheel as its patches name it: `1.2+kiln.<hash>` tells it from the one of the index.

    Its size and sha256 are still those of the original.
    """
    digest = _digest([wheel.sha256, [patch.sha256 for patch in queue]])[:8]
    version = f"{wheel.version}{'.' if '+' in wheel.version else '+'}kiln.{digest}"
    name, _, rest = wheel.file.split("-", 2)
    return replace(wheel, version=version, file=f"{name}-{version}-{rest}")


def path_of(component: str, version: str) -> str:
    """Return the lock's path below the root."""
    return f"locks/patches/{component}-{version}.toml"


def inputs(source: Artifact, meant: Iterable[Patch]) -> str:
    """Return the sha256 of all that decides the lock: the source and the patches that its version is meant for."""
    return _digest([source.sha256, [[patch.label, patch.sha256] for patch in meant]])


def dump(source: Artifact, meant: Iterable[Patch], files: Iterable[PatchedFile]) -> str:
    """Write a lock as text, one line for each file and set of patches, sorted."""
    head = f'# Written by `{COMMAND}`; do not edit.\ninputs = "{inputs(source, meant)}"\n\nfiles = [\n'
    lines = (
        f"    {{file = {json.dumps(one.file)}, patches = {json.dumps(list(one.patches))}, sha256 = "
        f"{json.dumps(one.sha256)}}},\n"
        for one in sorted(files)
    )
    return head + "".join(lines) + "]\n"


def load(root: Path, component: str, version: str) -> Mapping[tuple[str, tuple[str, ...]], PatchedFile]:
    """Read one lock; keys are (file, labels of its patches). Raises UserError."""
    name = path_of(component, version)
    try:
        rows = tomllib.loads((root / name).read_text(encoding="utf-8"))["files"]
        found = [PatchedFile(component, str(r["file"]), tuple(r["patches"]), str(r["sha256"])) for r in rows]
    except FileNotFoundError:
        raise UserError("this lock does not exist", hint=COMMAND, source=name) from None
    except (tomllib.TOMLDecodeError, KeyError, TypeError) as error:
        raise UserError(f"the lock is damaged: {error}", hint=COMMAND, source=name) from None
    return {(one.file, one.patches): one for one in found}


def results(root: Path, applied: Iterable[Patch], versions: Mapping[str, str]) -> tuple[PatchedFile, ...]:
    """Return what the files that some patches change must become. `versions` maps components to versions.

    Raises UserError if the lock does not know a file with just these patches.
    """
    queue = tuple(applied)
    found: list[PatchedFile] = []
    for component in dict.fromkeys(patch.component for patch in queue):
        lock = load(root, component, versions[component])
        for file, labels in touched(patch for patch in queue if patch.component == component).items():
            if (file, labels) not in lock:
                name = path_of(component, versions[component])
                message = f"{file} with {', '.join(labels)} is not locked: they do not apply together, or were edited"
                raise UserError(message, hint=COMMAND, source=name)
            found.append(lock[file, labels])
    return tuple(sorted(found))


def touched(queue: Iterable[Patch]) -> dict[str, tuple[str, ...]]:
    """Return each file that some patches name with the labels of those, in order."""
    found: dict[str, tuple[str, ...]] = {}
    for patch in queue:
        for file in patch.files:
            found[file] = (*found.get(file, ()), patch.label)
    return found


def problems(root: Path, sources: Mapping[tuple[str, str], Artifact], patches: Iterable[Patch]) -> Iterator[Problem]:
    """Yield each lock that is missing, stale or left over. `sources` maps (component, version) to the pinned file."""
    known, wanted = tuple(patches), set[str]()
    for (component, version), source in sources.items():
        meant = [patch for patch in known if patch.component == component and patch.covers(version)]
        name = path_of(component, version)
        if meant:
            wanted.add(name)
            yield from _staleness(root, name, inputs(source, meant))
    for file in sorted((root / "locks" / "patches").glob("*.toml")):
        name = str(file.relative_to(root))
        if name not in wanted:
            yield Problem(name, "no stack's source and patches need this lock", COMMAND)


def _artifact(line: str) -> Artifact:
    item = tomllib.loads(f"item = {line.strip().rstrip(',')}")["item"]
    return Artifact(item["name"], item["version"], item["file"], item["size"], item["sha256"])


def _staleness(root: Path, name: str, wanted: str) -> Iterator[Problem]:
    file = root / name
    if not file.is_file():
        yield Problem(name, "this lock does not exist", COMMAND)
    elif f'inputs = "{wanted}"' not in file.read_text(encoding="utf-8"):
        yield Problem(name, "stale: the source or a patch to it changed since", COMMAND)


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, separators=(",", ":")).encode()).hexdigest()
