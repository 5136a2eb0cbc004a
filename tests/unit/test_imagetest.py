"""The verdict of the image tests: pytest is real, the tests it runs are small, the engine keeps what it is given."""

from __future__ import annotations

import hashlib
import io
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kiln import build, canon, imagetest, inventory
from kiln.errors import CheckFailed
from kiln.locks import Artifact
from kiln.plan import Plan
from kiln.result import Result
from kiln.settings import Settings, from_env
from kiln.store import Store
from tests.fakeengine import FakeEngine
from tests.madeimages import EPOCH, Entry, docker_archive, layer

pytestmark = pytest.mark.unit
CONFTEST = """
def pytest_addoption(parser):
    for name in ("image", "plan", "runtime", "tools"):
        parser.addoption(f"--kiln-{name}")
"""
GOOD = """
import json
import os
from pathlib import Path

def test_the_image_is_named(request):
    assert request.config.getoption("--kiln-image").startswith("kiln-test/sglang:")

def test_the_plan_is_there(request):
    assert json.loads(Path(request.config.getoption("--kiln-plan")).read_text())["gpu"] == "sm120"

def test_the_engine_is_named(request):
    assert request.config.getoption("--kiln-runtime") == "docker"
    assert os.environ["KILN_FAKE_ENGINE"] == "yes"

def test_the_tools_are_there(request):
    assert {path.name for path in Path(request.config.getoption("--kiln-tools")).iterdir()} == {"uv", "cuobjdump"}
"""
PROGRAMS = {"uv": "uv", "nvidia-cuda-cuobjdump": "cuobjdump"}


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return replace(from_env({}), home=tmp_path / "home")


@pytest.fixture
def plan(settings: Settings) -> Plan:
    found = inventory.plan_for(settings, gpu="sm120", stack="ci", kernel_set="", image="")
    build.write_plan(settings, found)
    tools = tuple(_tool(Store(settings.store), name) for name in PROGRAMS)
    return replace(found, lock=replace(found.lock, tools=tools))


def _tool(store: Store, name: str) -> Artifact:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as wheel:
        wheel.writestr(f"bin/{PROGRAMS[name]}", name)
    data = out.getvalue()
    sha256 = hashlib.sha256(data).hexdigest()
    store.add(io.BytesIO(data), sha256, len(data))
    return Artifact(name, "1", f"{name}.whl", len(data), sha256)


@pytest.fixture
def built(plan: Plan, tmp_path: Path) -> Result:
    target = tmp_path / "layout"
    archive = io.BytesIO(docker_archive([layer([Entry("a", data=b"x")])]))
    canon.canonicalise(archive, target, epoch=EPOCH)
    return Result(plan.id, plan.tag, "sha256:" + "1" * 64, plan.repository, str(target), ())


def verdict(settings: Settings, plan: Plan, built: Result, engine: Any, tests: str) -> str:
    """Run the image tests of a tree whose tests are these."""
    root = settings.home / "tree"
    folder = root / "tests/image"
    folder.mkdir(parents=True)
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "test_image.py").write_text(tests)
    return imagetest.test_layout(replace(settings, root=root), plan, built, engine, settings.logs / "test.log")


def test_good_tests_give_their_count_and_the_image_is_removed_again(
    settings: Settings, plan: Plan, built: Result
) -> None:
    engine = FakeEngine()
    assert verdict(settings, plan, built, engine, GOOD) == "4 passed"
    assert engine.loaded == engine.removed == [f"kiln-test/sglang:{plan.id[:12]}"]
    assert (settings.logs / "test.xml").exists()


@pytest.mark.parametrize(
    ("tests", "told"),
    [
        ("def test_it_works():\n    assert 'libcuda' == 'x'\n", "1 failed"),
        ("def test_it_works(:\n", "1 error"),
        ("", "no tests ran"),
        ("import pytest\ndef test_it_works():\n    pytest.skip('no image')\n", "1 skipped"),
    ],
    ids=["failed", "broken", "none", "all skipped"],
)
def test_anything_but_passed_tests_is_a_failure_with_its_log(
    settings: Settings, plan: Plan, built: Result, tests: str, told: str
) -> None:
    engine = FakeEngine()
    with pytest.raises(CheckFailed) as caught:
        verdict(settings, plan, built, engine, tests)
    assert str(caught.value).startswith(f"the image tests failed, log: {settings.logs / 'test.log'}\n")
    assert told in str(caught.value)
    assert engine.removed == [f"kiln-test/sglang:{plan.id[:12]}"]


def test_the_log_is_of_the_last_run_alone(settings: Settings, plan: Plan, built: Result) -> None:
    settings.logs.mkdir(parents=True)
    (settings.logs / "test.log").write_text("an older run")
    verdict(settings, plan, built, FakeEngine(), GOOD)
    assert "an older run" not in (settings.logs / "test.log").read_text()
