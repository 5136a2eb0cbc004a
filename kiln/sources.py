"""Patched source trees: the locked sdist, unpacked, patched without fuzz, packed again as one canonical tar."""

from __future__ import annotations

import tarfile
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from kiln import gitapply
from kiln.errors import CheckFailed, UserError
from kiln.gitapply import Outcome
from kiln.locks import Artifact
from kiln.patches import Patch
from kiln.patchlocks import PatchedFile, component_of
from kiln.store import Store


def place(
    sources: Iterable[Artifact], applied: Iterable[Patch], results: Iterable[PatchedFile], store: Store, dest: Path
) -> None:
    """Write `dest/<component>.tar` for each source. Raises CheckFailed if a patch does not apply exactly, or if what
    comes out is not what the lock says."""
    dest.mkdir(parents=True, exist_ok=True)
    queue, locked = tuple(applied), tuple(results)
    for source in sources:
        component = component_of(source)
        with tempfile.TemporaryDirectory(dir=dest.parent) as scratch:
            tree = unpack(store.path(source.sha256), Path(scratch))
            own = [patch for patch in queue if patch.component == component]
            gitapply.require(apply(own, tree), source.file)
            verify(tree, [one for one in locked if one.component == component])
            pack(tree, dest / f"{component}.tar", component)


def preflight(
    pinned: Mapping[str, Artifact], applied: Iterable[Patch], results: Iterable[PatchedFile], store: Store
) -> bool:
    """Try every patch on the files that it names, before anything is built; says whether all could be tried, that is,
    whether their sources are in the store. Raises CheckFailed as `place` does."""
    queue, locked = tuple(applied), tuple(results)
    components = sorted({patch.component for patch in queue})
    for component in components:
        own, source = [patch for patch in queue if patch.component == component], pinned[component]
        if store.has(source):
            with patched(store.path(source.sha256), own) as (tree, outcomes):
                gitapply.require(outcomes, source.file)
                verify(tree, [one for one in locked if one.component == component])
    return all(store.has(pinned[component]) for component in components)


@contextmanager
def excerpted(archive: Path, queue: Iterable[Patch]) -> Iterator[Path]:
    """Hand out a tree with just the files that the patches name, as they are in the archive."""
    with tempfile.TemporaryDirectory(prefix="kiln-source-") as scratch:
        tree = Path(scratch) / "tree"
        excerpt(archive, {file for patch in queue for file in patch.files}, tree)
        yield tree


@contextmanager
def patched(archive: Path, queue: Iterable[Patch]) -> Iterator[tuple[Path, list[Outcome]]]:
    """Hand out a tree with just the files that the patches name, patched, and each patch's outcome."""
    patches = tuple(queue)
    with tempfile.TemporaryDirectory(prefix="kiln-patches-") as scratch:
        tree = Path(scratch) / "tree"
        excerpt(archive, {file for patch in patches for file in patch.files}, tree)
        yield tree, apply(patches, tree)


def apply(queue: Iterable[Patch], tree: Path) -> list[Outcome]:
    """Apply patches in order; one that does not apply changes nothing and the next is tried on what is there."""
    patches = tuple(queue)
    if not patches:
        return []
    with gitapply.opened(tree, {file for patch in patches for file in patch.files}) as opened:
        return [gitapply.attempt(patch, opened) for patch in patches]


def verify(tree: Path, results: Iterable[PatchedFile]) -> None:
    """Compare patched files with the lock. Raises CheckFailed with every file that differs."""
    found = {one: gitapply.sha256_of(tree, one.file) for one in results}
    wrong = [f"{one.file} is {sha256[:12] or 'gone'}, locked is {one.sha256[:12] or 'gone'}"
             for one, sha256 in found.items() if sha256 != one.sha256]  # fmt: skip
    if wrong:
        raise CheckFailed("patched files are not what the lock says:\n  " + "\n  ".join(wrong))


def unpack(archive: Path, scratch: Path) -> Path:
    """Unpack an sdist, or a wheel into a folder of its own; returns the one top folder."""
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as wheel:
            wheel.extractall(scratch / "wheel")
        return scratch / "wheel"
    with tarfile.open(archive) as tar:
        # Debian 12's own Python 3.11.2 has no filters yet; the archive is the one of the lock's hash.
        tar.extraction_filter = getattr(tarfile, "data_filter", None)
        tar.extractall(scratch)
    (tree,) = scratch.iterdir()
    return tree


def excerpt(archive: Path, files: Iterable[str], tree: Path) -> None:
    """Take just these files out of an sdist, a wheel or a folder; those that it does not hold are left out."""
    wanted = set(files)
    tree.mkdir(parents=True, exist_ok=True)
    for file, data in members(archive, wanted):
        target = tree / file
        if not target.resolve().is_relative_to(tree.resolve()):
            raise UserError(f"{archive.name} holds {file!r}, which leaves its folder")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)


def members(archive: Path, wanted: set[str] | None = None) -> Iterator[tuple[str, bytes]]:
    """Yield the files of an sdist, a wheel or a folder by their path below its top; all, or those that are wanted."""
    if archive.is_dir():
        files = wanted if wanted is not None else {str(one.relative_to(archive)) for one in archive.rglob("*")}
        yield from ((file, (archive / file).read_bytes()) for file in sorted(files) if (archive / file).is_file())
    elif zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as wheel:
            names = [name for name in wheel.namelist() if not name.endswith("/")]
            yield from ((name, wheel.read(name)) for name in names if wanted is None or name in wanted)
    else:
        yield from _tar_members(archive, wanted)


def _tar_members(archive: Path, wanted: set[str] | None) -> Iterator[tuple[str, bytes]]:
    found = set[str]()
    with tarfile.open(archive) as tar:
        for member in tar:
            name = member.name.partition("/")[2]
            stream = tar.extractfile(member) if member.isfile() and (wanted is None or name in wanted) else None
            if stream is not None:
                found.add(name)
                yield name, stream.read()
            if found == wanted:
                return  # the rest of a big archive need not be read


def pack(tree: Path, target: Path, name: str) -> None:
    """Pack `tree` as `name/…`: sorted, owner 0, time 0, so that equal trees give equal bytes."""
    with tarfile.open(target, "w", format=tarfile.PAX_FORMAT) as tar:
        for path in [tree, *sorted(tree.rglob("*"))]:
            tar.add(path, str(Path(name) / path.relative_to(tree)), recursive=False, filter=_anonymous)


def _anonymous(info: tarfile.TarInfo) -> tarfile.TarInfo:
    info.uid = info.gid = info.mtime = 0
    info.uname = info.gname = ""
    info.mode = 0o755 if info.isdir() or info.mode & 0o100 else 0o644
    return info
