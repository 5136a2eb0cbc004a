"""`inv test --image`: which engine builds what, and that a digest other than the committed one fails."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from kiln import digests, inventory, result, testing
from kiln.build import Options
from kiln.digests import Expected
from kiln.errors import CheckFailed
from kiln.result import Result
from kiln.run import Completed, CutOff
from kiln.settings import Settings, from_env

pytestmark = pytest.mark.unit
GOOD, OTHER = "sha256:" + "1" * 64, "sha256:" + "2" * 64


@dataclass
class Builds:
    """Stands for the builds: remembers each, and gives the digest that an engine is said to give."""

    digests: dict[str, str] = field(default_factory=dict)
    seen: list[tuple[str, str, Path, bool]] = field(default_factory=list)
    broken: bool = False
    hangs: bool = False
    fails: bool = False

    def build(self, settings: Settings, *, gpu: str, engine_name: str, options: Options, **rest: Any) -> Result:
        if self.fails:
            raise CheckFailed("an image test failed")
        self.seen.append((engine_name, gpu, settings.home, options.test and options.push))
        return self.result(settings, gpu, engine_name)

    def again(self, words: Sequence[Any], *, env: Mapping[str, str], stop: Event, **_: Any) -> Completed:
        """Stand for the other process."""
        options = dict(word.removeprefix("--").partition("=")[::2] for word in words if str(word).startswith("--"))
        if self.hangs:
            assert stop.wait(30)
            raise CutOff(Completed((), -15, "", ""), late=False, timeout_s=1)
        home = replace(from_env({}), home=Path(env["KILN_HOME"]))
        self.seen.append((options["engine"], options["gpu"], home.home, "no-test" not in options))
        if not self.broken:
            found = self.result(home, options["gpu"], options["engine"])
            (home.home / "index.json").write_text("{}")
            result.save(home, replace(found, layout=str(home.home)))
        return Completed((), 1 if self.broken else 0, "the table\n", "the progress\n")

    def result(self, settings: Settings, gpu: str, engine: str) -> Result:
        plan = inventory.plan_for(settings, gpu=gpu, stack="ci", kernel_set="", image="")
        return Result(plan.id, plan.tag, self.digests.get(engine, GOOD), plan.repository, "", ())


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
    monkeypatch.setattr("kiln.run.bounded", found.again)
    monkeypatch.setattr("kiln.testing._prepared", lambda settings, plan: None)
    monkeypatch.setattr(digests, "load", lambda root: expected)
    monkeypatch.setattr("kiln.reproduce.discard", lambda place: None)
    return found


def test_docker_builds_for_every_gpu_and_buildah_once_more_from_nothing(
    settings: Settings, builds: Builds, capsys: pytest.CaptureFixture[str]
) -> None:
    testing.test(settings, {"image"})
    docker = [one for one in builds.seen if one[0] == "docker"]
    assert docker == [("docker", gpu, settings.home, True) for gpu in ("sm120", "sm90")]
    buildah = [one for one in builds.seen if one[0] == "buildah"]
    assert buildah == [("buildah", "sm120", settings.home / "reproduce" / "test-buildah", False)]
    said = capsys.readouterr()
    assert said.err == "the progress\n"
    assert said.out.endswith("the table\n")


def test_a_second_build_that_breaks_fails_with_what_it_said(
    settings: Settings, builds: Builds, capsys: pytest.CaptureFixture[str]
) -> None:
    builds.broken = True
    with pytest.raises(CheckFailed, match="tests failed: image"):
        testing.test(settings, {"image"})
    said = capsys.readouterr().err
    assert "the progress\n" in said
    assert "the second build ended with 1, see above" in said


def test_a_second_build_does_not_go_on_when_the_first_failed(settings: Settings, builds: Builds) -> None:
    builds.fails = builds.hangs = True
    with pytest.raises(CheckFailed, match="tests failed: image"):
        testing.test(settings, {"image"})


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


def test_no_test_is_named_by_bytes_that_may_differ_between_workers(request: pytest.FixtureRequest) -> None:
    calls = [(item.nodeid, item.callspec) for item in request.session.items if hasattr(item, "callspec")]
    named = [
        name for name, call in calls for value in call.params.values()
        if isinstance(value, bytes) and "\\x" in repr(value) and repr(value)[2:-1] in name
    ]  # fmt: skip
    assert named == []
