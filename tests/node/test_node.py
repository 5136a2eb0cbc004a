"""A node: each step of the run and each check is one test, in the order in which they must come."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kiln.checks import load_all
from kiln.smoke.draft import BASELINE, CONNECTION, PULL, TEARDOWN
from kiln.smoke.session import Session

pytestmark = pytest.mark.node
Judge = Callable[[str], None]


def of(*phases: str) -> pytest.MarkDecorator:
    """Make one test of each check of some phases; its id is the check's name."""
    return pytest.mark.parametrize("check", [one.name for one in load_all() if one.phase in phases], ids=str)


def test_connection(verdict: Judge) -> None:
    verdict(CONNECTION)


@of("preflight")
def test_before_the_pull(check: str, verdict: Judge) -> None:
    verdict(check)


def test_pull(session: Session, verdict: Judge) -> None:
    if not session.job.image:
        pytest.skip("NOT_RUN: there is no image")
    verdict(PULL)


@of("container", "fabric", "numerics", "server", "after")
def test_check(check: str, verdict: Judge) -> None:
    verdict(check)


def test_teardown(verdict: Judge) -> None:
    verdict(TEARDOWN)


def test_baseline(verdict: Judge) -> None:
    verdict(BASELINE)
