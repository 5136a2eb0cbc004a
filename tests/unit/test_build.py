"""The order of a build, and what it does again: the engine is a fake, since processes end at its boundary."""

from __future__ import annotations

import io
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from kiln import build, building, inventory, result
from kiln.build import Build, Options
from kiln.errors import CheckFailed, KilnError
from kiln.plan import Plan
from kiln.result import Layer, Result
from kiln.settings import Settings, from_env
from kiln.view import View

pytestmark = pytest.mark.unit
DIGEST = "sha256:" + "1" * 64


class FakeEngine:
    """Keeps names of images; fails at the image that it is told to."""

    def __init__(self) -> None:
        self.built: list[str] = []
        self.refs: set[str] = set()
        self.fail_at = ""
        self.args: dict[str, Mapping[str, str]] = {}
        self.secrets: dict[str, Mapping[str, Path]] = {}
        self.pause = threading.Event()
        self.pause.set()

    @property
    def variables(self) -> Mapping[str, str]:
        return {}

    def build(
        self, *, context: Path, dockerfile: Path, tag: str, args: Mapping[str, str], labels: Mapping[str, str],
        secrets: Mapping[str, Path], no_cache: bool, log: Path, on_line: Callable[[str], None],
    ) -> str:  # fmt: skip
        name = tag.removeprefix("kiln/").partition(":")[0]
        self.pause.wait(10)
        if name == self.fail_at:
            log.parent.mkdir(parents=True, exist_ok=True)
            log.write_text("it broke")
            raise KilnError("the engine broke")
        self.built.append(name)
        self.args[name], self.secrets[name] = dict(args), dict(secrets)
        self.refs.add(tag)
        return f"sha256:{name}"

    def image_id(self, ref: str) -> str | None:
        return ref if ref in self.refs else None

    def images(self, prefix: str) -> tuple[str, ...]:
        return tuple(sorted(ref for ref in self.refs if ref.startswith(prefix)))

    def layer_count(self, ref: str) -> int:
        return 1

    def tag(self, ref: str, name: str) -> None:
        self.refs.add(name)

    def remove(self, ref: str) -> None:
        self.refs.discard(ref)

    @contextmanager
    def save(self, ref: str) -> Iterator[BinaryIO]:
        yield io.BytesIO()

    @contextmanager
    def load(self) -> Iterator[BinaryIO]:
        yield io.BytesIO()

    def version(self) -> str:
        return "fake"

    def data_root(self) -> Path | None:
        return None

    def describe(self) -> str:
        return "fake"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return replace(from_env({}), home=tmp_path / "home")


