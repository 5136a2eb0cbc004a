"""The order of a build, and what it does again: the engine is a fake, since processes end at its boundary."""

from __future__ import annotations

import hashlib
import io
import shutil
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kiln import build, building, inventory, result
from kiln.build import Build, Options
from kiln.engines.progress import Line
from kiln.errors import CheckFailed, KilnError
from kiln.plan import Plan
from kiln.result import Layer, Result
from kiln.settings import Settings, from_env
from kiln.store import Store
from kiln.view import View
from tests.fakeengine import FakeEngine

pytestmark = pytest.mark.unit
DIGEST = "sha256:" + "1" * 64


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


def test_gzip_makes_its_variant_once_and_is_not_finished_before(
    settings: Settings, plan: Plan, done: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def write_gzip(settings: Settings, found: Result, say: Any = None) -> Result:
        done.append("gzip")
        Path(found.gzip_layout).mkdir(exist_ok=True)
        (Path(found.gzip_layout) / "index.json").write_text("{}")
        return replace(found, gzip=DIGEST)

    monkeypatch.setattr("kiln.layout.write_gzip", write_gzip)
    run(settings, plan, FakeEngine())
    assert building.finished(settings, plan, None, Options(compression="gzip")) is None
    assert run(settings, plan, FakeEngine(), compression="gzip").gzip == DIGEST
    assert building.finished(settings, plan, None, Options(compression="gzip")) is not None
    assert done == ["fetch", "layout", "test", "fetch", "gzip"]


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


TOTAL = -1.0


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ([Line(3, "start", "[kernels 2/3] RUN make")], ("RUN make", 0.0, 0.0)),
        ([Line(3, "start", "RUN make")], ("RUN make", 0.0, 0.0)),
        ([Line(0, "output", "KILN unit 3 12")], ("unit 3 of 12", 0.0, TOTAL)),
        ([Line(0, "output", "KILN unit"), Line(0, "output", "KILN ")], ("", 0.0, 0.0)),
        ([Line(0, "status", "KILN unit 1 2")], ("", 0.0, 0.0)),
    ],
)  # fmt: skip
def test_what_any_builder_says_drives_the_view(
    said: list[Line], shown: tuple[str, float, float], settings: Settings, plan: Plan, done: list[str]
) -> None:
    with View(build.stages(plan), out=io.StringIO()) as view:
        watcher = build._Watcher(view, "flashinfer", plan)
        view.start("flashinfer")
        for line in said:
            watcher.line(line)
        stage = view.stages["flashinfer"]
        total = sum(module.core_s for module in plan.modules) if shown[2] == TOTAL else 0.0
        assert (stage.detail, stage.done, stage.total) == (*shown[:2], total)


def test_a_finished_unit_counts_with_its_share_of_the_module_and_the_pace_is_the_compilers(
    settings: Settings, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    module = max(plan.modules, key=lambda one: one.units)
    share, total = module.core_s / module.units, sum(each.core_s for each in plan.modules)
    with View(build.stages(plan), out=io.StringIO()) as view:
        watcher = build._Watcher(view, "flashinfer", plan)
        stage = view.stages["flashinfer"]
        view.start("flashinfer")
        now[0] += 300  # installing and unpacking, which is no measure of how long compiling takes
        watcher.line(Line(9, "output", "KILN kernels total=6 units=8"))
        now[0] += 10
        for output in (f"/w/cached_ops/{module.name}/a.cuda.o", f"/w/cached_ops/{module.name}/{module.name}.so", "?"):
            watcher.line(Line(9, "output", f'KILN cost {{"output": "{output}", "core_s": 99}}'))
        watcher.line(Line(9, "output", "KILN cost half a li"))
        watcher.line(Line(9, "output", "KILN unit 1 8"))
        assert (stage.detail, stage.done, stage.total) == ("unit 1 of 8", share, total)
        assert stage.eta_s() == pytest.approx(10 * (total - share) / share)
        watcher.line(Line(9, "output", f"KILN module 1 6 {module.name} 12.5"))
        assert (stage.detail, stage.done) == (f"module 1 of 6: {module.name}", share)


def test_a_patch_whose_context_moved_stops_the_build_before_any_stage(
    settings: Settings, plan: Plan, done: list[str]
) -> None:
    """The source is one in which every patched file has other lines: file and hunk are named, and nothing was begun."""
    from tests.unit.test_patchqueue import sdist

    named = {file: "other = 1\n" for patch in plan.patches if patch.component == "flashinfer" for file in patch.files}
    data = sdist(settings.home.parent / "made", {"pyproject.toml": "[project]\n", **named}).read_bytes()
    sha256 = hashlib.sha256(data).hexdigest()
    Store(settings.store).add(io.BytesIO(data), sha256, len(data))
    moved = tuple(
        replace(one, size=len(data), sha256=sha256) if one.name == "flashinfer-python" else one
        for one in plan.lock.sources
    )
    engine = FakeEngine()
    with pytest.raises(CheckFailed, match=r"0001-sort-the-generated-fused-moe-units: failed: \S+, hunk \d+ of \d+"):
        run(settings, replace(plan, lock=replace(plan.lock, sources=moved)), engine)
    assert (engine.built, done) == ([], [])
