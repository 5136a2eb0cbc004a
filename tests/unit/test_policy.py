"""The policy of promotion: what each clause asks for, how versions.yaml says it, and that no plan depends on it."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kiln import check, checks, plan, policy, versions
from kiln.errors import UserError
from kiln.policy import Clause
from kiln.receipt import Receipt
from kiln.settings import ROOT, from_env
from kiln.versions import Promotion, Versions
from tests import madereceipts as made

pytestmark = pytest.mark.unit
NOW = datetime.datetime(2026, 9, 10, 12, tzinfo=datetime.UTC)
RULES: dict[str, Any] = {
    "max_age_days": 30, "max_failing_nodes": 0, "phases": ("preflight", "fabric"),
    "gpus": {"sm120": {"topologies": ("rtx-pro-6000-8x-*",), "nodes": 1}},
}  # fmt: skip


def judged(*receipts: Receipt, gpu: str = "sm120", digest: str = made.DIGEST, **changes: Any) -> tuple[Clause, ...]:
    return policy.clauses(Promotion.model_validate({**RULES, **changes}), gpu, digest, receipts, NOW)


def unmet(clauses: Iterable[Clause]) -> list[str]:
    return [one.why for one in clauses if not one.met]


def with_outcome(verdict: str, check: str = "fabric/ipc", *, whole: str = "", required: bool = True) -> Receipt:
    """Return a healthy receipt with one more outcome, and that as the whole's verdict."""
    extra = {"check": check, "verdict": verdict, "message": "m", "required": required}
    return made.receipt(outcomes=[*made.outcomes(), extra], verdict=whole or verdict)


@pytest.mark.parametrize("receipt", [made.receipt(), with_outcome("WARN")], ids=["PASS", "WARN"])
def test_a_good_receipt_of_this_digest_is_enough(receipt: Receipt) -> None:
    assert unmet(judged(receipt)) == []
    assert judged(receipt)[0].why == f"{made.NODE} {receipt.verdict} (a1b2c3d4e5f6)"


@pytest.mark.parametrize(
    ("receipt", "why"),
    [
        (made.failing(), "0 of 1; 77ab00cd12ef (f00dfeed0001): FAIL: fabric/peers; NOT_RUN: numerics/moe"),
        (made.not_run(), "0 of 1; c0ffee123456 (beef00000002): NOT_RUN: fabric/allreduce"),
        (made.receipt(image={"digest": "sha256:" + "00" * 32}), "no receipt of this digest"),
        (made.receipt(node=made.node(topology="h200-8x")), "no receipt of this digest"),
        (made.receipt(started="2026-08-01T12:00:00Z"), f"0 of 1; {made.NODE} (a1b2c3d4e5f6): 40 days old, 30 at most"),
        (
            made.receipt(started="2027-01-01T00:00:00Z"),
            f"0 of 1; {made.NODE} (a1b2c3d4e5f6): dated 2027-01-01T00:00:00Z, which is still to come",
        ),
        (
            made.receipt(outcomes=[*made.outcomes()][:1]),
            f"0 of 1; {made.NODE} (a1b2c3d4e5f6): phases without a check that was made: fabric",
        ),
        (made.receipt(verdict="FAIL"), f"0 of 1; {made.NODE} (a1b2c3d4e5f6): FAIL as a whole"),
        (made.receipt(verdict="NOT_RUN"), f"0 of 1; {made.NODE} (a1b2c3d4e5f6): NOT_RUN as a whole"),
    ],
)
def test_a_receipt_that_does_not_count_says_why(receipt: Receipt, why: str) -> None:
    assert unmet(judged(receipt))[0] == why


def test_a_claim_of_pass_over_a_failed_check_does_not_count() -> None:
    assert "FAIL: fabric/ipc" in unmet(judged(with_outcome("FAIL", whole="PASS")))[0]


def test_no_receipt_at_all_is_not_enough() -> None:
    assert unmet(judged()) == ["no receipt of this digest"]


@pytest.mark.parametrize(
    ("globs", "met"), [((), False), (("fabric/ipc",), True), (("fabric/*",), True), (("server/*",), False)]
)
def test_only_a_check_that_is_excused_may_be_not_run(globs: tuple[str, ...], met: bool) -> None:
    assert (unmet(judged(with_outcome("NOT_RUN"), may_be_not_run=globs)) == []) is met


def test_what_is_not_required_may_be_not_run_anyway() -> None:
    assert unmet(judged(with_outcome("NOT_RUN", whole="PASS", required=False))) == []


def test_an_excuse_for_not_run_excuses_no_failure() -> None:
    assert "FAIL: fabric/ipc" in unmet(judged(with_outcome("FAIL"), may_be_not_run=("fabric/*",)))[0]


def test_of_each_node_the_newest_receipt_counts() -> None:
    failed_since = made.failing(node=made.node())
    assert len(unmet(judged(made.receipt(), failed_since))) == 2
    mended = made.receipt(id="0e11", started="2026-09-03T12:00:00Z")
    assert unmet(judged(made.receipt(), failed_since, mended)) == []


def test_the_same_node_twice_is_one_node() -> None:
    gpus = {"sm120": {"topologies": ("rtx-*",), "nodes": 2}}
    again = made.receipt(id="0e11", started="2026-09-03T12:00:00Z")
    assert unmet(judged(made.receipt(), again, gpus=gpus)) == ["1 of 2"]
    other = made.receipt(id="0e12", node=made.node("c0ffee123456"))
    assert unmet(judged(made.receipt(), other, gpus=gpus)) == []


