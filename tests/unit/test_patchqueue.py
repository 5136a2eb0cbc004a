"""The patch queue on a checkout whose FlashInfer is a source of twelve lines."""

from __future__ import annotations

import hashlib
import io
import re
import shutil
import tarfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from kiln import patchedit, patches, patchqueue
from kiln.errors import CheckFailed, UserError
from kiln.patchedit import Header
from kiln.settings import ROOT, Settings, from_env
from kiln.store import Store

pytestmark = pytest.mark.unit
LINES = [f"line {number}" for number in range(1, 13)]
FILES = {"flashinfer/a.py": "\n".join(LINES) + "\n", "flashinfer/b.py": "b = 1\n", "pyproject.toml": "[project]\n"}
HEADER = Header("second-line", "a: second line", "tests/unit/test_patchqueue.py", "none: a test", "when it ends",
                status="default", targets="sm120", body="Why it does.")  # fmt: skip


def sdist(folder: Path, files: Mapping[str, str]) -> Path:
    path = folder / "flashinfer_python-0.7.2.tar.gz"
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as tar:
        for name, text in files.items():
            info = tarfile.TarInfo(f"flashinfer_python-0.7.2/{name}")
            info.size = len(text)
            tar.addfile(info, io.BytesIO(text.encode()))
    return path


def pin(settings: Settings, files: Mapping[str, str], *, fetched: bool = True) -> None:
    """Make an sdist with these files the one that stacks ci and current lock."""
    path = sdist(settings.root / "made", files)
    data = path.read_bytes()
    sha256 = hashlib.sha256(data).hexdigest()
    if fetched:
        Store(settings.store).add(io.BytesIO(data), sha256, len(data))
    for stack in ("ci", "current"):
        lock = settings.root / "locks" / stack / "sources.toml"
        text = re.sub(
            r"size = \d+, sha256 = \"[0-9a-f]+\"", f'size = {len(data)}, sha256 = "{sha256}"', lock.read_text()
        )
        lock.write_text(text)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    root = tmp_path / "checkout"
    shutil.copytree(ROOT / "locks", root / "locks", ignore=shutil.ignore_patterns("patches", "kernels"))
    (root / "tests/unit").mkdir(parents=True)
    for name in ("versions.yaml", "tests/unit/test_patchqueue.py"):
        shutil.copy(ROOT / name, root / name)
    found = from_env({}, root)
    pin(found, FILES)
    return found


def edited(settings: Settings, name: str, old: str, new: str) -> Path:
    """Unpack the pinned source as `inv patches.new` does, and edit one file."""
    folder = settings.root.parent / name
    one = patchqueue.pinned_for(settings, "flashinfer", "ci")
    patchedit.unpack(settings, one, patchedit.defaults(settings, one), folder)
    text = (folder / "flashinfer/a.py").read_text()
    assert old in text
    (folder / "flashinfer/a.py").write_text(text.replace(old, new))
    return folder


def written(settings: Settings, old: str = "line 2\n", new: str = "line II\n", header: Header = HEADER) -> Path:
    folder = edited(settings, f"tree-{header.slug}", old, new)
    lines = list(patchedit.start_or_write(settings, "flashinfer", "ci", str(folder), header))
    number = int(lines[0].rpartition("/")[2][:4])
    path = settings.root / f"patches/flashinfer/{number:04d}-{header.slug}.patch"
    assert lines == [f"wrote {path.relative_to(settings.root)}", "wrote locks/patches/flashinfer-0.7.2.toml",
                     *lines[2:]]  # fmt: skip
    return path


def states(settings: Settings) -> dict[str, str]:
    return {row.patch.slug: row.cells()[-1] for row in patchqueue.rows(settings)}


def test_the_first_call_of_new_unpacks_the_source(settings: Settings) -> None:
    folder = settings.root.parent / "tree"
    (line,) = patchedit.start_or_write(settings, "flashinfer", "ci", str(folder), HEADER)
    assert "edit it" in line
    assert (folder / "flashinfer/a.py").read_text() == FILES["flashinfer/a.py"]
    with pytest.raises(UserError, match="is the pinned source as it is"):
        list(patchedit.start_or_write(settings, "flashinfer", "ci", str(folder), HEADER))


