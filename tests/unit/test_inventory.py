"""What there is: every pair of stack and GPU, and how far each got."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kiln import engines, inventory, result, versions
from kiln.inventory import HEADINGS, Row
from kiln.result import Layer, Result
from kiln.services import Service
from kiln.settings import ROOT, Settings, from_env

pytestmark = pytest.mark.unit
DIGEST = "sha256:" + "1" * 64


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return replace(from_env({}), home=tmp_path / "home")


def rows(settings: Settings) -> dict[tuple[str, str], Row]:
    return {(row.stack, row.gpu): row for row in inventory.collect(settings)}


def test_every_supported_pair_is_listed_with_its_plan(settings: Settings) -> None:
    loaded = versions.load(ROOT / "versions.yaml")
    found = rows(settings)
    assert set(found) == {
        (name, gpu) for name, one in loaded.stacks.items() for gpu in loaded.gpus if one.supports(gpu)
    }
    plan = inventory.plan_for(settings, gpu="sm120", stack="ci", kernel_set="", image="")
    assert found["ci", "sm120"] == Row("ci", "sm120", "ci", locked=True, plan=plan.id)


def test_a_built_and_pushed_image_is_told_with_its_digest(settings: Settings, tmp_path: Path) -> None:
    plan = inventory.plan_for(settings, gpu="sm120", stack="ci", kernel_set="", image="")
    (tmp_path / "index.json").write_text("{}")
    layers = (Layer(DIGEST, 1, 2, 3, "base"),)
    done = Result(plan.id, plan.tag, DIGEST, plan.repository, str(tmp_path), layers, (), "3 passed", "r/x@y")
    result.save(settings, done)
    found = rows(settings)
    assert found["ci", "sm120"].cells() == (
        "ci", "sm120", "ci", "yes", plan.id[:12], "yes", "1" * 12, "3 passed", "yes",
    )  # fmt: skip
    assert found["ci", "sm90"].cells()[5:] == ("no", "", "", "no")
    assert len(found["ci", "sm90"].cells()) == len(HEADINGS)


def test_a_stack_without_locks_is_listed_as_such(settings: Settings, tmp_path: Path) -> None:
    root = tmp_path / "tree"
    for name in ("images", "locks", "patches", "templates", "tests/image", "tests/unit"):
        shutil.copytree(ROOT / name, root / name)
    shutil.copy(ROOT / "versions.yaml", root)
    (root / "locks/ci/python.toml").unlink()
    found = rows(replace(settings, root=root))
    assert found["ci", "sm120"] == Row("ci", "sm120", "ci", locked=False)
    assert found["current", "sm120"].locked


def test_rows_are_plain_data(settings: Settings) -> None:
    lines = [row.as_dict() for row in inventory.collect(settings)]
    assert json.loads(json.dumps(lines)) == lines
    assert set(lines[0]) == {"stack", "gpu", "kernels", "locked", "plan", "digest", "tests", "pushed"}


class Has:
    def image_id(self, ref: str) -> str | None:
        return ref if ref.startswith("kiln/base:") else None


@pytest.mark.parametrize(("engine", "built"), [(None, []), (Has(), ["base"])])
def test_the_engine_tells_which_images_are_built(
    settings: Settings, engine: Any, built: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "quietly", lambda settings: engine)
    plan = inventory.plan_for(settings, gpu="sm120", stack="ci", kernel_set="", image="")
    found = inventory.built_images(settings, plan)
    assert list(found) == ["base", "cuda", "torch", "flashinfer", "sglang"]
    assert [name for name, there in found.items() if there] == built


@pytest.mark.parametrize(
    ("env", "ours", "asked"),
    [({}, True, "unix:///ours"), ({}, False, ""), ({"DOCKER_HOST": "unix:///theirs"}, True, "")],
    ids=["ours", "none of ours", "the user's choice"],
)
def test_the_engine_that_kiln_started_is_asked_unless_the_user_chose_one(
    settings: Settings, env: dict[str, str], ours: bool, asked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    addresses: list[str] = []
    service = Service("engine", "unix:///ours", started_by_us=True, pid=1)
    registry = Service("registry", "localhost:1", started_by_us=True, pid=2)
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    monkeypatch.delenv("DOCKER_CONTEXT", raising=False)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("kiln.services.running", lambda settings: (service, registry) if ours else (registry,))
    monkeypatch.setattr("kiln.engines.docker.quietly", addresses.append)
    assert engines.quietly(settings) is None
    assert addresses == [asked]
