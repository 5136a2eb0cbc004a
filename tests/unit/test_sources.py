"""Patched source trees, with a real sdist and the host's real git."""

from __future__ import annotations

import hashlib
import io
import os
import re
import tarfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from kiln import patchlocks, sources
from kiln.errors import CheckFailed
from kiln.gitapply import Outcome
from kiln.locks import Artifact
from kiln.patches import Patch
from kiln.patchlocks import PatchedFile
from kiln.run import run
from kiln.store import Store

pytestmark = pytest.mark.unit
FILES = {"setup.py": "one\ntwo\nthree\n", "pkg/__init__.py": "x = 1\n", "pkg/run.sh": "#!/bin/sh\n", "pkg/end.": "e\n"}
CHANGE = """\
diff --git a/setup.py b/setup.py
--- a/setup.py
+++ b/setup.py
@@ -1,3 +1,3 @@
 one
-two
+2
 three
"""
TRAILING = CHANGE.replace("+2\n", "+2   \n")
ADDED = """\
diff --git a/pkg/new.py b/pkg/new.py
new file mode 100644
--- /dev/null
+++ b/pkg/new.py
@@ -0,0 +1 @@
+y = 2
"""
REMOVED = """\
diff --git a/pkg/__init__.py b/pkg/__init__.py
deleted file mode 100644
--- a/pkg/__init__.py
+++ /dev/null
@@ -1 +0,0 @@
-x = 1
"""
RENAMED = """\
diff --git a/setup.py b/install.py
similarity index 100%
rename from setup.py
rename to install.py
"""
MODE = """\
diff --git a/setup.py b/setup.py
old mode 100644
new mode 100755
"""


def sdist(folder: Path, store: Store, files: Mapping[str, str] = FILES, mtime: int = 1) -> Artifact:
    """Write a small sdist into the store."""
    path = folder / "tool_python-1.0.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        for name, text in files.items():
            info = tarfile.TarInfo(f"tool_python-1.0/{name}")
            info.size, info.mtime, info.uid, info.uname = len(text), mtime, 1234, "somebody"
            info.mode = 0o775 if name.endswith(".sh") else 0o664
            tar.addfile(info, io.BytesIO(text.encode()))
    data = path.read_bytes()
    sha256 = hashlib.sha256(data).hexdigest()
    if not store.path(sha256).exists():
        store.add(path, sha256, len(data))
    return Artifact("tool-python", "1.0", path.name, len(data), sha256)


def patch(folder: Path, text: str, number: int = 1, component: str = "tool") -> Patch:
    path = folder / f"{number:04d}-change.patch"
    path.write_text(text)
    sha256 = hashlib.sha256(text.encode()).hexdigest()
    head = ("it changes", "vendor", "no", ">=0", ("all",), "default", "none")
    files = re.findall(r"^diff --git a/(\S+) b/(\S+)", text, re.MULTILINE)
    named = tuple(dict.fromkeys(file for pair in files for file in pair))
    return Patch(component, number, "change", path, sha256, *head, files=named)


def apply(one: Patch, tree: Path) -> Outcome:
    (outcome,) = sources.apply([one], tree)
    return outcome


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def tree(tmp_path: Path, store: Store) -> Path:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    return sources.unpack(store.path(sdist(tmp_path, store).sha256), scratch)


def packed(file: Path) -> dict[str, str]:
    with tarfile.open(file) as tar:
        members = [(member.name, tar.extractfile(member)) for member in tar if member.isfile()]
        return {name: stream.read().decode() for name, stream in members if stream}


def test_a_source_is_packed_with_its_patches_in_order(tmp_path: Path, store: Store) -> None:
    again = patch(tmp_path, CHANGE.replace("-two\n+2", "-2\n+II"), 2)
    first = patch(tmp_path, CHANGE)
    other = patch(tmp_path, CHANGE, 3, component="another")
    sources.place([sdist(tmp_path, store)], [first, again, other], [], store, tmp_path / "out/sources")
    assert sorted(path.name for path in (tmp_path / "out").rglob("*")) == ["sources", "tool.tar"]
    found = packed(tmp_path / "out/sources/tool.tar")
    assert found == {f"tool/{name}": text for name, text in {**FILES, "setup.py": "one\nII\nthree\n"}.items()}