def test_an_edited_tree_becomes_a_patch_that_git_could_have_written(settings: Settings) -> None:
    text = written(settings).read_text()
    assert text.startswith("From 0000000000000000000000000000000000000000 Mon Sep 17 00:00:00 2001\n")
    assert "Subject: [PATCH] a: second line\n\nOrigin: vendor\nForwarded: no\nApplies-To: ==0.7.2\n" in text
    assert "\nWhy it does.\n---\n flashinfer/a.py | 2 +-\n 1 file changed, 1 insertion(+), 1 deletion(-)\n\n" in text
    assert text.endswith(" line 5\n-- \nkiln\n")
    assert states(settings) == {"second-line": "applied"}
    assert len(patchqueue.check(settings)) == 1


def test_a_new_patch_stands_on_those_before_it(settings: Settings) -> None:
    written(settings)
    other = Header(**{**vars(HEADER), "slug": "third-line"})
    path = written(settings, "line II\nline 3\n", "line II\nline III\n", other)
    assert path.name == "0002-third-line.patch"
    assert "-line 3\n+line III\n" in path.read_text()
    assert "line 2\n" not in path.read_text()
    lock = (settings.root / "locks/patches/flashinfer-0.7.2.toml").read_text()
    sets = re.findall(r"patches = (\[.*?\])", lock)
    assert sets == ['["flashinfer/0001-second-line"]', '["flashinfer/0001-second-line", "flashinfer/0002-third-line"]']


def test_files_may_come_and_go(settings: Settings) -> None:
    folder = edited(settings, "tree", "line 2\n", "line II\n")
    (folder / "flashinfer/b.py").unlink()
    (folder / "flashinfer/new.py").write_text("n = 1\n")
    (folder / "flashinfer/__pycache__").mkdir()
    (folder / "flashinfer/__pycache__/new.cpython-311.pyc").write_bytes(b"\0")
    list(patchedit.start_or_write(settings, "flashinfer", "ci", str(folder), HEADER))
    (patch,) = patches.load_all(settings.root)
    assert patch.files == ("flashinfer/a.py", "flashinfer/b.py", "flashinfer/new.py")
    assert states(settings) == {"second-line": "applied"}
    assert list(patchedit.refresh_all(settings)) == []


def test_a_patch_with_a_bad_header_is_not_left_behind(settings: Settings) -> None:
    folder = edited(settings, "tree", "line 2\n", "line II\n")
    bad = Header(**{**vars(HEADER), "checked_by": "tests/unit/test_none.py"})
    with pytest.raises(UserError, match="is not a test"):
        list(patchedit.start_or_write(settings, "flashinfer", "ci", str(folder), bad))
    assert patches.load_all(settings.root) == ()


def test_refresh_round_trips(settings: Settings) -> None:
    path = written(settings)
    before = path.read_bytes()
    assert list(patchedit.refresh_all(settings)) == []
    assert path.read_bytes() == before


def test_refresh_anchors_lines_that_moved(settings: Settings) -> None:
    path = written(settings, "line 6\n", "line VI\n")
    pin(settings, {**FILES, "flashinfer/a.py": "zero\nzero\n" + FILES["flashinfer/a.py"]})
    assert states(settings) == {"second-line": "applied"}
    assert list(patchedit.refresh_all(settings, "second-line")) == [
        "wrote patches/flashinfer/0001-second-line.patch", "wrote locks/patches/flashinfer-0.7.2.toml",
    ]  # fmt: skip
    assert "@@ -5,7 +5,7 @@ line 2\n line 3\n line 4\n line 5\n-line 6\n" in path.read_text()
    assert list(patchedit.refresh_all(settings)) == []


