"""From the engine's archive to the plan's layout, with the real canonicaliser."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from kiln import inventory, layout
from kiln.errors import UserError
from kiln.plan import Plan
from kiln.result import Result
from kiln.settings import Settings, from_env
from tests.madeimages import Entry, docker_archive, layer

pytestmark = pytest.mark.unit
# Layers of the whole chain below and with each image.
COUNTS = {"base": 1, "cuda": 3, "torch": 4, "flashinfer": 5, "sglang": 6}


class Saves:
    """An engine with a chain of images; `salt` goes into the newest layer."""

    def __init__(self, salt: bytes = b"", count: int = 6) -> None:
        self.layers = [layer([Entry(f"file-{n}", data=b"%d" % n + salt * (n == 5))]) for n in range(count)]

    def layer_count(self, ref: str) -> int:
        return COUNTS[ref.removeprefix("kiln/").partition(":")[0]]

    @contextmanager
    def save(self, ref: str) -> Iterator[BinaryIO]:
        assert ref.startswith("kiln/sglang:")
        yield io.BytesIO(docker_archive(self.layers))


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return replace(from_env({}), home=tmp_path / "home")


@pytest.fixture
def plan(settings: Settings) -> Plan:
    return inventory.plan_for(settings, gpu="sm120", stack="ci", kernel_set="", image="")


def write(settings: Settings, plan: Plan, engine: Any) -> Result:
    return layout.write(settings, plan, engine, lambda text: None)


def blob(found: Result, digest: str) -> Any:
    return json.loads((Path(found.layout) / "blobs/sha256" / digest.removeprefix("sha256:")).read_text())


def test_each_layer_belongs_to_the_image_that_added_it(settings: Settings, plan: Plan) -> None:
    found = write(settings, plan, Saves())
    assert [one.image for one in found.layers] == ["base", "cuda", "cuda", "torch", "flashinfer", "sglang"]
    assert Path(found.layout) == layout.path(settings, plan) == settings.home / "images" / plan.id[:12]
    assert (found.plan, found.tag, found.repository) == (plan.id, plan.tag, "kiln/sglang")


def test_the_config_has_the_labels_of_the_plan_and_its_time(settings: Settings, plan: Plan) -> None:
    found = write(settings, plan, Saves())
    config = blob(found, blob(found, found.digest)["config"]["digest"])
    assert plan.labels().items() <= config["config"]["Labels"].items()
    assert config["created"].startswith("2026-")
    assert "Hostname" not in config["config"]


def test_the_same_image_gives_the_same_digest_anywhere(settings: Settings, plan: Plan, tmp_path: Path) -> None:
    there = replace(settings, home=tmp_path / "elsewhere")
    assert write(settings, plan, Saves()).digest == write(there, plan, Saves()).digest


def test_another_top_layer_leaves_those_below_as_they_are(settings: Settings, plan: Plan) -> None:
    first, second = (write(settings, plan, Saves(salt)) for salt in (b"", b"x"))
    assert [one.digest for one in first.layers[:5]] == [one.digest for one in second.layers[:5]]
    assert first.layers[5].digest != second.layers[5].digest
    assert {path.name for path in (settings.home / "images").iterdir()} == {plan.id[:12]}


def test_an_image_with_more_layers_than_its_chain_is_refused(settings: Settings, plan: Plan) -> None:
    with pytest.raises(UserError, match="the image has 5 layers, 6 were expected"):
        write(settings, plan, Saves(count=5))


def test_the_work_is_told_in_gigabytes(settings: Settings, plan: Plan) -> None:
    said: list[str] = []
    engine: Any = Saves()
    layout.write(settings, plan, engine, said.append)
    assert said[-1] == "0.0 GB"
