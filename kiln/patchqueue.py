"""The patch queue at work: what becomes of each patch on the pinned sources, and the locks of what comes out."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from kiln import dep3, gitapply, names, patches, patchlocks, sources, versions
from kiln.errors import CheckFailed, UserError
from kiln.gitapply import Outcome
from kiln.locks import Artifact
from kiln.patches import Patch
from kiln.patchlocks import PatchedFile
from kiln.settings import Settings
from kiln.store import Store

HEADINGS = ("patch", "status", "targets", "applies to", "stacks", "outcome")
# More than this many patches on one file are not tried in every combination: 2**6 trees of one file.
MOST_ON_ONE_FILE = 6


@dataclass(frozen=True)
class Pinned:
    """One source that some stacks pin: the file, the component's version, the stacks."""

    component: str
    version: str
    source: Artifact
    stacks: tuple[str, ...]


@dataclass(frozen=True)
class Row:
    """One line of `inv patches.list`: a patch and what becomes of it on the sources that it is meant for."""

    patch: Patch
    pinned: Pinned | None
    outcome: Outcome | None

    def cells(self) -> tuple[str, ...]:
        patch, stacks = self.patch, ", ".join(self.pinned.stacks) if self.pinned else "-"
        what = str(self.outcome.state) if self.outcome else ("not fetched" if self.pinned else "no stack pins this")
        return (patch.label, patch.status, ", ".join(patch.targets), patch.applies_to, stacks, what)

    def as_dict(self) -> dict[str, object]:
        keys = ("patch", "status", "targets", "applies_to", "stacks", "outcome")
        detail = self.outcome.detail if self.outcome else ""
        more = {"subject": self.patch.subject, "evidence": self.patch.evidence, "checked_by": self.patch.checked_by}
        return {**dict(zip(keys, self.cells(), strict=True)), **more, "detail": detail}


@dataclass(frozen=True)
class _Tried:
    """All patches of one source, tried; `lock` is the text of their lock."""

    pinned: Pinned
    rows: tuple[Row, ...]
    lock: str = ""


def pinned(settings: Settings, stacks: Iterable[str] = ()) -> tuple[Pinned, ...]:
    """Return the sources that patches can apply to, each once, for the named stacks or all."""
    loaded = versions.load(settings.root / "versions.yaml")
    found: dict[tuple[str, str, str], Pinned] = {}
    for name in tuple(stacks) or tuple(loaded.stacks):
        stack = loaded.stack(name)
        for component, source in patchlocks.read_pinned(settings.root, name, stack.components).items():
            key = (component, stack.components[component], source.sha256)
            before = found[key].stacks if key in found else ()
            found[key] = Pinned(component, stack.components[component], source, (*before, name))
    return tuple(found.values())


def rows(settings: Settings, stacks: Iterable[str] = ()) -> list[Row]:
    """Return a line for every patch and pinned source that it is meant for; one line if there is none."""
    found, known = list[Row](), patches.load_all(settings.root)
    for one in pinned(settings, stacks):
        found += _try(one, known, Store(settings.store), with_lock=False).rows
    told = {row.patch for row in found}
    return sorted([*found, *(Row(patch, None, None) for patch in known if patch not in told)], key=Row.cells)


def check(settings: Settings, stacks: Iterable[str] = ()) -> list[Row]:
    """Return a line for each patch of the pinned sources if all apply and the locks say what comes out.

    Raises CheckFailed with file and hunk, UserError if a source is not fetched.
    """
    tried = _try_all(settings, pinned(settings, stacks))
    for one in tried:
        file = settings.root / patchlocks.path_of(one.pinned.component, one.pinned.version)
        if not file.is_file() or file.read_text() != one.lock:
            name = file.relative_to(settings.root)
            raise CheckFailed(f"{name} is not what the patches make\n  hint: {patchlocks.COMMAND}")
    return [row for one in tried for row in one.rows]


def report(settings: Settings, component: str, version: str, archive: Path) -> list[Outcome]:
    """Tell what becomes of the component's patches on another version, given as sdist or wheel: each is tried on top of
    those before it that apply, whatever its Applies-To says; one whose Drop-When holds is obsolete."""
    own = [patch for patch in patches.load_all(settings.root) if patch.component == component]
    with sources.patched(archive, own) as (_, outcomes):
        return [_ended(outcome, version) for outcome in outcomes]


def results(component: str, meant: Iterable[Patch], source: Path) -> tuple[PatchedFile, ...]:
    """Apply every set of patches to every file that they touch and return what the file becomes; sets that do not
    apply together are left out. `source` is an sdist, a wheel or a folder."""
    queue, found = tuple(meant), set[PatchedFile]()
    with sources.excerpted(source, queue) as base:
        for chosen in _sets(queue):
            with sources.patched(base, chosen) as (tree, outcomes):
                if all(outcome.state == "applied" for outcome in outcomes):
                    found |= {PatchedFile(component, file, labels, gitapply.sha256_of(tree, file))
                              for file, labels in patchlocks.touched(chosen).items()}  # fmt: skip
    return tuple(sorted(found))


def _sets(meant: Iterable[Patch]) -> Iterator[tuple[Patch, ...]]:
    """Yield every set of patches that have files in common, in the order of the queue."""
    for group in _groups(meant):
        if len(group) > MOST_ON_ONE_FILE:
            labels = ", ".join(patch.label for patch in group)
            raise UserError(f"{len(group)} patches share files: {labels}", hint="join some of them")
        for size in range(1, len(group) + 1):
            yield from itertools.combinations(group, size)