def test_a_failing_node_blocks_until_the_policy_bears_it() -> None:
    found = judged(made.receipt(), made.failing())
    assert [(one.met, one.why) for one in found[1:]] == [(False, "77ab00cd12ef (f00dfeed0001)")]
    assert unmet(judged(made.receipt(), made.failing(), max_failing_nodes=1)) == []


def test_every_topology_of_the_rule_is_asked_for() -> None:
    gpus = {"sm120": {"topologies": ("rtx-pro-6000-8x-direct", "rtx-pro-6000-8x-switch"), "nodes": 1}}
    found = judged(made.receipt(), gpus=gpus)
    assert [one.met for one in found] == [True, False, True]


@pytest.mark.parametrize(("gpu", "named"), [("sm90", "sm90"), ("", "an image without the label kiln.gpu")])
def test_a_gpu_without_a_rule_is_never_promoted(gpu: str, named: str) -> None:
    (found,) = judged(made.receipt(), gpu=gpu)
    assert (found.met, found.demand, found.why) == (False, f"a rule for {named}", "there are some for sm120")


def edited(folder: Path, old: str, new: str) -> tuple[Path, str]:
    """Write versions.yaml with one place of the policy changed; returns it, and that place as file:line."""
    head, key, block = (ROOT / "versions.yaml").read_text(encoding="utf-8").partition("\npromotion:\n")
    before, found, after = block.partition(old)
    assert found
    (folder / "versions.yaml").write_text(head + key + before + new + after)
    return folder / "versions.yaml", f"versions.yaml:{(head + key + before).count(chr(10)) + 1}"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('max_age_days: "30"', "max_age_days: 30", "promotion.max_age_days: 30 is read as a number"),
        (
            'max_age_days: "30"',
            'max_age_days: "0"',
            "promotion.max_age_days: input should be greater than or equal to 1",
        ),
        ('max_age_days: "30"', 'max_age_days: "soon"', "promotion.max_age_days: 'soon' is not a whole number"),
        ('nodes: "1"', 'nodes: "0"', "promotion.gpus.sm120.nodes: input should be greater than or equal to 1"),
        ("max_failing_nodes", "max_failures", "promotion: unknown key 'max_failures'"),
        ("sm120: {", "sm121: {", "promotion.gpus.sm121: there is no GPU 'sm121'"),
        ('["rtx-pro-6000-8x-*"]', "[]", "promotion.gpus.sm120.topologies: is empty"),
        ('["rtx-pro-6000-8x-*"], nodes', '["rtx-pro-6000-8x-*"], node', "promotion.gpus.sm120: unknown key 'node'"),
    ],
)
def test_a_bad_policy_is_refused_with_its_line(tmp_path: Path, old: str, new: str, message: str) -> None:
    file, where = edited(tmp_path, old, new)
    with pytest.raises(UserError) as caught:
        versions.load(file)
    problems = [one for one in caught.value.problems if one.message.startswith(message)]
    assert problems, str(caught.value)
    assert problems[0].source == where


@pytest.mark.parametrize(
    ("old", "new", "kind"),
    [
        ("preflight", "prefligth", "phases[0]: there is no phase"),
        ("rtx-pro-6000-8x-*", "rtx-6000-*", "gpus.sm120.topologies[0]: there is no topology"),
        ("may_be_not_run: []", 'may_be_not_run: ["fabric/none"]', "may_be_not_run[0]: there is no check"),
    ],
)
def test_a_name_that_nobody_has_is_a_problem_of_the_check(tmp_path: Path, old: str, new: str, kind: str) -> None:
    file, where = edited(tmp_path, old, new)
    (problem,) = check.promotion_problems(ROOT, versions.load(file))
    name = new.split('"')[1] if '"' in new else new
    assert (problem.message, problem.source) == (f"promotion.{kind} {name!r}", where)


def test_a_file_without_a_policy_is_good(tmp_path: Path) -> None:
    text = (ROOT / "versions.yaml").read_text(encoding="utf-8")
    (tmp_path / "versions.yaml").write_text(text.partition("\npromotion:\n")[0])
    without = versions.load(tmp_path / "versions.yaml")
    assert without.promotion is None
    assert list(check.promotion_problems(tmp_path, without)) == []


def test_the_names_that_a_policy_may_use_are_those_of_the_checks() -> None:
    names = {found.name for found in checks.load_all()}
    rules = Promotion.model_validate({**RULES, "phases": checks.PHASES, "may_be_not_run": tuple(names)})
    loaded = versions.load(ROOT / "versions.yaml")
    assert list(check.promotion_problems(ROOT, replace(loaded, promotion=rules))) == []


def test_no_plan_and_no_key_depends_on_the_policy(tmp_path: Path) -> None:
    now = versions.load(ROOT / "versions.yaml")
    text = (ROOT / "versions.yaml").read_text(encoding="utf-8")
    (tmp_path / "versions.yaml").write_text(text.partition("\npromotion:\n")[0])
    others = [versions.load(tmp_path / "versions.yaml")]
    others.append(versions.load(edited(tmp_path, 'max_age_days: "30"', 'max_age_days: "1"')[0]))
    assert now.promotion is not None
    for stack in now.stacks.values():
        for gpu in (gpu for gpu in now.gpus if stack.supports(gpu)):
            shown = {json.dumps(described(one, gpu, stack.name)) for one in (now, *others)}
            assert len(shown) == 1
            assert "promotion" not in shown.pop()


def described(intent: Versions, gpu: str, stack: str) -> dict[str, object]:
    """Return what `inv show --json` prints."""
    found = plan.make(from_env({}), intent, gpu=gpu, stack=stack, kernel_set="", image="")
    assert "promotion" not in json.dumps([{**image.inputs} for image in found.chain], default=str)
    return found.describe()
