from __future__ import annotations

import time
from pathlib import Path

import pytest

from kiln import images, locks, resolve, versions
from kiln.errors import UserError
from kiln.images import Image
from kiln.intent import Stack
from kiln.locks import Artifact, Deb, LockFile, Wheel
from kiln.settings import ROOT

pytestmark = pytest.mark.unit

SHA = "ab" * 32
DEB = Deb("libc6", "2.36-9", "libc6_2.36-9_amd64.deb", 7, SHA, "amd64", "pool/main/g/libc6_2.36-9_amd64.deb", "sid", 5)
CHAIN = tuple(images.load_all(ROOT).values())
STACK = versions.load(ROOT / "versions.yaml").stack("current")


def _written(root: Path, name: str, lock: LockFile) -> LockFile:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(locks.dump(lock, "inv lock"))
    return locks.read(root, name)


@pytest.mark.parametrize(
    ("name", "lock"),
    [
        ("locks/s/apt.toml", LockFile("f00", 5, {"": (DEB,)}, "sid")),
        ("locks/s/apt.toml", LockFile("f00", 0, {"": ()})),
        ("locks/s/sources.toml", LockFile("f00", 5, {"": (Artifact("a", "1", "a-1.tar.gz", 3, SHA),)})),
        ("locks/s/python.toml", LockFile("f00", 5, {"cuda": (Wheel("a", "1+cpu", "a-1+cpu.whl", 3, SHA, "cuda"),)})),
    ],
)
def test_a_lock_reads_back_as_it_was_written(tmp_path: Path, name: str, lock: LockFile) -> None:
    assert _written(tmp_path, name, lock) == lock


