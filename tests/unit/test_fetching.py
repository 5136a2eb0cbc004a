"""`inv fetch` as a whole, without network: stacks whose artefacts are in the store, or come in an archive."""

from __future__ import annotations

import hashlib
import io
from dataclasses import replace
from pathlib import Path

import pytest

from kiln import fetching, locks
from kiln.errors import UserError
from kiln.locks import Artifact, Deb, LockFile, Wheel
from kiln.settings import ROOT, Settings, from_env
from kiln.store import Store

pytestmark = pytest.mark.unit
DATA = {name: name.encode() * 1000 for name in ("c_1_all.deb", "a-1-py3-none-any.whl", "b-1.tar.gz", "uv-1.whl")}


def _fields(file: str) -> tuple[str, str, str, int, str]:
    return file[0], "1", file, len(DATA[file]), hashlib.sha256(DATA[file]).hexdigest()


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """A tree with the real versions.yaml whose stack `ci` has four artefacts."""
    deb, wheel, sdist, tool = DATA
    files = {
        "apt": LockFile("f00", 5, {"": (Deb(*_fields(deb), "all", f"pool/c/{deb}", "sid", 5),)}, "sid"),
        "python": LockFile("f00", 5, {"torch": (Wheel(*_fields(wheel), "torch"),)}),
        "sources": LockFile("f00", 5, {"": (Artifact(*_fields(sdist)),)}),
        "tools": LockFile("f00", 5, {"": (Artifact(*_fields(tool)),)}),
    }
    root = tmp_path / "tree"
    for part, lock in files.items():
        path = root / locks.path_of("ci", part)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(locks.dump(lock, "inv lock"))
    (root / "versions.yaml").write_text((ROOT / "versions.yaml").read_text())
    return replace(from_env({}), root=root, home=tmp_path / "home")


@pytest.fixture
def full(settings: Settings) -> Settings:
    fill(Store(settings.store))
    return settings


def fill(store: Store) -> None:
    for data in DATA.values():
        store.add(io.BytesIO(data), hashlib.sha256(data).hexdigest(), len(data))


def fetched(settings: Settings, *stacks: str, export: str = "", import_: str = "") -> list[str]:
    return list(fetching.fetch_stacks(settings, stacks, export=export, import_=import_))


def test_what_is_there_is_counted_and_nothing_is_asked_for(full: Settings) -> None:
    assert fetched(full, "ci") == ["ci: 0 files fetched (0.0 MB), 4 were there (0.0 MB)"]


def test_an_archive_carries_all_to_another_machine(full: Settings, tmp_path: Path) -> None:
    target = tmp_path / "air.tar"
    assert fetched(full, "ci", export=str(target))[-1].startswith(f"exported ci to {target} (")
    there = replace(full, home=tmp_path / "elsewhere")
    told = fetched(there, "ci", import_=str(target))
    assert told == [
        f"imported {target}: 4 files added (0.0 MB), 0 were there",
        "ci: 0 files fetched (0.0 MB), 4 were there (0.0 MB)",
    ]
    assert fetched(there, "ci", import_=str(target))[0] == f"imported {target}: 0 files added (0.0 MB), 4 were there"


def test_an_archive_of_other_locks_says_which(full: Settings, tmp_path: Path) -> None:
    target = tmp_path / "air.tar"
    fetched(full, "ci", export=str(target))
    lock = full.root / "locks/ci/apt.toml"
    lock.write_text(lock.read_text().replace("epoch = 5", "epoch = 6"))
    assert fetched(full, "ci", import_=str(target))[0].endswith("; its locks differ from these here: locks/ci/apt.toml")


def test_an_unknown_stack_is_told_before_anything_is_done(full: Settings, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"there is no stack 'cj'\n  hint: known: ci, current"):
        fetched(full, "ci", "cj", export=str(tmp_path / "air.tar"))
    assert not (tmp_path / "air.tar").exists()


def test_the_default_stack_is_that_of_the_file(full: Settings) -> None:
    with pytest.raises(UserError, match=r"locks/current/apt\.toml: this lock does not exist"):
        fetched(full)


def test_an_archive_that_is_not_there_is_told(full: Settings, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not exist"):
        fetched(full, "ci", import_=str(tmp_path / "none.tar"))
