"""From the engine's archive to the plan's layout, with the real canonicaliser."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kiln import inventory, layout, oci
from kiln.errors import UserError
from kiln.plan import Plan
from kiln.result import Result
from kiln.settings import Settings, from_env
from tests.fakeengine import FakeEngine
from tests.madeimages import Entry, layer

pytestmark = pytest.mark.unit
# Layers of the whole chain below and with each image.
COUNTS = {"base": 1, "cuda": 3, "torch": 4, "flashinfer": 5, "sglang": 6}


def engine(salt: bytes = b"", count: int = 6) -> FakeEngine:
    """An engine with a chain of images; `salt` goes into the newest layer."""
    layers = [layer([Entry(f"file-{n}", data=b"%d" % n + salt * (n == 5))]) for n in range(count)]
    return FakeEngine(counts=COUNTS, layers=layers)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return replace(from_env({}), home=tmp_path / "home")


@pytest.fixture
def plan(settings: Settings) -> Plan:
    return inventory.plan_for(settings, gpu="sm120", stack="ci", kernel_set="", image="")


def write(settings: Settings, plan: Plan, found: Any) -> Result:
    return layout.write(settings, plan, found, lambda text: None)


def blob(found: Result, digest: str) -> Any:
    return json.loads((Path(found.layout) / "blobs/sha256" / digest.removeprefix("sha256:")).read_text())


def test_each_layer_belongs_to_the_image_that_added_it(settings: Settings, plan: Plan) -> None:
    found = write(settings, plan, engine())
    assert [one.image for one in found.layers] == ["base", "cuda", "cuda", "torch", "flashinfer", "sglang"]
    assert Path(found.layout) == layout.path(settings, plan) == settings.home / "images" / plan.id[:12]
    assert (found.plan, found.tag, found.repository) == (plan.id, plan.tag, "kiln/sglang")


def test_the_config_has_the_labels_of_the_plan_and_its_time(settings: Settings, plan: Plan) -> None:
    found = write(settings, plan, engine())
    config = blob(found, blob(found, found.digest)["config"]["digest"])
    assert plan.labels().items() <= config["config"]["Labels"].items()
    assert config["created"].startswith("2026-")
    assert "Hostname" not in config["config"]


def test_the_same_image_gives_the_same_digest_anywhere(settings: Settings, plan: Plan, tmp_path: Path) -> None:
    there = replace(settings, home=tmp_path / "elsewhere")
    assert write(settings, plan, engine()).digest == write(there, plan, engine()).digest


def test_another_top_layer_leaves_those_below_as_they_are(settings: Settings, plan: Plan) -> None:
    first, second = (write(settings, plan, engine(salt)) for salt in (b"", b"x"))
    assert [one.digest for one in first.layers[:5]] == [one.digest for one in second.layers[:5]]
    assert first.layers[5].digest != second.layers[5].digest
    assert {path.name for path in (settings.home / "images").iterdir()} == {plan.id[:12]}


def test_an_image_with_more_layers_than_its_chain_is_refused(settings: Settings, plan: Plan) -> None:
    with pytest.raises(UserError, match="the image has 5 layers, 6 were expected"):
        write(settings, plan, engine(count=5))


def test_the_work_is_told_in_gigabytes(settings: Settings, plan: Plan) -> None:
    said: list[str] = []
    layout.write(settings, plan, engine(), said.append)
    assert said[-1] == "0.0 GB"


def test_the_gzip_variant_lies_beside_the_layout_with_the_same_image_id(settings: Settings, plan: Plan) -> None:
    said: list[str] = []
    found = write(settings, plan, engine())
    made = layout.write_gzip(settings, found, said.append)
    assert made.gzip_layout == f"{found.layout}-gz"
    assert made.gzip_tag == f"{plan.tag}-gz"
    assert said[-1] == "gzip: 0.0 GB"
    zstd, gzip = (oci.verify(Path(path)) for path in (made.layout, made.gzip_layout))
    assert (zstd.manifest_digest, gzip.manifest_digest) == (found.digest, made.gzip)
    assert zstd.config_digest == gzip.config_digest
    assert [layer.diff_id for layer in zstd.layers] == [layer.diff_id for layer in gzip.layers]


def test_the_gzip_variant_is_made_once_and_its_layers_come_from_the_cache(settings: Settings, plan: Plan) -> None:
    made = layout.write_gzip(settings, write(settings, plan, engine()))
    index = Path(made.gzip_layout) / "index.json"
    before = index.stat()
    assert layout.write_gzip(settings, made) == made
    assert index.stat() == before
    shutil.rmtree(made.gzip_layout)
    again = layout.write_gzip(settings, made)
    blob_path = oci.blob_path(Path(again.gzip_layout), oci.read(Path(again.gzip_layout)).layers[0].digest)
    assert again == made
    assert blob_path.stat().st_nlink > 1


def test_a_damaged_layer_makes_no_gzip_variant(settings: Settings, plan: Plan) -> None:
    found = write(settings, plan, engine())
    other, damaged = (oci.blob_path(Path(found.layout), layer.digest) for layer in found.layers[:2])
    damaged.unlink()
    shutil.copy(other, damaged)
    with pytest.raises(UserError, match="the config says"):
        layout.write_gzip(settings, found)
    assert not Path(found.layout + "-gz").exists()