@pytest.fixture
def plan(settings: Settings) -> Plan:
    return inventory.plan_for(settings, gpu="sm120", stack="ci", kernel_set="", image="")


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Replace what needs inputs or a real engine; returns the names of the stages that ran."""
    names: list[str] = []

    def prepare(settings: Settings, plan: Plan, image: Any, store: Any, dest: Path, log: Path) -> Path:
        shutil.rmtree(dest, ignore_errors=True)
        dest.mkdir(parents=True)
        return dest

    def write(settings: Settings, plan: Plan, engine: Any, say: Any) -> Result:
        names.append("layout")
        folder = settings.home / "images" / plan.id[:12]
        folder.mkdir(parents=True)
        (folder / "index.json").write_text("{}")
        return Result(plan.id, plan.tag, DIGEST, plan.repository, str(folder), (Layer(DIGEST, 1, 2, 3, "base"),))

    def test_layout(*args: Any) -> str:
        names.append("test")
        return "3 passed"

    monkeypatch.setattr("kiln.fetch.fetch", lambda *args, **kwargs: names.append("fetch"))
    monkeypatch.setattr("kiln.context.prepare", prepare)
    monkeypatch.setattr("kiln.layout.write", write)
    monkeypatch.setattr("kiln.imagetest.test_layout", test_layout)
    return names


def run(settings: Settings, plan: Plan, engine: FakeEngine, **options: Any) -> Result:
    with View(build.stages(plan), out=io.StringIO()) as view:
        return Build(settings, plan, engine, None, Options(**options), view).run()


def test_images_are_built_from_the_root_up_each_on_the_one_before(
    settings: Settings, plan: Plan, done: list[str]
) -> None:
    engine = FakeEngine()
    built = run(settings, plan, engine)
    assert engine.built == ["base", "cuda", "torch", "flashinfer", "sglang"]
    assert [engine.args[name].get("PARENT", "")[:8] for name in engine.built] == [
        "", "kiln/bas", "kiln/cud", "kiln/tor", "kiln/fla",
    ]  # fmt: skip
    assert done == ["fetch", "layout", "test"]
    assert (built.digest, built.tests) == (DIGEST, "3 passed")
    assert [cost.name for cost in built.stages][:3] == ["fetch", "base", "cuda"]


def test_a_second_run_builds_nothing(settings: Settings, plan: Plan, done: list[str]) -> None:
    engine = FakeEngine()
    first = run(settings, plan, engine)
    engine.built.clear()
    assert run(settings, plan, engine).digest == first.digest
    assert engine.built == []
    assert done == ["fetch", "layout", "test", "fetch"]
    assert building.finished(settings, plan, None, Options()) is not None


def test_a_build_that_broke_off_goes_on_at_the_image_that_failed(
    settings: Settings, plan: Plan, done: list[str]
) -> None:
    engine = FakeEngine()
    engine.fail_at = "flashinfer"
    with pytest.raises(KilnError, match="the engine broke"):
        run(settings, plan, engine)
    assert building.finished(settings, plan, None, Options()) is None
    engine.fail_at = ""
    run(settings, plan, engine)
    assert engine.built == ["base", "cuda", "torch", "flashinfer", "sglang"]


def test_jobs_enter_as_a_secret_and_only_if_they_are_asked_for(settings: Settings, plan: Plan, done: list[str]) -> None:
    engine = FakeEngine()
    run(settings, plan, engine, jobs=3)
    assert engine.secrets["flashinfer"]["kiln-jobs"].read_text() == "3\n"
    engine.refs.clear()
    run(settings, replace(plan, id="f" * 64), engine)
    assert engine.secrets["flashinfer"] == {}


def test_the_epoch_of_an_image_is_that_of_its_own_newest_input(plan: Plan) -> None:
    epochs = [image.epoch for image in plan.chain]
    assert epochs == sorted(epochs)
    assert epochs[0] < epochs[-1] == plan.epoch


def test_two_builds_at_once_build_each_image_once(settings: Settings, plan: Plan, done: list[str]) -> None:
    engine = FakeEngine()
    engine.pause.clear()
    runs = [threading.Thread(target=run, args=(settings, plan, engine)) for _ in range(2)]
    for thread in runs:
        thread.start()
    engine.pause.set()
    for thread in runs:
        thread.join(30)
    assert engine.built == ["base", "cuda", "torch", "flashinfer", "sglang"]


def test_a_failed_image_test_keeps_the_layout_but_no_verdict(
    settings: Settings, plan: Plan, done: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any) -> str:
        raise CheckFailed("the image tests failed")

    monkeypatch.setattr("kiln.imagetest.test_layout", fail)
    with pytest.raises(CheckFailed):
        run(settings, plan, FakeEngine())
    kept = result.load(settings, plan.id)
    assert kept is not None
    assert kept.tests == ""
    assert building.finished(settings, plan, None, Options()) is None
    assert building.finished(settings, plan, None, Options(test=False)) is not None


def test_a_result_whose_layout_is_gone_is_no_result(settings: Settings, plan: Plan, done: list[str]) -> None:
    built = run(settings, plan, FakeEngine())
    (Path(built.layout) / "index.json").unlink()
    assert result.load(settings, plan.id) is None


def test_the_table_has_every_stage_and_keeps_the_costs_of_an_earlier_run(
    settings: Settings, plan: Plan, done: list[str]
) -> None:
    first = run(settings, plan, FakeEngine())
    assert [cost.name for cost in first.stages] == list(build.stages(plan))
    again = run(settings, plan, FakeEngine())
    known = {cost.name: cost.wall_s for cost in first.stages}
    assert {cost.name for cost in again.stages if cost.state == "cached"} == {"layout", "test", "push"}
    assert all(cost.wall_s == known[cost.name] for cost in again.stages if cost.state == "cached")
