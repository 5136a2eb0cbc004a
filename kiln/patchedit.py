"""Writing patch files: a new one from an edited tree, an old one anchored anew."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from kiln import gitapply, patches, patchqueue, sources
from kiln.errors import CheckFailed, UserError
from kiln.gitapply import Tree
from kiln.patches import Patch
from kiln.patchqueue import Pinned
from kiln.settings import Settings
from kiln.store import Store

_LEFTOVER = (".git", "__pycache__", ".mypy_cache", ".pytest_cache", ".ruff_cache")
_TRAILER = "-- \nkiln\n"
_DIFF = ("-c", "core.abbrev=7", "diff", "--cached", "--patch-with-stat", "--stat=72", "--summary", "--no-color",
         "--no-ext-diff", "--no-renames", "--unified=3", "--src-prefix=a/", "--dst-prefix=b/")  # fmt: skip


@dataclass(frozen=True)
class Header:
    """What a person says of a new patch; `applies_to` empty means the pinned version alone."""

    slug: str
    subject: str
    checked_by: str
    evidence: str
    drop_when: str
    status: str = ""
    origin: str = "vendor"
    forwarded: str = "no"
    applies_to: str = ""
    targets: str = "all"
    body: str = ""

    def text(self, version: str) -> str:
        """Return the mail's head and DEP-3 fields."""
        fields = {
            "Origin": self.origin, "Forwarded": self.forwarded, "Applies-To": self.applies_to or f"=={version}",
            "Targets": self.targets, "Status": self.status or f"opt-in: {self.slug}", "Checked-By": self.checked_by,
            "Evidence": self.evidence, "Drop-When": self.drop_when,
        }  # fmt: skip
        mail = f"From {'0' * 40} Mon Sep 17 00:00:00 2001\nFrom: kiln <kiln@localhost>\nSubject: [PATCH] {self.subject}"
        lines = (textwrap.fill(f"{key}: {value}", 100, subsequent_indent=" ") for key, value in fields.items())
        block = "".join(f"{line}\n" for line in lines)
        body = textwrap.fill(self.body, 78) + "\n" if self.body else ""
        return f"{mail}\n\n{block}\n{body}---\n"


def start_or_write(settings: Settings, component: str, stack: str, tree: str, header: Header) -> Iterator[str]:
    """Unpack a pinned source for editing if the folder is not there, or write the next patch from it and the locks;
    yields a line for each thing done."""
    one, folder = patchqueue.pinned_for(settings, component, stack), Path(tree).absolute()
    if not folder.exists():
        unpack(settings, one, defaults(settings, one), folder)
        yield f"{one.source.file} with its default patches is in {tree}: edit it, then give the same command --slug"
        return
    yield f"wrote {new(settings, one, header, folder).relative_to(settings.root)}"
    yield from _locked(settings)


def refresh_all(settings: Settings, name: str = "", tree: str = "") -> Iterator[str]:
    """Anchor the named patch or all anew and write the locks. With `tree`: unpack the source without the patch and with
    what of it still applies if the folder is not there, or take the patch from it."""
    known = patches.load_all(settings.root)
    chosen = patches.find(known, name) if name else known
    if tree and len(chosen) != 1:
        raise UserError(
            f"--tree is for one patch, {name or 'no name'} means {len(chosen)}", hint="name it by its label"
        )
    folder = Path(tree).absolute() if tree else None
    for patch, one in _anchored(settings, chosen):
        if folder and not folder.exists():
            unpack(settings, one, patchqueue.before(patch, known, one.version), folder)
            yield f"{one.source.file} is in {tree}: make the change of {patch.label} there, then the same command again"
            return
        if refresh(settings, one, patch, folder):
            yield f"wrote {patch.path.relative_to(settings.root)}"
    yield from _locked(settings)


def _anchored(settings: Settings, chosen: Iterable[Patch]) -> Iterator[tuple[Patch, Pinned]]:
    """Pair each patch with the first pinned source that it is meant for; one without is left as it is."""
    sources_there = patchqueue.pinned(settings)
    for patch in chosen:
        fits = (one for one in sources_there if one.component == patch.component and patch.covers(one.version))
        if one := next(fits, None):
            yield patch, one


def _locked(settings: Settings) -> Iterator[str]:
    yield from (f"wrote {path.relative_to(settings.root)}" for path in patchqueue.write_locks(settings))


def unpack(settings: Settings, one: Pinned, queue: Iterable[Patch], folder: Path) -> None:
    """Unpack a pinned source with some patches for a person to edit."""
    with TemporaryDirectory(dir=_parent(folder), prefix=".kiln-edit-") as scratch:
        tree = sources.unpack(_archive(settings, one), Path(scratch))
        gitapply.require(sources.apply(queue, tree), one.source.file)
        tree.rename(folder)


