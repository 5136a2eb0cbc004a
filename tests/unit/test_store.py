from __future__ import annotations

import hashlib
import io
import multiprocessing
import stat
import threading
from pathlib import Path

import pytest

from kiln.errors import UserError
from kiln.locks import Artifact
from kiln.store import Store

pytestmark = pytest.mark.unit

DATA = b"wheel" * 1000
SHA = hashlib.sha256(DATA).hexdigest()
WHEEL = Artifact("demo", "1.0", "demo-1.0-py3-none-any.whl", len(DATA), SHA)


def test_what_was_added_is_there_read_only_and_placed_under_its_own_name(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    store.add(io.BytesIO(DATA), SHA, len(DATA))
    assert store.has(WHEEL)
    assert store.verify(WHEEL)
    assert stat.S_IMODE(store.path(SHA).stat().st_mode) == 0o444
    placed = store.place(WHEEL, tmp_path / "context")
    assert placed.name == WHEEL.file
    assert placed.samefile(store.path(SHA))


def test_placing_twice_is_the_same_as_once(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    store.add(io.BytesIO(DATA), SHA, len(DATA))
    store.place(WHEEL, tmp_path / "context")
    assert store.place(WHEEL, tmp_path / "context").read_bytes() == DATA


@pytest.mark.parametrize("data", [DATA[:-1], DATA + b"x", b"other" * 1000, b""])
def test_bytes_that_changed_are_refused_with_both_hashes_and_leave_nothing(tmp_path: Path, data: bytes) -> None:
    store = Store(tmp_path)
    with pytest.raises(UserError, match="demo: the bytes changed") as caught:
        store.add(io.BytesIO(data), SHA, len(DATA), "demo")
    assert SHA in str(caught.value)
    assert f"found {hashlib.sha256(data).hexdigest()}" in str(caught.value)
    assert not store.has(WHEEL)
    assert list((tmp_path / "partial").iterdir()) == []


def test_placing_what_is_not_there_names_the_command(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"is not in the store\n  hint: inv fetch"):
        Store(tmp_path).place(WHEEL, tmp_path / "context")


def test_missing_gives_each_content_once_in_the_given_order(tmp_path: Path) -> None:
    other = Artifact("other", "1", "other.whl", 1, "0" * 64)
    store = Store(tmp_path)
    assert store.missing([WHEEL, other, WHEEL]) == [WHEEL, other]
    store.add(io.BytesIO(DATA), SHA, len(DATA))
    assert store.missing([WHEEL, other]) == [other]


def test_a_file_that_was_cut_is_missing_again(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.path(SHA).write_bytes(DATA[:-1])
    assert store.missing([WHEEL]) == [WHEEL]


def test_a_flipped_byte_is_found_by_verify_only(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.path(SHA).write_bytes(b"W" + DATA[1:])
    assert store.has(WHEEL)
    assert not store.verify(WHEEL)


def _add(folder: Path, data: bytes) -> None:
    Store(folder).add(io.BytesIO(data), hashlib.sha256(data).hexdigest(), len(data))


def test_processes_that_add_the_same_bytes_at_once_all_succeed(tmp_path: Path) -> None:
    data = b"z" * (8 << 20)
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_add, args=(tmp_path, data)) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert [worker.exitcode for worker in workers] == [0, 0, 0, 0]
    assert hashlib.sha256(Store(tmp_path).path(hashlib.sha256(data).hexdigest()).read_bytes()).hexdigest()
    assert list((tmp_path / "partial").iterdir()) == []


def test_an_unfinished_file_has_one_holder_and_the_next_never_writes_into_the_finished_one(tmp_path: Path) -> None:
    store = Store(tmp_path)
    second = threading.Thread(target=store.add, args=(io.BytesIO(DATA), SHA, len(DATA)))
    with store.partial(SHA) as part:
        part.write(DATA)
        second.start()
        second.join(0.3)
        assert second.is_alive()
        finished = store.commit(part, SHA).stat().st_ino
        link = tmp_path / "link"
        link.hardlink_to(store.path(SHA))
    second.join(10)
    assert not second.is_alive()
    assert (link.stat().st_ino, link.read_bytes()) == (finished, DATA)
    assert store.verify(WHEEL)