def _groups(meant: Iterable[Patch]) -> list[tuple[Patch, ...]]:
    """Split patches into groups that have no file in common."""
    groups: list[tuple[Patch, ...]] = []
    for patch in meant:
        near = [group for group in groups if any(set(patch.files) & set(other.files) for other in group)]
        groups = [group for group in groups if group not in near]
        groups.append((*(other for group in near for other in group), patch))
    return [tuple(sorted(group, key=lambda patch: patch.number)) for group in groups]


def write_locks(settings: Settings) -> list[Path]:
    """Write every lock of locks/patches that differs and remove those that nothing needs; returns the paths touched.

    Raises CheckFailed, and writes nothing, if a patch does not apply to a source that it is meant for.
    """
    texts = {
        settings.root / patchlocks.path_of(one.pinned.component, one.pinned.version): one.lock
        for one in _try_all(settings, pinned(settings))
    }
    folder = settings.root / "locks" / "patches"
    return replace_files(texts, folder.glob("*.toml"))


def replace_files(texts: Mapping[Path, str], before: Iterable[Path]) -> list[Path]:
    """Write machine-written files and remove those of `before` that are none of them; returns what changed."""
    leftover = [file for file in sorted(before) if file not in texts]
    changed = [file for file, text in texts.items() if not file.exists() or file.read_text() != text]
    for file in changed:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(texts[file])
    for file in leftover:
        file.unlink()
    return [*changed, *leftover]


def drop(settings: Settings, name: str, *, dry: bool = False) -> list[str]:
    """Delete the patches that a name means and what the locks say of them; returns a line for each file touched."""
    gone = patches.find(patches.load_all(settings.root), name)
    for patch in () if dry else gone:
        patch.path.unlink()
    locks_touched = [] if dry else write_locks(settings)
    verb = "would remove" if dry else "removed"
    lines = [f"{verb} {patch.path.relative_to(settings.root)}" for patch in gone]
    return [*lines, *(f"wrote {path.relative_to(settings.root)}" for path in locks_touched)]


def pinned_for(settings: Settings, component: str, stack: str) -> Pinned:
    """Return the source of a component that a stack pins, the default stack if none is named. Raises UserError."""
    name = stack or versions.load(settings.root / "versions.yaml").defaults.stack
    found = {one.component: one for one in pinned(settings, [name])}
    if component not in found:
        problem = names.unknown("component", component, found, "", f"stack {name}")
        raise UserError(problem.message, hint=problem.hint)
    return found[component]


def before(patch: Patch, known: Iterable[Patch], version: str) -> list[Patch]:
    """Return the default patches for a version that come before one of its component."""
    return [
        other for other in known
        if other.component == patch.component and other.number < patch.number
        and other.covers(version) and other.status == "default"
    ]  # fmt: skip


def _try_all(settings: Settings, chosen: Iterable[Pinned]) -> list[_Tried]:
    """Try the patches of every source that has some. Raises CheckFailed, UserError."""
    known, store = patches.load_all(settings.root), Store(settings.store)
    tried = [one for one in (_try(one, known, store, with_lock=True) for one in chosen) if one.rows]
    missing = [one.pinned for one in tried if any(row.outcome is None for row in one.rows)]
    if missing:
        files, stacks = sorted({one.source.file for one in missing}), sorted({one.stacks[0] for one in missing})
        raise UserError(f"{', '.join(files)} not in the store", hint=f"inv fetch --stack {','.join(stacks)}")
    outcomes = (row.outcome for one in tried for row in one.rows)
    gitapply.require((outcome for outcome in outcomes if outcome), "the pinned sources")
    return tried


def _try(one: Pinned, known: Iterable[Patch], store: Store, *, with_lock: bool) -> _Tried:
    meant = [patch for patch in known if patch.component == one.component and patch.covers(one.version)]
    if not meant or not store.has(one.source):
        return _Tried(one, tuple(Row(patch, one, None) for patch in meant))
    with sources.excerpted(store.path(one.source.sha256), meant) as tree:
        found = tuple(Row(patch, one, _alone(patch, one.version, meant, tree)) for patch in meant)
        files = results(one.component, meant, tree) if with_lock else ()
    return _Tried(one, found, patchlocks.dump(one.source, meant, files))


def _alone(patch: Patch, version: str, known: Iterable[Patch], source: Path) -> Outcome:
    """Try one patch on a source with the default patches before it."""
    with sources.patched(source, [*before(patch, known, version), patch]) as (_, outcomes):
        return _ended(outcomes[-1], version)


def _ended(outcome: Outcome, version: str) -> Outcome:
    patch = outcome.patch
    if outcome.state == "applied" and dep3.fits(patch.drop_when, patch.component, version):
        return Outcome(patch, "obsolete", f"Drop-When: {patch.drop_when}")
    return outcome


def numbered(root: Path, component: str, slug: str) -> Path:
    """Return the path of the next patch of a component."""
    if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", slug):
        raise UserError(f"{slug!r} is no slug", hint="lower-case words joined by dashes: sort-the-units")
    taken = [int(path.name[:4]) for path in (root / "patches" / component).glob("[0-9][0-9][0-9][0-9]-*.patch")]
    return root / "patches" / component / f"{max(taken, default=0) + 1:04d}-{slug}.patch"
