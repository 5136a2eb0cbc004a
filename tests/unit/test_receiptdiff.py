"""Two receipts side by side."""

from __future__ import annotations

import json

import pytest

from kiln.receiptdiff import Condition, diff
from kiln.report import terminal
from tests import madereceipts as made

pytestmark = pytest.mark.unit


def test_a_receipt_does_not_differ_from_itself() -> None:
    found = diff(made.receipt(), made.receipt())
    assert (found.conditions, found.changed, found.moved, found.gone, found.added) == ((), (), (), (), ())


def test_what_was_another_image_or_node_is_told() -> None:
    other = made.receipt(image={"digest": "sha256:" + "6b" * 32}, node={**made.node(limit_w=450.0), "driver": "595.1"})
    assert diff(made.receipt(), other).conditions == (
        Condition("power limit", "600 W", "450 W"),
        Condition("driver", "580.95.05", "595.1"),
        Condition("image", made.DIGEST, "sha256:" + "6b" * 32),
        Condition("plan", made.PLAN[:12], "–"),
    )


def test_verdicts_that_changed_appeared_and_went_are_told() -> None:
    old = made.receipt(outcomes=[*made.outcomes(), {"check": "after/xid", "verdict": "PASS", "message": "none"}])
    found = diff(old, made.failing())
    assert [(one.check, one.subject, one.old, one.new) for one in found.changed] == [
        ("after/xid", "", "PASS", "–"),
        ("fabric/peers", "GPU 2 -> 5", "–", "FAIL"),
        ("fabric/heat", "GPU 5", "–", "WARN"),
        ("numerics/moe", "", "–", "NOT_RUN"),
    ]
    assert found.verdicts == ("PASS", "FAIL")


def test_numbers_come_with_percent_and_the_worst_first() -> None:
    found = diff(made.receipt(), made.receipt(outcomes=[*made.outcomes(0.8)]))
    first = found.moved[0]
    assert (str(first.key), first.word) == ("fabric/allreduce 8 ranks latency_us", "worse")
    assert first.percent == pytest.approx(25.0)
    rates = [one for one in found.moved if one.key.name == "h2d_gb_s"]
    assert {round(one.percent or 0) for one in rates} == {-20}


def test_numbers_that_only_one_has_are_told() -> None:
    found = diff(made.receipt(), made.not_run())
    assert {key.check for key in found.gone} == {"server"}
    assert diff(made.not_run(), made.receipt()).added == found.gone


def test_the_difference_is_printed_and_plain_data(capsys: pytest.CaptureFixture[str]) -> None:
    found = diff(made.receipt(), made.receipt(id="0e11", outcomes=[*made.outcomes(0.995)]))
    json.dumps(found.as_dict())
    terminal.show_diff(found, 1.0)
    said = capsys.readouterr().out
    assert "receipts a1b2c3d4e5f6 -> 0e11: PASS -> PASS" in said
    assert "0 verdicts and 0 numbers changed, 18 numbers by less than 1 %" in said
    terminal.show_diff(found, 0.0)
    assert "fabric/bandwidth  GPU 3    h2d_gb_s" in capsys.readouterr().out