@pytest.mark.parametrize(
    ("text", "file", "found"),
    [
        (CHANGE, "setup.py", "one\n2\nthree\n"),
        (TRAILING, "setup.py", "one\n2   \nthree\n"),
        (ADDED, "pkg/new.py", "y = 2\n"),
        (REMOVED, "pkg/__init__.py", None),
        (RENAMED, "install.py", FILES["setup.py"]),
    ],
    ids=["changed", "trailing blanks", "added", "removed", "renamed"],
)
def test_a_patch_is_applied_to_the_letter(tmp_path: Path, tree: Path, text: str, file: str, found: str | None) -> None:
    apply(patch(tmp_path, text), tree)
    assert ((tree / file).read_text() if (tree / file).exists() else None) == found


def test_a_patch_may_change_just_a_mode(tmp_path: Path, tree: Path) -> None:
    apply(patch(tmp_path, MODE), tree)
    assert os.access(tree / "setup.py", os.X_OK)


GONE = CHANGE.replace("setup.py", "nowhere.py")
FURTHER = CHANGE.replace(" three\n", " three\n@@ -7,2 +7,2 @@\n seven\n-eight\n+8\n")


@pytest.mark.parametrize(
    ("text", "state", "reason"),
    [
        (CHANGE.replace(" one", " eins"), "failed", "setup.py, hunk 1 of 1, at line 1"),
        (
            CHANGE.replace("-two", "-too").replace("+2", "+too\n+2").replace("+1,3", "+1,4"),
            "failed",
            "setup.py, hunk 1",
        ),
        (FURTHER, "failed", "setup.py, hunk 2 of 2, at line 7"),
        (GONE, "obsolete", "the source has no nowhere.py"),
        (CHANGE.replace("-two\n+2", "-2\n+two"), "already-upstream", "the source has every line of it"),
        (CHANGE.replace("@@ -1,3 +1,3 @@", "@@ -1,9 +1,3 @@"), "failed", "corrupt patch at"),
        (CHANGE.replace("/setup.py", "/../../setup.py"), "failed", "../../setup.py: does not exist in index"),
    ],
    ids=["its context", "a line", "a later hunk", "its file", "upstream", "damaged", "outside"],
)
def test_a_patch_that_does_not_apply_is_told_with_file_and_hunk(
    tmp_path: Path, tree: Path, text: str, state: str, reason: str
) -> None:
    (tmp_path / "setup.py").write_text(FILES["setup.py"])
    outcome = apply(patch(tmp_path, text), tree)
    assert outcome.state == state
    assert reason in outcome.detail
    assert (tree / "setup.py").read_text() == (tmp_path / "setup.py").read_text() == FILES["setup.py"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (CHANGE.replace(" one", " eins"), ("0001-change: failed: setup.py, hunk 1 of 1", "--tree FOLDER")),
        (GONE, ("0001-change: obsolete: the source has no nowhere.py", "inv patches.drop tool/0001-change")),
        (CHANGE.replace("-two\n+2", "-2\n+two"), ("already-upstream", "inv patches.drop tool/0001-change, or narrow")),
    ],
    ids=["moved", "gone", "upstream"],
)
def test_anything_but_applied_stops_a_build_with_what_to_do(
    tmp_path: Path, store: Store, text: str, words: tuple[str, str]
) -> None:
    source = sdist(tmp_path, store)
    for call in (
        lambda one: sources.place([source], [one], [], store, tmp_path / "out/sources"),
        lambda one: sources.preflight({"tool": source}, [one], [], store),
    ):
        with pytest.raises(CheckFailed, match=r"1 of the patches to tool_python-1\.0\.tar\.gz do not apply") as caught:
            call(patch(tmp_path, text))
        assert all(word in str(caught.value) for word in words)