def test_a_conflict_is_told_with_its_hunk_and_solved_in_a_tree(settings: Settings) -> None:
    path = written(settings)
    pin(settings, {**FILES, "flashinfer/a.py": FILES["flashinfer/a.py"].replace("line 1\n", "line one\n")})
    with pytest.raises(
        CheckFailed, match=r"a\.py, hunk 1 of 1, at line 1\n    hint: inv patches\.refresh --name flashinfer/0001"
    ):
        list(patchedit.refresh_all(settings))
    with pytest.raises(CheckFailed, match=r"a\.py, hunk 1 of 1, at line 1"):
        patchqueue.check(settings)
    folder = settings.root.parent / "again"
    (line,) = patchedit.refresh_all(settings, "second-line", str(folder))
    assert "make the change of flashinfer/0001-second-line there" in line
    file = folder / "flashinfer/a.py"
    file.write_text(file.read_text().replace("line 2\n", "line II\n"))
    assert len(list(patchedit.refresh_all(settings, "second-line", str(folder)))) == 2
    assert " line one\n-line 2\n+line II\n" in path.read_text()
    assert len(patchqueue.check(settings)) == 1


def test_a_lock_that_says_something_else_is_refused(settings: Settings) -> None:
    written(settings)
    lock = settings.root / "locks/patches/flashinfer-0.7.2.toml"
    lock.write_text(re.sub(r'sha256 = "[0-9a-f]+"', f'sha256 = "{"0" * 64}"', lock.read_text()))
    with pytest.raises(CheckFailed, match=r"flashinfer-0\.7\.2\.toml is not what the patches make"):
        patchqueue.check(settings)


def test_a_dropped_patch_takes_its_lock_with_it(settings: Settings) -> None:
    path = written(settings)
    assert patchqueue.drop(settings, "second-line", dry=True) == [f"would remove {path.relative_to(settings.root)}"]
    assert path.exists()
    assert patchqueue.drop(settings, "second-line") == [
        f"removed {path.relative_to(settings.root)}", "wrote locks/patches/flashinfer-0.7.2.toml",
    ]  # fmt: skip
    assert not (settings.root / "locks/patches/flashinfer-0.7.2.toml").exists()
    with pytest.raises(UserError, match="there is no patch 'second-line'"):
        patchqueue.drop(settings, "second-line")


def test_a_source_that_is_not_fetched_is_told(settings: Settings) -> None:
    written(settings)
    pin(settings, {**FILES, "flashinfer/c.py": ""}, fetched=False)
    assert states(settings) == {"second-line": "not fetched"}
    with pytest.raises(UserError, match=r"flashinfer_python-0\.7\.2\.tar\.gz not in the store"):
        patchqueue.check(settings)


def test_a_patch_for_a_version_that_nothing_pins_is_listed(settings: Settings) -> None:
    path = written(settings)
    path.write_text(path.read_text().replace("==0.7.2", "==0.6.9"))
    assert states(settings) == {"second-line": "no stack pins this"}


@pytest.mark.parametrize(
    ("files", "drop_when", "state"),
    [
        (FILES, "when it rains", "applied"),
        (FILES, "flashinfer >=0.8", "obsolete"),
        (
            {**FILES, "flashinfer/a.py": FILES["flashinfer/a.py"].replace("line 2\n", "line II\n")},
            "x",
            "already-upstream",
        ),
        ({**FILES, "flashinfer/a.py": FILES["flashinfer/a.py"].replace("line 2\n", "line two\n")}, "x", "failed"),
        ({"flashinfer/b.py": "b = 1\n"}, "x", "obsolete"),
    ],
    ids=["as it was", "its end has come", "upstream", "conflict", "gone"],
)
def test_a_bump_is_told_what_becomes_of_each_patch(
    settings: Settings, files: Mapping[str, str], drop_when: str, state: str
) -> None:
    written(settings, header=Header(**{**vars(HEADER), "drop_when": drop_when}))
    (outcome,) = patchqueue.report(settings, "flashinfer", "0.8.1", sdist(settings.root.parent / "next", files))
    assert outcome.state == state


def test_sources_that_are_not_fetched_are_named_once_with_a_command_that_runs(tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        patchqueue.check(replace(from_env(), home=tmp_path))
    (problem,) = caught.value.problems
    assert problem.hint == "inv fetch --stack ci,story"
    assert problem.message.count("flashinfer_python-0.7.2.tar.gz") == 1


def test_the_real_queue_applies_and_its_locks_are_true() -> None:
    """Skips as NOT_RUN unless all sources with patches are in the store."""
    try:
        found = patchqueue.check(from_env())
    except UserError as error:
        pytest.skip(f"NOT_RUN: {error}")
    assert {row.pinned.stacks[0] for row in found if row.pinned} >= {"story"}
