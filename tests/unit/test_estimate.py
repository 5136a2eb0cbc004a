"""Whether a build fits on the disk, told before it starts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from kiln import estimate, inventory
from kiln.errors import UserError
from kiln.plan import Plan
from kiln.settings import Settings, from_env
from kiln.store import Store
from tests.fakeengine import FakeEngine

pytestmark = pytest.mark.unit


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return replace(from_env({}), home=tmp_path / "not/yet/home")


@pytest.fixture
def plan(settings: Settings) -> Plan:
    return inventory.plan_for(settings, gpu="sm120", stack="ci", kernel_set="", image="")


@pytest.fixture
def store(settings: Settings) -> Store:
    return Store(settings.store)


def test_an_image_needs_its_inputs_while_it_is_built_and_keeps_what_they_unpack_to(plan: Plan) -> None:
    raw = {image.name: estimate.raw_bytes(plan, image) for image in plan.chain}
    work = {image.name: estimate.work_bytes(plan, image) for image in plan.chain}
    cuda = sum(wheel.size for wheel in plan.chain[1].wheels)
    assert (raw["cuda"], work["cuda"]) == (int(cuda * 2.6), cuda)
    debs = sum(deb.size for deb in plan.lock.debs)
    assert (raw["base"], work["base"]) == (debs * 4, debs)
    assert work["flashinfer"] > 2 * 10**9


def test_what_is_there_needs_nothing_more(plan: Plan, store: Store) -> None:
    engine = FakeEngine()
    fresh = estimate.need_bytes(plan, engine, store)
    assert fresh["downloads"] == sum({one.sha256: one.size for one in plan.artefacts()}.values())
    engine.refs = {image.ref for image in plan.chain[:-1]}
    assert estimate.need_bytes(plan, engine, store)["images"] == estimate.raw_bytes(plan, plan.chain[-1])
    engine.refs.add(plan.chain[-1].ref)
    assert estimate.need_bytes(plan, engine, store) == {**fresh, "images": 0}


def test_of_needs_that_follow_each_other_the_largest_counts(plan: Plan, store: Store) -> None:
    need = estimate.need_bytes(plan, FakeEngine(), store)
    raw = sum(estimate.raw_bytes(plan, image) for image in plan.chain)
    assert (need["images"], need["layout and test"]) == (raw, int(raw * 2.6))
    small = replace(plan, chain=tuple(replace(image, wheels=()) for image in plan.chain if image.name != "base"))
    assert estimate.need_bytes(small, FakeEngine(), store)["inputs of a step"] == 2 * 10**9


def test_too_small_a_disk_is_told_with_what_is_needed_for_what(
    settings: Settings, plan: Plan, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = FakeEngine()
    need = estimate.need_bytes(plan, engine, store)
    monkeypatch.setattr("kiln.host.disk_free", lambda path: 1_250_000_000)
    with pytest.raises(UserError) as caught:
        estimate.require_disk(settings, plan, engine, store)
    assert str(caught.value) == (
        f"{settings.home}: the build needs {sum(need.values()) / 1e9 + 2:.1f} GB of disk "
        f"({', '.join(f'{name} {size / 1e9:.1f} GB' for name, size in need.items())}), 1.2 GB are free\n"
        "  hint: free some space, `inv gc`, or set KILN_HOME to a folder on another disk"
    )


def test_the_smaller_of_the_two_disks_counts(
    settings: Settings, plan: Plan, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "engine"
    root.mkdir()
    engine = FakeEngine(root=root)
    monkeypatch.setattr("kiln.host.disk_free", lambda path: 10**9 if path == root else 10**15)
    with pytest.raises(UserError, match=r"1\.0 GB are free"):
        estimate.require_disk(settings, plan, engine, store)


def test_a_large_disk_is_no_reason_to_speak(
    settings: Settings, plan: Plan, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = FakeEngine()
    monkeypatch.setattr("kiln.host.disk_free", lambda path: 10**15)
    estimate.require_disk(settings, plan, engine, store)