def test_what_comes_out_must_be_what_is_locked(tmp_path: Path, store: Store) -> None:
    source, one = sdist(tmp_path, store), patch(tmp_path, CHANGE)
    good = PatchedFile("tool", "setup.py", (one.label,), hashlib.sha256(b"one\n2\nthree\n").hexdigest())
    assert sources.preflight({"tool": source}, [one], [good], store)
    bad = replace(good, sha256="0" * 64)
    with pytest.raises(CheckFailed, match=r"setup.py is [0-9a-f]{12}, locked is 000000000000"):
        sources.preflight({"tool": source}, [one], [bad], store)
    with pytest.raises(CheckFailed, match=r"setup.py is [0-9a-f]{12}, locked is 000000000000"):
        sources.place([source], [one], [bad], store, tmp_path / "out/sources")


def test_a_source_that_is_not_fetched_is_tried_later(tmp_path: Path, store: Store) -> None:
    absent = Artifact("tool-python", "1.0", "tool_python-1.0.tar.gz", 1, "0" * 64)
    assert not sources.preflight({"tool": absent}, [patch(tmp_path, CHANGE)], [], store)


def test_a_patch_may_be_lines_away_from_its_place(tmp_path: Path, tree: Path) -> None:
    (tree / "setup.py").write_text("zero\nzero\nzero\n" + FILES["setup.py"] + "four\n")
    apply(patch(tmp_path, CHANGE.replace("-1,3 +1,3", "-2,3 +2,3")), tree)
    assert (tree / "setup.py").read_text() == "zero\nzero\nzero\none\n2\nthree\nfour\n"


def test_a_repository_around_the_tree_does_not_swallow_the_patch(tmp_path: Path, tree: Path) -> None:
    run(["git", "init", "-q", tmp_path])
    done = run(["git", "apply", patch(tmp_path, CHANGE).path], cwd=tree)
    assert (done.returncode, (tree / "setup.py").read_text()) == (0, FILES["setup.py"]), "git no longer skips it"
    apply(patch(tmp_path, CHANGE), tree)
    assert (tree / "setup.py").read_text() == "one\n2\nthree\n"


def test_the_users_own_settings_of_git_change_nothing(
    tmp_path: Path, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".gitconfig").write_text("[apply]\n\twhitespace = fix\n[core]\n\tautocrlf = true\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    apply(patch(tmp_path, TRAILING), tree)
    assert (tree / "setup.py").read_bytes() == b"one\n2   \nthree\n"


def test_equal_trees_give_equal_bytes_whoever_packs_them_and_when(tmp_path: Path, store: Store) -> None:
    def pack(name: str, source: Artifact) -> bytes:
        sources.place([source], [patch(tmp_path, CHANGE)], [], store, tmp_path / name)
        return (tmp_path / name / "tool.tar").read_bytes()

    first = pack("a", sdist(tmp_path, store))
    mask = os.umask(0o077)
    try:
        later = sdist(tmp_path, store, dict(reversed(FILES.items())), mtime=99)
        assert pack("b", later) == first
    finally:
        os.umask(mask)
    with tarfile.open(tmp_path / "a/tool.tar") as tar:
        assert {(one.uid, one.gid, one.uname, one.mtime) for one in tar} == {(0, 0, "", 0)}
        assert {one.name: one.mode for one in tar if one.isfile()}["tool/pkg/run.sh"] == 0o755


@pytest.mark.parametrize(
    ("name", "component"), [("flashinfer-python", "flashinfer"), ("flashinfer_python", "flashinfer"), ("sgl", "sgl")]
)
def test_a_source_belongs_to_the_component_that_its_name_starts_with(name: str, component: str) -> None:
    assert patchlocks.component_of(Artifact(name, "1", "a", 1, "0" * 64)) == component
