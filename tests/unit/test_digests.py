"""Expected digests: recorded on purpose, compared by plan and bytes, and a difference says which of the two it is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from kiln import digests, inventory, result
from kiln.digests import Expected
from kiln.errors import UserError
from kiln.plan import Plan
from kiln.result import Result
from kiln.settings import ROOT, Settings, from_env

pytestmark = pytest.mark.unit
ONE, OTHER = "sha256:" + "1" * 64, "sha256:" + "2" * 64


@pytest.fixture(scope="module")
def plan() -> Plan:
    return inventory.plan_for(from_env({}), gpu="sm90", stack="ci", kernel_set="", image="")


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """A checkout of its own, so that nothing is recorded in ours."""
    root = tmp_path / "root"
    root.mkdir()
    for path in ROOT.iterdir():
        if path.name not in (".git", ".kiln", "receipts"):
            (root / path.name).symlink_to(path)
    return replace(from_env({}), root=root, home=tmp_path / "home")


def built(settings: Settings, plan: Plan, digest: str) -> None:
    layout = settings.home / "images" / plan.id[:12]
    layout.mkdir(parents=True)
    (layout / "index.json").write_text("{}")
    result.save(settings, Result(plan.id, plan.tag, digest, plan.repository, str(layout), ()))


def test_the_expected_digest_is_no_fault(plan: Plan) -> None:
    expected = {("ci", "sm90"): Expected(plan=plan.id, digest=ONE)}
    assert digests.fault(expected, plan, ONE, "buildah") == ""


def test_other_bytes_of_the_same_inputs_are_called_irreproducible(plan: Plan) -> None:
    expected = {("ci", "sm90"): Expected(plan=plan.id, digest=ONE)}
    said = digests.fault(expected, plan, OTHER, "buildah")
    assert f"ci for sm90, built by buildah:\n  expected {ONE}\n  got      {OTHER}\n" in said
    assert "the inputs are the same, the bytes are not" in said
    assert "inv reproduce --stack ci --gpu sm90 shows what differs" in said


def test_other_inputs_are_told_with_the_command_that_records_them(plan: Plan) -> None:
    expected = {("ci", "sm90"): Expected(plan="0" * 64, digest=ONE)}
    said = digests.fault(expected, plan, OTHER, "docker")
    assert f"the inputs changed: plan {'0' * 12} before, {plan.id[:12]} now" in said
    assert said.endswith("to record it on purpose: inv receipts.expect --stack ci --gpu sm90")


def test_the_same_bytes_of_other_inputs_are_a_fault_too(plan: Plan) -> None:
    assert "the inputs changed" in digests.fault({("ci", "sm90"): Expected(plan="0" * 64, digest=ONE)}, plan, ONE, "x")


def test_nothing_expected_yet_is_a_fault(plan: Plan) -> None:
    assert "no digest is expected yet" in digests.fault({}, plan, ONE, "docker")


def test_a_built_digest_is_recorded_and_read_back(settings: Settings, plan: Plan) -> None:
    built(settings, plan, ONE)
    assert digests.expect(settings, stack="ci", gpus=["sm90"]) == [f"ci sm90: none -> {ONE}"]
    assert digests.load(settings.root) == {("ci", "sm90"): Expected(plan=plan.id, digest=ONE)}
    assert digests.expect(settings, stack="ci", gpus=["sm90"]) == []


def test_recording_one_leaves_the_others(settings: Settings, plan: Plan) -> None:
    (settings.root / "receipts").mkdir()
    other = f'images:\n  story:\n    sm120:\n      plan: "{"3" * 64}"\n      digest: "{OTHER}"\n'
    (settings.root / digests.FILE).write_text(other)
    built(settings, plan, ONE)
    digests.expect(settings, stack="ci", gpus=["sm90"])
    assert digests.load(settings.root)["story", "sm120"].digest == OTHER


def test_what_is_not_built_is_not_recorded(settings: Settings) -> None:
    with pytest.raises(
        UserError, match=r"ci for sm90 is not built: plan [0-9a-f]{12}\n.*inv build --stack ci --gpu sm90"
    ):
        digests.expect(settings, stack="ci", gpus=["sm90"])
    assert not (settings.root / digests.FILE).exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('images:\n  ci:\n    sm90: {plan: "12", digest: "x"}\n', "receipts/expected.yaml:3: images.ci.sm90.plan: "),
        (
            "images:\n  ci:\n    sm90: {plan: 12}\n",
            "receipts/expected.yaml:3: images.ci.sm90.plan: 12 is read as a number",
        ),
        ("pictures: {}\n", "receipts/expected.yaml:1: unknown key 'pictures'"),
    ],
)
def test_a_damaged_file_is_refused_with_its_line(settings: Settings, text: str, message: str) -> None:
    (settings.root / "receipts").mkdir()
    (settings.root / digests.FILE).write_text(text)
    with pytest.raises(UserError) as caught:
        digests.load(settings.root)
    assert message in str(caught.value)


def test_the_committed_file_is_sound() -> None:
    assert all(stack for stack, _ in digests.load(ROOT))
