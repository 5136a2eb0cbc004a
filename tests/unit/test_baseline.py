"""A node against itself: which way each unit is better, where WARN and FAIL begin, whose baseline it is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kiln import baseline, measured
from kiln.errors import CheckFailed, UserError
from kiln.measured import Key
from kiln.receipt import Receipt, outcomes
from kiln.settings import Settings, from_env
from kiln.verdict import Verdict, overall
from tests import madereceipts as made

pytestmark = pytest.mark.unit


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return replace(from_env({}), root=tmp_path)


def measuring(name: str, value: float, **changes: Any) -> Receipt:
    """Return a receipt with one number."""
    outcome = {"check": "fabric/x", "verdict": "PASS", "message": "m", "subject": "GPU 1", "numbers": {name: value}}
    return made.receipt(**{"outcomes": [outcome], "server": None, "samples": [], **changes})


@pytest.mark.parametrize(
    ("name", "direction"),
    [
        ("h2d_gb_s", 1), ("throughput_tok_s", 1), ("bf16_tflops", 1), ("copy_gib_s", 1), ("served_req_s", 1),
        ("tok_s", 1), ("tflops", 1), ("first_token_worst_s", -1), ("ready_s", -1),
        ("latency_us", -1), ("stall_ms", -1), ("weights startup_s", -1), ("took_s", -1),
        ("power_w", 0), ("temperature_c", 0), ("count", 0), ("limit_gb_s", 0), ("floor_tok_s", 0), ("deadline_s", 0),
    ],
)  # fmt: skip
def test_the_unit_says_which_way_is_better(name: str, direction: int) -> None:
    assert measured.direction(name) == direction


@pytest.mark.parametrize(
    ("name", "old", "new", "verdict"),
    [
        ("h2d_gb_s", 50.0, 50.0, Verdict.PASS),
        ("h2d_gb_s", 50.0, 47.6, Verdict.PASS),
        ("h2d_gb_s", 50.0, 47.5, Verdict.WARN),
        ("h2d_gb_s", 50.0, 45.1, Verdict.WARN),
        ("h2d_gb_s", 50.0, 45.0, Verdict.FAIL),
        ("h2d_gb_s", 50.0, 80.0, Verdict.PASS),
        ("latency_us", 20.0, 20.9, Verdict.PASS),
        ("latency_us", 20.0, 21.0, Verdict.WARN),
        ("latency_us", 20.0, 22.0, Verdict.FAIL),
        ("latency_us", 20.0, 2.0, Verdict.PASS),
        ("bf16_tflops", 400.0, 100.0, Verdict.FAIL),
    ],
)
def test_five_percent_worse_warns_and_ten_fail(
    settings: Settings, name: str, old: float, new: float, verdict: Verdict
) -> None:
    baseline.record(settings, measuring(name, old))
    assert overall(baseline.judge(settings, measuring(name, new))) is verdict


def test_a_failure_names_number_date_cause_and_cure(settings: Settings) -> None:
    baseline.record(settings, measuring("h2d_gb_s", 55.0, id="01d1"))
    (found,) = baseline.judge(settings, measuring("h2d_gb_s", 44.0, id="0e11"))
    assert (found.check, found.subject) == ("baseline/fabric-x", "GPU 1")
    assert found.message == "h2d_gb_s 44, baseline 55 (-20.0 %)"
    assert found.cause == "worse than the same node was on 2026-09-01"
    assert found.cure == "inv receipts.diff 01d1 0e11 shows what else changed"
    assert found.numbers == {"h2d_gb_s": 44.0}


def test_a_healthy_node_twice_is_one_pass_and_a_slower_one_names_each_gpu(settings: Settings) -> None:
    baseline.record(settings, made.receipt())
    (one,) = baseline.judge(settings, made.receipt())
    assert (one.verdict, one.message) == (Verdict.PASS, "25 numbers within 5 % of the baseline of 2026-09-01")
    slow = baseline.judge(settings, made.receipt(outcomes=[*made.outcomes(0.93)]))
    assert [one.subject for one in slow if one.verdict is Verdict.WARN] == [
        *(f"GPU {gpu}" for gpu in range(8)),
        "8 ranks",
    ]


@pytest.mark.parametrize(
    "changes",
    [
        {"node": made.node("0123456789ab")},
        {"node": made.node(limit_w=450.0)},
        {"node": made.node(topology="any")},
        {"node": {**made.node(), "gpus": made.node()["gpus"][:4]}},
    ],
    ids=["another node", "another power cap", "another topology", "fewer cards"],
)
def test_another_node_has_no_baseline_and_nobody_requires_one(settings: Settings, changes: dict[str, Any]) -> None:
    baseline.record(settings, made.receipt())
    (found,) = baseline.judge(settings, made.receipt(**changes))
    assert (found.verdict, found.required, found.check) == (Verdict.NOT_RUN, False, "baseline")
    assert found.cure == "if this run is as it should be: inv receipts.baseline a1b2c3d4e5f6"


def test_a_server_s_numbers_are_those_of_its_preset(settings: Settings) -> None:
    baseline.record(settings, made.receipt())
    found = baseline.judge(settings, made.receipt(preset="glm5-nvfp4", server={"throughput_tok_s": 10.0}))
    assert Verdict.FAIL not in {one.verdict for one in found}
    assert "measured for the baseline and not now: server tiny throughput_tok_s, " in found[-1].message
    assert (found[-1].verdict, found[-1].required) == (Verdict.NOT_RUN, False)


def test_what_a_comparison_said_is_not_compared_again() -> None:
    told = [{"check": "baseline/fabric-x", "verdict": "WARN", "message": "m", "numbers": {"h2d_gb_s": 1.0}}]
    assert measured.values(measuring("h2d_gb_s", 50.0)) == {Key("fabric/x", "GPU 1", "h2d_gb_s"): 50.0}
    assert measured.values(made.receipt(outcomes=told, server=None)) == {}


def test_only_a_good_run_with_numbers_is_a_baseline(settings: Settings) -> None:
    with pytest.raises(CheckFailed, match="is FAIL: only a good run is a baseline"):
        baseline.record(settings, made.failing())
    with pytest.raises(CheckFailed, match="holds no rate and no time"):
        baseline.record(settings, measuring("power_w", 3.0))
    assert not (settings.root / baseline.FOLDER).exists()


def test_dry_writes_nothing_and_the_name_tells_whose_it_is(settings: Settings) -> None:
    file = baseline.record(settings, made.receipt(), dry=True)
    card = "8-nvidia-rtx-pro-6000-blackwell-server-edition"
    assert file.name == f"{made.NODE}-rtx-pro-6000-8x-direct-{card}-600-w.json"
    assert not file.exists()


def test_a_newer_baseline_takes_the_place_of_the_older(settings: Settings) -> None:
    files = {baseline.record(settings, measuring("h2d_gb_s", value)) for value in (50.0, 40.0)}
    (file,) = files
    found = baseline.load(file)
    assert found is not None
    assert [*found.values().values()] == [40.0]
    assert sorted(path.name for path in file.parent.iterdir()) == [file.name]


def test_a_file_that_is_no_baseline_is_named(settings: Settings) -> None:
    file = baseline.record(settings, made.receipt())
    file.write_text("{}")
    with pytest.raises(UserError, match="is no baseline"):
        baseline.judge(settings, made.receipt())


def test_findings_of_a_comparison_fit_into_a_receipt(settings: Settings) -> None:
    baseline.record(settings, made.receipt())
    assert len(outcomes(baseline.judge(settings, made.receipt(outcomes=[*made.outcomes(0.5)])))) == 10
