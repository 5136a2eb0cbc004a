"""`inv test --image`: which engine builds what, and that a digest other than the committed one fails."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from kiln import digests, inventory, testing
from kiln.build import Options
from kiln.digests import Expected
from kiln.errors import CheckFailed
from kiln.result import Result
from kiln.settings import Settings, from_env

pytestmark = pytest.mark.unit
GOOD, OTHER = "sha256:" + "1" * 64, "sha256:" + "2" * 64


@dataclass
class Builds:
    """Stands for the builds: remembers each, and gives the digest that an engine is said to give."""

    digests: dict[str, str] = field(default_factory=dict)
    seen: list[tuple[str, str, Path, Options]] = field(default_factory=list)

    def build(self, settings: Settings, *, gpu: str, engine_name: str, options: Options, **rest: Any) -> Result:
        self.seen.append((engine_name, gpu, settings.home, options))
        plan = inventory.plan_for(settings, gpu=gpu, stack="ci", kernel_set="", image="")
        digest = self.digests.get(engine_name, GOOD)
        return Result(plan.id, plan.tag, digest, plan.repository, "", ())


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return replace(from_env({}), home=tmp_path / "home")


@pytest.fixture
def builds(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Builds:
    found = Builds()
    plans = {
        gpu: inventory.plan_for(settings, gpu=gpu, stack="ci", kernel_set="", image="") for gpu in ("sm120", "sm90")
    }
    expected = {("ci", gpu): Expected(plan=plan.id, digest=GOOD) for gpu, plan in plans.items()}
    monkeypatch.setattr("kiln.building.build", found.build)
    monkeypatch.setattr(digests, "load", lambda root: expected)
    monkeypatch.setattr("kiln.reproduce.discard", lambda place: None)
    return found


def test_docker_builds_for_every_gpu_and_buildah_once_more_from_nothing(settings: Settings, builds: Builds) -> None:
    testing.test(settings, {"image"})
    assert [(engine, gpu) for engine, gpu, _, _ in builds.seen] == [
        ("docker", "sm120"), ("docker", "sm90"), ("buildah", "sm120"),
    ]  # fmt: skip
    first, _, last = builds.seen
    assert first[2] == settings.home
    assert last[2] != settings.home
    assert (first[3].test, first[3].push, last[3].test, last[3].push) == (True, True, False, False)


@pytest.mark.parametrize("engine", ["docker", "buildah"])
def test_another_digest_of_either_engine_fails_with_expected_got_and_the_command(
    settings: Settings, builds: Builds, engine: str, capsys: pytest.CaptureFixture[str]
) -> None:
    builds.digests[engine] = OTHER
    with pytest.raises(CheckFailed, match="tests failed: image"):
        testing.test(settings, {"image"})
    said = capsys.readouterr().err
    assert f"ci for sm120, built by {engine}:\n  expected {GOOD}\n  got      {OTHER}\n" in said
    assert "inv receipts.expect --stack ci --gpu sm120" in said


def test_the_state_folder_has_no_part_in_the_digests(settings: Settings, builds: Builds, tmp_path: Path) -> None:
    testing.test(replace(settings, home=tmp_path / "elsewhere"), {"image"})
