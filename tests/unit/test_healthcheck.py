"""The image's HEALTHCHECK: declared once, in the Dockerfile and in the canonical config, whichever engine built it."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kiln import imageconfig, images, inventory, layout
from kiln.canon import ConfigOverrides
from kiln.settings import ROOT, from_env
from tests.fakeengine import FakeEngine
from tests.madeimages import Entry, layer
from tests.unit.test_images import problems_of, write

pytestmark = pytest.mark.unit

BASE = {"architecture": "amd64", "os": "linux"}
BY_DOCKER = {"Healthcheck": {"Test": ["CMD", "x"], "Interval": 1, "Retries": 2}, "User": "1"}
BY_BUILDAH = {"User": "1"}
HEAD = 'summary: "b"\nparent: "mid"\nper_gpu: "yes"\nhealthcheck:\n'
TIMES = '  interval_s: "30"\n  timeout_s: "60"\n  start_period_s: "10"\n  retries: "3"\n'


def config(raw: dict[str, Any], healthcheck: dict[str, object] | None) -> dict[str, Any]:
    changes = ConfigOverrides(healthcheck=healthcheck)
    found = json.loads(imageconfig.canonical({**BASE, "config": raw}, changes, 0, []))
    return dict(found["config"])


@pytest.mark.parametrize("declared", [{"Test": ["CMD", "kiln-health"], "Retries": 3}, {}])
def test_the_config_has_what_was_declared_whichever_engine_built_it(declared: dict[str, object]) -> None:
    docker, buildah = config(BY_DOCKER, declared), config(BY_BUILDAH, declared)
    assert docker == buildah
    assert docker.get("Healthcheck", {}) == declared


def test_without_a_declaration_an_image_keeps_its_own() -> None:
    assert config(BY_DOCKER, None) == BY_DOCKER


def test_a_declaration_becomes_what_an_image_config_holds() -> None:
    declared = images.load_all(ROOT)["sglang"].healthcheck
    assert declared is not None
    assert declared.config() == {
        "Test": ["CMD", "kiln-health"], "Interval": 30 * 10**9, "Timeout": 60 * 10**9,
        "StartPeriod": 1800 * 10**9, "Retries": 3,
    }  # fmt: skip


@pytest.mark.parametrize("file", sorted(ROOT.glob("images/*/rendered/*")), ids=lambda file: str(file.stem))
def test_every_dockerfile_says_what_its_image_declares(file: Path) -> None:
    declared = images.load_all(ROOT)[file.parent.parent.name].healthcheck
    lines = file.read_text(encoding="utf-8").replace("\\\n", " ").splitlines()
    found = [" ".join(line.split()) for line in lines if line.startswith("HEALTHCHECK")]
    assert found == ([] if declared is None else [
        f"HEALTHCHECK --interval={declared.interval_s}s --timeout={declared.timeout_s}s "
        f"--start-period={declared.start_period_s}s --retries={declared.retries} CMD {json.dumps([*declared.command])}"
    ])  # fmt: skip


def test_the_layout_of_a_plan_carries_it_although_the_engine_dropped_it(tmp_path: Path) -> None:
    settings = replace(from_env({}), home=tmp_path / "home")
    plan = inventory.plan_for(settings, gpu="sm120", stack="ci", kernel_set="", image="")
    counts = {"base": 1, "cuda": 3, "torch": 4, "flashinfer": 5, "sglang": 6}
    engine = FakeEngine(counts=counts, layers=[layer([Entry(f"file-{n}", data=b"x")]) for n in range(6)])
    built = layout.write(settings, plan, engine, lambda _text: None)
    blobs = Path(built.layout) / "blobs/sha256"
    manifest = json.loads((blobs / built.digest.removeprefix("sha256:")).read_text())
    found = json.loads((blobs / manifest["config"]["digest"].removeprefix("sha256:")).read_text())
    assert found["config"]["Healthcheck"] == plan.healthcheck()
    assert plan.healthcheck()["Test"] == ["CMD", "kiln-health"]


def test_an_image_on_top_inherits_it_and_one_below_has_none(tmp_path: Path) -> None:
    plan = inventory.plan_for(from_env({}), gpu="sm120", stack="ci", kernel_set="", image="")
    on_top = replace(plan, chain=(*plan.chain, replace(plan.chain[0], name="warm")))
    assert on_top.healthcheck() == plan.healthcheck()
    assert replace(plan, chain=plan.chain[:-1]).healthcheck() == {}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f'{HEAD}  command: ["x"]\n{TIMES.replace("30", "often")}',
         "images/beta/image.yaml:6: healthcheck.interval_s: 'often' is not a whole number\n  hint: write digits: \"8\""),  # noqa: E501
        (f"{HEAD}  command: []\n{TIMES}",
         "images/beta/image.yaml:5: healthcheck.command: is empty\n  hint: write at least one entry"),
        (f'{HEAD}  command: ["x"]\n  interval_s: "30"\n  timeout_s: "60"\n  retries: "3"\n',
         "images/beta/image.yaml:4: healthcheck: the key 'start_period_s' is missing\n"
         "  hint: add `start_period_s:` to this block"),
    ],
)  # fmt: skip
def test_a_bad_declaration_is_refused_with_its_line(tmp_path: Path, text: str, expected: str) -> None:
    assert problems_of(write(tmp_path, {"beta": text})) == [expected]


def test_the_program_is_one_file_that_the_image_s_python_runs() -> None:
    link = ROOT / "images/sglang/kiln-health"
    assert link.is_symlink()
    assert link.resolve() == ROOT / "kiln/probe/health.py"
    assert link.read_text(encoding="utf-8").startswith("#!/opt/kiln/bin/python\n")
    assert os.access(link, os.X_OK)
