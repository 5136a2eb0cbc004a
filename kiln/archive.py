"""One file that carries locked artefacts to a machine without network: `inv fetch --export` and `--import`."""

from __future__ import annotations

import io
import os
import re
import tarfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from kiln import locks
from kiln.errors import UserError
from kiln.locks import Artifact
from kiln.store import Store, sha256_of

_INDEX = "kiln-archive"
_ENTRY = re.compile(r"([0-9a-f]{64}) +(\d+) +(\S+)")
_SINGLE = (".whl", ".deb", ".tar.gz", ".zip")


@dataclass(frozen=True)
class Imported:
    """What came in, what was there before, and which locks in the archive are not the ones of this tree."""

    added: int
    present: int
    size_bytes: int
    other_locks: tuple[str, ...] = ()


def export(root: Path, store: Store, stacks: Sequence[str], target: Path) -> int:
    """Write the locks of the stacks and all their artefacts as one tar, the same bytes for the same locks.

    Returns its size. Raises UserError if the store lacks something.
    """
    wanted = {one.sha256: one for stack in stacks for one in locks.load(root, stack).artifacts()}
    missing = store.missing(wanted.values())
    if missing:
        text = f"{len(missing)} of {len(wanted)} artefacts are not in the store, {missing[0].file} among them"
        raise UserError(text, hint=f"inv fetch --stack {stacks[0]}")
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        _write(temporary, root, store, _lock_names(stacks), [wanted[sha256] for sha256 in sorted(wanted)])
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)
    return target.stat().st_size


def load(root: Path, store: Store, source: Path) -> Imported:
    """Bring an archive, or a single wheel, .deb or sdist, into the store.

    Every artefact is checked before it is visible; an archive that is cut short leaves only whole ones.
    Raises UserError for a file that is damaged, cut short or not ours.
    """
    if not source.is_file():
        raise UserError(f"{source} does not exist", hint="give a file that inv fetch --export wrote")
    if source.name.endswith(_SINGLE):
        return _load_single(root, store, source)
    try:
        with tarfile.open(source, "r|") as tar:
            return _load_members(root, store, tar)
    except (tarfile.TarError, EOFError, OSError) as error:
        raise UserError(f"{source} is damaged or cut short: {error}", hint="copy it again") from error


def _lock_names(stacks: Iterable[str]) -> list[str]:
    return sorted({locks.path_of(stack, part) for stack in stacks for part in (*locks.PARTS, "tools")})


def _write(target: Path, root: Path, store: Store, names: Iterable[str], artifacts: Sequence[Artifact]) -> None:
    lines = "".join(f"{one.sha256} {one.size} {one.file}\n" for one in artifacts)
    with tarfile.open(target, "w", format=tarfile.PAX_FORMAT) as tar:
        _add_text(tar, _INDEX, lines.encode())
        for name in names:
            _add_text(tar, name, (root / name).read_bytes())
        for artifact in artifacts:
            with store.path(artifact.sha256).open("rb") as file:
                tar.addfile(_member(f"store/{artifact.sha256}", artifact.size), file)


def _add_text(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    tar.addfile(_member(name, len(data)), io.BytesIO(data))


def _member(name: str, size: int) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.size = size
    return member


def _load_members(root: Path, store: Store, tar: tarfile.TarFile) -> Imported:
    """Read the archive as a stream: its index, the locks, then the artefacts."""
    index = _read_index(tar)
    added = present = size_bytes = 0
    others: list[str] = []
    while member := tar.next():
        name = member.name.removeprefix("store/")
        if name == member.name:
            others += [name] if _differs(root / name, _read(tar, member)) else []
        elif name not in index:
            raise UserError(f"the archive carries {member.name}, which its index does not name", hint="copy it again")
        elif store.has(artifact := index.pop(name)):
            present += 1
        else:
            stream = tar.extractfile(member)
            assert stream
            store.add(stream, artifact.sha256, artifact.size, artifact.file)  # type: ignore[arg-type]
            added, size_bytes = added + 1, size_bytes + artifact.size
    if index:
        text = f"the archive is cut short: {len(index)} artefacts are missing, {next(iter(index.values())).file} first"
        raise UserError(text, hint="copy it again; what is whole was kept")
    return Imported(added, present, size_bytes, tuple(others))


def _read_index(tar: tarfile.TarFile) -> dict[str, Artifact]:
    first = tar.next()
    if first is None or first.name != _INDEX:
        raise UserError("the file is no archive of kiln's", hint="give a file that inv fetch --export wrote")
    lines = [_ENTRY.fullmatch(line) for line in _read(tar, first).decode("utf-8", "replace").splitlines()]
    if not all(lines):
        raise UserError("the archive's index is damaged", hint="copy it again")
    return {line[1]: Artifact(line[3], "", line[3], int(line[2]), line[1]) for line in lines if line}


def _read(tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    stream = tar.extractfile(member)
    return stream.read() if stream else b""


def _differs(path: Path, data: bytes) -> bool:
    return not path.is_file() or path.read_bytes() != data


def _load_single(root: Path, store: Store, source: Path) -> Imported:
    """Add one file, which some lock of this tree must ask for by its hash."""
    sha256, size = sha256_of(source), source.stat().st_size
    known = [one for path in sorted((root / "locks").glob("*")) for one in _locked(root, path)]
    if sha256 not in {one.sha256 for one in known}:
        same = next((one for one in known if one.file == source.name), None)
        wanted = f"locked sha256 {same.sha256}, found {sha256}" if same else f"sha256 {sha256} is in no lock"
        raise UserError(f"{source.name} is not what a lock asks for: {wanted}", hint="inv lock, if this file is meant")
    if store.path(sha256).exists():
        return Imported(0, 1, 0)
    store.add(source, sha256, size)
    return Imported(1, 0, size)


def _locked(root: Path, path: Path) -> tuple[Artifact, ...]:
    """Return what a stack's folder of locks asks for; nothing for a folder of another kind."""
    return locks.load(root, path.name).artifacts() if (path / "python.toml").is_file() else ()
