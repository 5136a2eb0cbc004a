"""One node under test: the job says which, and what to run; without one every test is NOT_RUN and says so."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from testinfra.host import Host

from kiln import baseline, bundle, receipts, topologies
from kiln.settings import from_env
from kiln.smoke import job as jobs
from kiln.smoke.access import Clock
from kiln.smoke.connection import Target, connect, hang_up
from kiln.smoke.draft import Draft
from kiln.smoke.session import Session
from kiln.verdict import Finding, Verdict, worst


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("kiln node", "node under test")
    group.addoption("--kiln-job", default="", help="job file of the node, as `inv smoke` writes it")


@pytest.fixture(scope="session")
def session(request: pytest.FixtureRequest) -> Iterator[Session]:
    """The node's run. At its end, however it comes, the node is as it was and the receipt is written."""
    file = request.config.getoption("--kiln-job")
    if not file:
        pytest.skip("NOT_RUN: no --kiln-job given; `inv smoke` runs these")
    job, stop = jobs.read(Path(file)), threading.Event()
    settings = replace(from_env(), root=job.root)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    found = Session(
        job, connect(Target(job.host, job.ssh_config), stop), Clock(job.seconds, stop), bundle.build,
        topologies.load_all(settings.root), lambda receipt: baseline.judge(settings, receipt),
        Draft(job),
    )  # fmt: skip
    found.draft.write()
    try:
        yield found
    finally:
        receipt = found.finish()
        path = receipts.save(settings, receipt, private=(job.host, found.draft.node_name))
        job.receipt.write_text(f"{path}\n")
        hang_up(found.host)


@pytest.fixture(scope="session")
def host(session: Session) -> Host:
    """testinfra's host; every command on it ends."""
    return session.host


@pytest.fixture
def verdict(session: Session, record_property: Callable[[str, object], None]) -> Callable[[str], None]:
    """Turn what a step or check found into a test's result: FAIL fails, NOT_RUN skips, WARN passes with a property."""

    def judge(name: str) -> None:
        found = session.findings(name)
        for one in found:
            record_property(one.verdict.lower(), _text(one))
            for number, value in one.numbers.items():
                record_property(f"{one.subject} {number}".strip(), value)
        bad = worst(one.verdict for one in found)
        text = "\n".join(_text(one) for one in found if one.verdict is bad)
        if bad is Verdict.FAIL:
            pytest.fail(text, pytrace=False)
        if bad is Verdict.NOT_RUN:
            pytest.skip(f"NOT_RUN: {text}")

    return judge


def _text(finding: Finding) -> str:
    subject = f"{finding.subject}: " if finding.subject else ""
    tail = [f"  {word}: {text}" for word, text in (("cause", finding.cause), ("cure", finding.cure)) if text]
    return "\n".join([f"{subject}{finding.message}", *tail])