def new(settings: Settings, one: Pinned, header: Header, folder: Path) -> Path:
    """Write the next patch of a component: what an edited tree adds to the pinned source and its default patches.

    Raises UserError if nothing was edited, Problems if a field of the header is bad; then no file is left.
    """
    path = patchqueue.numbered(settings.root, one.component, header.slug)
    diff = _difference(_archive(settings, one), defaults(settings, one), folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(header.text(one.version) + diff + _TRAILER)
    try:
        patches.load(path, settings.root)
    except UserError:
        path.unlink()
        raise
    return path


def refresh(settings: Settings, one: Pinned, patch: Patch, folder: Path | None = None) -> bool:
    """Write a patch's diff anew, with the lines of the pinned source as they are, or as an edited tree has them; says
    whether the file changed. Raises CheckFailed if it does not apply."""
    archive = _archive(settings, one)
    below = patchqueue.before(patch, patches.load_all(settings.root), one.version)
    diff = _difference(archive, below, folder) if folder else _reapplied(archive, below, patch)
    text = patch.path.read_text(encoding="utf-8")
    head = patches.split(text, patch.path.name)[0]
    message = head.rpartition("\n---\n")[0] or head.rstrip("\n")
    trailer = re.search(r"^-- \n.*\Z", text, re.MULTILINE | re.DOTALL)
    fresh = f"{message}\n---\n{diff}{trailer[0] if trailer else ''}"
    patch.path.write_text(fresh, encoding="utf-8")
    return fresh != text


def defaults(settings: Settings, one: Pinned) -> list[Patch]:
    """Return the default patches that a version of a component is meant to have, whatever the GPU."""
    known = patches.load_all(settings.root)
    return [p for p in known if p.component == one.component and p.covers(one.version) and p.status == "default"]


def _reapplied(archive: Path, below: list[Patch], patch: Patch) -> str:
    with sources.patched(archive, below) as (_, outcomes):
        gitapply.require(outcomes, archive.name)
    queue = [*below, patch]
    with sources.excerpted(archive, queue) as root, gitapply.opened(root, _files(queue)) as tree:
        gitapply.require([gitapply.attempt(one, tree) for one in below], archive.name)
        base = _snapshot(tree)
        gitapply.require([gitapply.attempt(patch, tree)], archive.name)
        return _diff(tree, base)


def _difference(archive: Path, below: list[Patch], folder: Path) -> str:
    """Return the diff from the source with the patches below to an edited tree."""
    with sources.patched(archive, below) as (root, outcomes):
        gitapply.require(outcomes, archive.name)
        files = sorted(_changed(archive, root, folder))
        if not files:
            raise UserError(f"{folder} is the pinned source as it is", hint="edit it first")
        sources.excerpt(archive, {file for file in files if not (root / file).exists()}, root)
        with gitapply.opened(root, {*files, *_files(below)}) as tree:
            base = _snapshot(tree)
            for file in files:
                _take(folder / file, root / file)
            done = tree.git("add", "--all", "--force", "--", *files)
            if done.returncode != 0:
                raise CheckFailed(done.stderr.strip())
            return _diff(tree, base)


def _changed(archive: Path, patched: Path, folder: Path) -> Iterator[str]:
    """Yield the files that differ between the source, patched files in place of its own, and an edited tree."""
    seen = set[str]()
    for file, data in sources.members(archive):
        seen.add(file)
        before = (patched / file).read_bytes() if (patched / file).exists() else data
        if not (folder / file).is_file() or (folder / file).read_bytes() != before:
            yield file
    for path in folder.rglob("*"):
        file = str(path.relative_to(folder))
        left = path.suffix in (".pyc", ".rej", ".orig") or any(part in _LEFTOVER for part in path.parts)
        if path.is_file() and not path.is_symlink() and file not in seen and not left:
            known = patched / file
            if not known.is_file() or known.read_bytes() != path.read_bytes():
                yield file


def _snapshot(tree: Tree) -> str:
    return tree.git("write-tree").stdout.strip()


def _diff(tree: Tree, base: str) -> str:
    done = tree.git(*_DIFF, base)
    if done.returncode != 0 or not done.stdout:
        raise CheckFailed(f"git finds no difference: {done.stderr.strip()}")
    return done.stdout


def _take(source: Path, target: Path) -> None:
    if not source.exists():
        target.unlink()
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(source.read_bytes())


def _files(queue: Iterable[Patch]) -> set[str]:
    return {file for patch in queue for file in patch.files}


def _archive(settings: Settings, one: Pinned) -> Path:
    return Store(settings.store).require(one.source, f"inv fetch --stack {one.stacks[0]}")


def _parent(folder: Path) -> Path:
    if folder.exists():
        raise UserError(f"{folder} exists", hint="name a folder that does not exist yet, or remove it")
    folder.parent.mkdir(parents=True, exist_ok=True)
    return folder.parent
