"""`inv gc`: what goes, what stays, and that a running build keeps what it uses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from filelock import FileLock

from kiln import cleanup
from kiln.settings import Settings, from_env

pytestmark = pytest.mark.unit
IDLE, BUSY = "1" * 12, "2" * 12
LAYER, UNUSED = "a" * 64, "b" * 64


@dataclass
class Images:
    """An engine that keeps names."""

    refs: set[str] = field(default_factory=set)

    def images(self, prefix: str) -> tuple[str, ...]:
        return tuple(sorted(ref for ref in self.refs if ref.startswith(prefix)))

    def remove(self, ref: str) -> None:
        self.refs.discard(ref)


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Images:
    found = Images({f"kiln/base:{IDLE}", f"kiln-test/sglang:{IDLE}", "kiln-other:1", "debian:12"})
    monkeypatch.setattr("kiln.engines.quietly", lambda settings: found)
    return found


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """A state folder with two plans, a layout of each, one layer that a layout uses and one that none does."""
    home = tmp_path / "home"
    for plan in (IDLE, BUSY):
        for name in (f"builds/{plan}/context/base/Dockerfile", f"builds/{plan}/result.json", f"logs/{plan}/base.log",
                     f"images/{plan}/blobs/sha256/{LAYER}", f"images/{plan}/index.json"):  # fmt: skip
            written(home / name)
    for name in (f"layers/blobs/{LAYER}", f"layers/blobs/{UNUSED}", "layers/layers/x.json", "audit/facts/x.json",
                 "store/" + LAYER):  # fmt: skip
        written(home / name)
    return replace(from_env({}), home=home)


@pytest.fixture
def running(settings: Settings) -> Iterator[None]:
    """Another process, as far as the file lock can tell, builds one of the plans."""
    (settings.home / "locks").mkdir()
    with FileLock(settings.home / "locks" / f"{BUSY}.lock"):
        yield


def written(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(path.name)


def files(settings: Settings) -> set[str]:
    return {str(path.relative_to(settings.home)) for path in settings.home.rglob("*") if path.is_file()}


def test_leftovers_of_builds_and_unused_layers_go_and_all_else_stays(settings: Settings) -> None:
    before = files(settings)
    told = list(cleanup.clean(settings, everything=False))
    gone = {f"builds/{plan}/context/base/Dockerfile" for plan in (IDLE, BUSY)} | {f"layers/blobs/{UNUSED}"}
    assert before - files(settings) == gone
    assert len(told) == 3
    assert told[0] == f"removed {settings.builds / IDLE / 'context'} (0.0 MB)"
    assert list(cleanup.clean(settings, everything=False)) == []


@pytest.mark.usefixtures("running")
def test_a_running_build_keeps_its_context_and_the_layers(settings: Settings) -> None:
    before = files(settings)
    told = list(cleanup.clean(settings, everything=False))
    assert before - files(settings) == {f"builds/{IDLE}/context/base/Dockerfile"}
    assert told[-1].startswith("kept ")


@pytest.mark.usefixtures("running")
def test_a_running_build_keeps_all_it_has_even_if_everything_is_to_go(settings: Settings, engine: Images) -> None:
    written(settings.home / "images/.work-of-the-build/raw/0")
    before, refs = files(settings), set(engine.refs)
    list(cleanup.clean(settings, everything=True))
    assert {name.split("/")[1] for name in before - files(settings)} == {IDLE}
    assert {f"builds/{BUSY}/context/base/Dockerfile", f"images/{BUSY}/index.json", f"logs/{BUSY}/base.log",
            f"layers/blobs/{UNUSED}"} <= files(settings)  # fmt: skip
    assert engine.refs == refs


def test_everything_is_all_but_the_store_and_what_is_not_ours(settings: Settings, engine: Images) -> None:
    told = list(cleanup.clean(settings, everything=True))
    assert {name for name in files(settings) if not name.startswith("locks/")} == {"store/" + LAYER}
    assert engine.refs == {"kiln-other:1", "debian:12"}
    assert f"removed image kiln-test/sglang:{IDLE}" in told


def test_a_lock_that_nobody_holds_any_more_keeps_nothing(settings: Settings) -> None:
    written(settings.home / "locks" / f"{BUSY}.lock")
    list(cleanup.clean(settings, everything=False))
    assert not list(settings.builds.glob("*/context"))


def test_an_empty_home_is_no_error(tmp_path: Path) -> None:
    assert list(cleanup.clean(replace(from_env({}), home=tmp_path / "none"), everything=False)) == []


def test_without_an_engine_the_folders_go_all_the_same(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kiln.engines.quietly", lambda settings: None)
    list(cleanup.clean(settings, everything=True))
    assert not (settings.home / "images").exists()