def test_a_lock_has_one_line_an_artefact_sorted_and_no_address(tmp_path: Path) -> None:
    bash = Deb("bash", "1", "bash.deb", 1, SHA, "all", "pool/b.deb")
    text = locks.dump(LockFile("f00", 5, {"": (DEB, bash)}, "sid"), "inv lock")
    lines = [line for line in text.splitlines() if "sha256" in line]
    assert [line.split('"')[1] for line in lines] == ["bash", "libc6"]
    assert "://" not in text


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{name = "a", version = "1", size = 1, sha256 = "abc", file = "a.whl"}', "a has no sha256 or no size"),
        (f'{{name = "a", version = "1", size = "1", sha256 = "{SHA}", file = "a.whl"}}', "a has no sha256 or no size"),
        (f'{{name = "a", version = "1", size = 1, sha256 = "{SHA}", file = "../a.whl"}}', "a has the path '../a.whl'"),
        (f'{{name = "a", version = "1", size = 1, sha256 = "{SHA}", file = "x/a.whl"}}', "a has the path 'x/a.whl'"),
        (f'{{name = "a", version = "1", size = 1, sha256 = "{SHA}", arch = "all", path = "/etc/x"}}', "path '/etc/x'"),
        (f'{{name = "a", version = "1", size = 1, sha256 = "{SHA}"}}', "the lock is damaged: 'file'"),
        ("{", "the lock is damaged"),
    ],
)
def test_a_damaged_lock_is_refused_with_its_path_and_command(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "locks/ci/sources.toml"
    path.parent.mkdir(parents=True)
    path.write_text(f'inputs = "f00"\nepoch = 5\nartifacts = [\n    {line},\n]\n')
    with pytest.raises(UserError) as caught:
        locks.read(tmp_path, "locks/ci/sources.toml")
    assert message in str(caught.value)
    assert str(caught.value).startswith("locks/ci/sources.toml: ")
    assert "hint: inv lock --sources --stack ci" in str(caught.value)


def test_a_missing_lock_names_the_command(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"apt\.toml: this lock does not exist\n  hint: inv lock --apt --stack ci"):
        locks.load(tmp_path, "ci")


CHANGES = {
    "a version that is built from source": ({"components": {**STACK.components, "flashinfer": "1"}}, {"sources"}),
    "another root": ({"python_packages": {**STACK.python_packages, "torch": ("torch==1",)}}, {"python"}),
    "a constraint": ({"constraints": ("numpy<3",)}, {"python"}),
    "an override": ({"overrides": ("numpy==3",)}, {"python"}),
    "a date": ({"as_of": "2026-01-01"}, {"python"}),
    "the suite": ({"base": STACK.base.model_copy(update={"suite": "trixie"})}, {"apt", "python"}),
    "security": ({"base": STACK.base.model_copy(update={"security": True})}, {"apt"}),
    "the summary": ({"summary": "other"}, set[str]()),
    "a toolkit": ({"toolkit": "14.0"}, {"python"}),
    "the kernel set": ({"kernels": "full"}, set[str]()),
}


@pytest.mark.parametrize(("update", "stale"), CHANGES.values(), ids=CHANGES)
def test_an_edit_makes_just_the_locks_stale_that_depend_on_it(update: dict[str, object], stale: set[str]) -> None:
    edited = STACK.model_copy(update=update)
    assert {part for part in locks.PARTS if _inputs(part, CHAIN) != _inputs(part, CHAIN, edited)} == stale


@pytest.mark.parametrize(
    ("update", "stale"),
    [({"apt": ("vim",)}, {"apt"}), ({"sources": {}}, {"python", "sources"}), ({"python_globs": ("x*",)}, {"python"})],
)
def test_an_edited_image_makes_its_locks_stale(update: dict[str, object], stale: set[str]) -> None:
    edited = tuple(image.model_copy(update=update) for image in CHAIN)
    assert {part for part in locks.PARTS if _inputs(part, CHAIN) != _inputs(part, edited)} == stale


def _inputs(part: str, chain: tuple[Image, ...], stack: Stack = STACK) -> str:
    return locks.inputs(part, stack, chain)


def test_problems_name_each_missing_and_each_stale_lock_with_its_command(tmp_path: Path) -> None:
    intent = versions.load(ROOT / "versions.yaml")
    fresh = _inputs("apt", CHAIN, intent.stack("ci"))
    _written(tmp_path, "locks/ci/apt.toml", LockFile(fresh, 5, {"": (DEB,)}, "sid"))
    _written(tmp_path, "locks/ci/python.toml", LockFile("f00", 5, {}))
    problems = locks.problems(tmp_path, intent, CHAIN, "ci")
    found = {problem.source: (problem.message, problem.hint) for problem in problems}
    assert "locks/ci/apt.toml" not in found
    assert found["locks/ci/python.toml"][0].startswith("stale: ")
    assert found["locks/ci/python.toml"][1] == "inv lock --python --stack ci"
    assert found["locks/ci/sources.toml"] == ("this lock does not exist", "inv lock --sources --stack ci")
    assert found["locks/tools.toml"] == ("this lock does not exist", "inv lock --tools")


def test_staleness_is_told_in_milliseconds() -> None:
    intent = versions.load(ROOT / "versions.yaml")
    start = time.perf_counter()
    for stack in intent.stacks:
        locks.problems(ROOT, intent, CHAIN, stack)
    assert time.perf_counter() - start < 0.1


@pytest.mark.parametrize("stack", sorted(versions.load(ROOT / "versions.yaml").stacks))
def test_each_committed_lock_is_current_whole_and_without_addresses(stack: str) -> None:
    assert locks.problems(ROOT, versions.load(ROOT / "versions.yaml"), CHAIN, stack) == []
    lock = locks.load(ROOT, stack)
    assert {wheel.image for wheel in lock.wheels} <= {image.name for image in CHAIN}
    assert not {wheel.name for wheel in lock.wheels} & {source.name for source in lock.sources}
    assert len({wheel.name for wheel in lock.wheels}) == len(lock.wheels)
    assert lock.epoch >= max(deb.epoch for deb in lock.debs)
    assert all("://" not in path.read_text() for path in (ROOT / "locks" / stack).glob("*.toml"))


def test_changes_tell_old_and_new_and_bytes_that_changed_under_one_version() -> None:
    old = [Artifact("a", "1", "a", 1, "1" * 64), Artifact("b", "1", "b", 1, "2" * 64), Artifact("c", "1", "c", 1, SHA)]
    new = [Artifact("a", "2", "a", 1, "3" * 64), Artifact("b", "1", "b", 1, "4" * 64), Artifact("d", "1", "d", 1, SHA)]
    told = [str(change) for change in resolve.compare("lock", old, new)]
    assert told == [
        "a: 1 (11111111) -> 2 (33333333)",
        "b: 1 (22222222) -> 1 (44444444)",
        "c: 1 (abababab) -> gone",
        "d: new -> 1 (abababab)",
    ]
