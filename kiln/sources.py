"""Patched source trees: the locked sdist, unpacked, patched without fuzz, packed again as one canonical tar."""

from __future__ import annotations

import hashlib
import os
import tarfile
import tempfile
from collections.abc import Iterable
from pathlib import Path

from kiln.errors import CheckFailed
from kiln.locks import Artifact
from kiln.patches import Patch
from kiln.run import Completed, run
from kiln.store import Store


def place(sources: Iterable[Artifact], applied: Iterable[Patch], store: Store, dest: Path) -> None:
    """Write `dest/<component>.tar` for each source. Raises CheckFailed if a patch does not apply exactly."""
    dest.mkdir(parents=True, exist_ok=True)
    patches = tuple(applied)
    for source in sources:
        component = component_of(source)
        with tempfile.TemporaryDirectory(dir=dest.parent) as scratch:
            tree = unpack(store.path(source.sha256), Path(scratch))
            for patch in patches:
                if patch.component == component:
                    apply(patch, tree)
            pack(tree, dest / f"{component}.tar", component)


def component_of(source: Artifact) -> str:
    """`flashinfer-python` → `flashinfer`: the folder of its patches and the name of its tar."""
    return source.name.replace("_", "-").removesuffix("-python")


def unpack(archive: Path, scratch: Path) -> Path:
    """Unpack an sdist and return its one top folder."""
    with tarfile.open(archive) as tar:
        tar.extractall(scratch, filter="data")
    (tree,) = scratch.iterdir()
    return tree


def apply(patch: Patch, tree: Path) -> None:
    """Apply one patch with `git apply`. Every file that it names must change: git skips paths outside a repository's
    subfolder without a word, so the tree is shielded from any repository above it and the result is checked.

    Raises CheckFailed, and changes nothing, if the patch does not apply exactly.
    """
    named = [line.split("\t")[2] for line in _git_apply(patch, tree, "--numstat", "-z").stdout.split("\0") if line]
    before = {name: _state(tree / name) for name in named}
    _git_apply(patch, tree, "--verbose")
    unchanged = [name for name, state in before.items() if _state(tree / name) == state]
    if unchanged:
        raise CheckFailed(f"{patch.label} left {', '.join(unchanged)} as it was")


def _git_apply(patch: Patch, tree: Path, *options: str) -> Completed:
    """Run `git apply` out of reach of any repository and of the settings of user and host, which may change bytes."""
    shield = {
        "GIT_CEILING_DIRECTORIES": str(tree.parent.resolve()), "GIT_DIR": str(tree / ".no-repository"),
        "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1", "LC_ALL": "C",
    }  # fmt: skip
    done = run(["git", "apply", *options, patch.path.resolve()], cwd=tree, env=shield, check=False)
    if done.returncode != 0:
        raise CheckFailed(f"{patch.label} does not apply to {tree.name}:\n{done.stderr.strip()}\n  hint: inv check")
    return done


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


def _state(path: Path) -> tuple[str, bool]:
    """What a patch can change of a file: its bytes and whether it may be executed."""
    if not path.exists():
        return "", False
    return hashlib.sha256(path.read_bytes()).hexdigest(), os.access(path, os.X_OK)
