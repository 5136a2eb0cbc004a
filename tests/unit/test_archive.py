from __future__ import annotations

import hashlib
import io
import tarfile
from pathlib import Path

import pytest

from kiln import archive, locks
from kiln.errors import UserError
from kiln.locks import Artifact, Deb, LockFile, Wheel
from kiln.store import Store

pytestmark = pytest.mark.unit

DATA = {
    "a-1-py3-none-any.whl": b"a" * 3000,
    "b-1.tar.gz": b"b" * 70_000,
    "c_1_all.deb": b"c" * 500,
    "uv-1-py3-none-any.whl": b"u",
}
SHA = {name: hashlib.sha256(data).hexdigest() for name, data in DATA.items()}


def _fields(file: str) -> tuple[str, str, str, int, str]:
    return file[0], "1", file, len(DATA[file]), SHA[file]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A tree with the locks of one stack of four artefacts."""
    wheel, sdist, deb, tool = DATA
    files = {
        "apt": LockFile("f00", 5, {"": (Deb(*_fields(deb), "all", f"pool/c/{deb}", "sid", 5),)}, "sid"),
        "python": LockFile("f00", 5, {"torch": (Wheel(*_fields(wheel), "torch"),)}),
        "sources": LockFile("f00", 5, {"": (Artifact(*_fields(sdist)),)}),
        "tools": LockFile("f00", 5, {"": (Artifact(*_fields(tool)),)}),
    }
    for part, lock in files.items():
        path = tmp_path / "tree" / locks.path_of("ci", part)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(locks.dump(lock, "inv lock"))
    return tmp_path / "tree"


@pytest.fixture
def full(tmp_path: Path) -> Store:
    store = Store(tmp_path / "full")
    for name, data in DATA.items():
        store.add(io.BytesIO(data), SHA[name], len(data))
    return store


@pytest.fixture
def exported(root: Path, full: Store, tmp_path: Path) -> Path:
    archive.export(root, full, ["ci"], tmp_path / "air.tar")
    return tmp_path / "air.tar"


def test_what_was_exported_is_complete_where_it_is_imported(root: Path, exported: Path, tmp_path: Path) -> None:
    store = Store(tmp_path / "empty")
    assert archive.load(root, store, exported) == archive.Imported(4, 0, sum(map(len, DATA.values())))
    assert all(store.verify(one) for one in locks.load(root, "ci").artifacts())
    assert archive.load(root, store, exported) == archive.Imported(0, 4, 0)


def test_an_export_is_the_same_bytes_each_time(root: Path, full: Store, exported: Path, tmp_path: Path) -> None:
    archive.export(root, full, ["ci"], tmp_path / "again.tar")
    assert (tmp_path / "again.tar").read_bytes() == exported.read_bytes()


def test_an_incomplete_store_is_not_exported(root: Path, full: Store, tmp_path: Path) -> None:
    full.path(SHA["b-1.tar.gz"]).unlink()
    with pytest.raises(UserError, match=r"1 of 4 artefacts are not in the store, b-1\.tar\.gz .*\n  hint: inv fetch"):
        archive.export(root, full, ["ci"], tmp_path / "air.tar")
    assert not (tmp_path / "air.tar").exists()


@pytest.mark.parametrize("share", [0.01, 0.2, 0.5, 0.8, 0.95])
def test_an_archive_that_is_cut_short_is_refused_and_leaves_only_whole_files(
    root: Path, exported: Path, tmp_path: Path, share: float
) -> None:
    data = exported.read_bytes()
    content = data.rstrip(b"\0")
    exported.write_bytes(data[: int(len(content) * share)])
    store = Store(tmp_path / "empty")
    with pytest.raises(UserError, match=r"(damaged or )?cut short|no archive of kiln's"):
        archive.load(root, store, exported)
    assert all(store.verify(one) for one in locks.load(root, "ci").artifacts() if store.has(one))


def test_an_archive_that_ends_between_two_files_is_cut_short(root: Path, exported: Path, tmp_path: Path) -> None:
    with tarfile.open(exported) as tar:
        last = tar.getmembers()[-1]
    exported.write_bytes(exported.read_bytes()[: last.offset])
    with pytest.raises(UserError, match="the archive is cut short: 1 artefacts are missing"):
        archive.load(root, Store(tmp_path / "empty"), exported)


def test_a_flipped_byte_in_an_archive_is_refused_with_both_hashes(root: Path, exported: Path, tmp_path: Path) -> None:
    exported.write_bytes(exported.read_bytes().replace(b"b" * 70_000, b"b" * 69_999 + b"x"))
    store = Store(tmp_path / "empty")
    with pytest.raises(UserError, match=r"b-1\.tar\.gz: the bytes changed: locked sha256") as caught:
        archive.load(root, store, exported)
    assert SHA["b-1.tar.gz"] in str(caught.value)
    assert not store.path(SHA["b-1.tar.gz"]).exists()


def test_a_member_that_the_index_does_not_name_is_refused(root: Path, exported: Path, tmp_path: Path) -> None:
    with tarfile.open(exported, "a") as tar:
        tar.addfile(tarfile.TarInfo("store/../../evil"))
    with pytest.raises(UserError, match="which its index does not name"):
        archive.load(root, Store(tmp_path / "empty"), exported)


@pytest.mark.parametrize("data", [b"", b"text", b"\x1f\x8b\x08\x00junk"])
def test_a_file_that_is_no_archive_is_refused(root: Path, tmp_path: Path, data: bytes) -> None:
    (tmp_path / "x.tar").write_bytes(data)
    with pytest.raises(UserError, match=r"damaged or cut short|no archive"):
        archive.load(root, Store(tmp_path / "empty"), tmp_path / "x.tar")


def test_a_file_that_does_not_exist_is_named(root: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"x\.tar does not exist"):
        archive.load(root, Store(tmp_path / "empty"), tmp_path / "x.tar")


def test_locks_that_differ_from_the_tree_are_told(root: Path, exported: Path, tmp_path: Path) -> None:
    (root / "locks/ci/apt.toml").write_text("other")
    assert archive.load(root, Store(tmp_path / "empty"), exported).other_locks == ("locks/ci/apt.toml",)


def test_a_single_wheel_is_imported_if_a_lock_asks_for_it(root: Path, tmp_path: Path) -> None:
    (root / "locks/kernels").mkdir()
    (tmp_path / "renamed.whl").write_bytes(DATA["a-1-py3-none-any.whl"])
    store = Store(tmp_path / "empty")
    assert archive.load(root, store, tmp_path / "renamed.whl") == archive.Imported(1, 0, 3000)
    assert archive.load(root, store, tmp_path / "renamed.whl") == archive.Imported(0, 1, 0)


@pytest.mark.parametrize(
    ("name", "message"),
    [("a-1-py3-none-any.whl", f"locked sha256 {SHA['a-1-py3-none-any.whl']}, found"), ("x.whl", "is in no lock")],
)
def test_a_single_file_that_no_lock_asks_for_is_refused(root: Path, tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / name).write_bytes(b"other")
    with pytest.raises(UserError) as caught:
        archive.load(root, Store(tmp_path / "empty"), tmp_path / name)
    assert f"{name} is not what a lock asks for" in str(caught.value)
    assert message in str(caught.value)
