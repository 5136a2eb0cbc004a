"""`git apply --index` on a source tree, without fuzz, out of reach of every repository and setting of the host."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Literal

from kiln.errors import CheckFailed
from kiln.patches import Patch
from kiln.run import Completed, run

State = Literal["applied", "already-upstream", "obsolete", "failed"]
_FAILED = re.compile(r"patch failed: (?P<file>.+):(?P<line>\d+)$", re.MULTILINE)
_HUNK = re.compile(r"^@@ -(?P<line>\d+)", re.MULTILINE)


@dataclass(frozen=True)
class Outcome:
    """What became of one patch on one source; `detail` names file and hunk, `hint` the next command."""

    patch: Patch
    state: State
    detail: str = ""

    @property
    def hint(self) -> str:
        """Say what to do about it."""
        drop = f"inv patches.drop {self.patch.label}"
        return {
            "applied": "",
            "already-upstream": f"{drop}, or narrow its Applies-To",
            "obsolete": f"{drop}, or narrow its Applies-To",
            "failed": f"inv patches.refresh --name {self.patch.label} --tree FOLDER, or {drop}",
        }[self.state]

    def __str__(self) -> str:
        return f"{self.patch.label}: {self.state}" + (f": {self.detail}" if self.detail else "")


@dataclass(frozen=True)
class Tree:
    """A source tree and the index that git checks it against; `index` lies outside the tree."""

    root: Path
    index: Path

    def git(self, *words: str | Path, stdin: bytes | None = None) -> Completed:
        """Run git on the tree; its exit status is the caller's to read."""
        shield = {
            "GIT_DIR": str(self.index), "GIT_WORK_TREE": str(self.root.resolve()), "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CEILING_DIRECTORIES": str(self.root.parent.resolve()), "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_LITERAL_PATHSPECS": "1", "LC_ALL": "C",
        }  # fmt: skip
        return run(["git", *words], cwd=self.root, env=shield, stdin=stdin, check=False)


@contextmanager
def opened(root: Path, files: Iterable[str]) -> Iterator[Tree]:
    """Put the files that patches name into a fresh index and hand out the tree; absent ones are left out."""
    with TemporaryDirectory(dir=root.parent, prefix=".index-") as scratch:
        tree = Tree(root, Path(scratch).resolve() / "git")
        _needed(tree.git("init", "--quiet", "--template="))
        add(tree, files)
        yield tree


def add(tree: Tree, files: Iterable[str]) -> None:
    """Take the files as they are now into the index."""
    known = sorted({file for file in files if _inside(file) and (tree.root / file).is_file()})
    if known:
        names = "\0".join(known).encode()
        _needed(tree.git("add", "--force", "--pathspec-from-file=-", "--pathspec-file-nul", stdin=names))


def attempt(patch: Patch, tree: Tree) -> Outcome:
    """Apply one patch, or change nothing and say why. Raises CheckFailed if git leaves a file that it should change."""
    named = _named(patch, tree)
    before = {file: _state(tree.root / file) for file in named}
    done = tree.git("apply", "--index", "--whitespace=nowarn", patch.path.resolve())
    if done.returncode != 0:
        return _why_not(patch, tree, named, done.stderr)
    unchanged = [name for name, state in before.items() if _state(tree.root / name) == state]
    if unchanged:
        raise CheckFailed(f"{patch.label} left {', '.join(unchanged)} as it was")
    return Outcome(patch, "applied")


def sha256_of(root: Path, file: str) -> str:
    """Return the hash of a file of the tree, empty if it is not there."""
    return _state(root / file)[0]


def require(outcomes: Iterable[Outcome], source: str) -> None:
    """Raise CheckFailed with file, hunk and hint of everything but `applied`."""
    bad = [outcome for outcome in outcomes if outcome.state != "applied"]
    if bad:
        lines = "\n".join(f"  {outcome}\n    hint: {outcome.hint}" for outcome in bad)
        raise CheckFailed(f"{len(bad)} of the patches to {source} do not apply:\n{lines}")


def _why_not(patch: Patch, tree: Tree, named: Iterable[str], stderr: str) -> Outcome:
    if tree.git("apply", "--check", "--reverse", patch.path.resolve()).returncode == 0:
        return Outcome(patch, "already-upstream", "the source has every line of it")
    gone = [file for file in named if _inside(file) and not (tree.root / file).exists() and file in _old(patch)]
    if gone:
        return Outcome(patch, "obsolete", f"the source has no {', '.join(gone)}")
    return Outcome(patch, "failed", _where(patch, stderr))


def _where(patch: Patch, stderr: str) -> str:
    """Say in which file and hunk git stopped; its own words if it names none."""
    places = []
    for match in _FAILED.finditer(stderr):
        lines = [hunk["line"] for hunk in _HUNK.finditer(_section(patch, match["file"]))]
        hunk = lines.index(match["line"]) + 1 if match["line"] in lines else 0
        places.append(f"{match['file']}, hunk {hunk} of {len(lines)}, at line {match['line']}")
    return "; ".join(places) or stderr.strip().replace("\n", "; ")


def _section(patch: Patch, file: str) -> str:
    """Return the part of the diff that is about one file."""
    text = patch.path.read_text(encoding="utf-8", errors="replace")
    parts = re.split(r"^(?=diff --git )", text, flags=re.MULTILINE)
    return next((part for part in parts if f" b/{file}\n" in part.partition("\n")[0] + "\n"), "")


def _old(patch: Patch) -> set[str]:
    """Return the files that the patch expects to be there."""
    text = patch.path.read_text(encoding="utf-8", errors="replace")
    return {*re.findall(r"^--- a/(\S+)", text, re.MULTILINE), *re.findall(r"^rename from (\S+)", text, re.MULTILINE)}


def _named(patch: Patch, tree: Tree) -> list[str]:
    """Return the files that git reads out of the patch; those that only move count under their new name."""
    done = tree.git("apply", "--numstat", "-z", patch.path.resolve())
    return [line.split("\t")[2] for line in done.stdout.split("\0") if line]


def _inside(file: str) -> bool:
    path = PurePosixPath(file)
    return not path.is_absolute() and ".." not in path.parts


def _state(path: Path) -> tuple[str, bool]:
    """What a patch can change of a file: its bytes and whether it may be executed."""
    if not path.exists():
        return "", False
    return hashlib.sha256(path.read_bytes()).hexdigest(), os.access(path, os.X_OK)


def _needed(done: Completed) -> None:
    if done.returncode != 0:
        raise CheckFailed(f"{' '.join(done.argv[:3])} failed: {done.stderr.strip()}")
