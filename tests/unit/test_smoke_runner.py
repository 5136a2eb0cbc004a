"""`inv smoke` on this very machine: a process, a receipt, a report of tests, a table; and what is printed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from kiln import checks, host, receipts
from kiln.errors import CheckFailed
from kiln.receipt import ImageTested, NodeTested, Outcome, Receipt
from kiln.settings import ROOT, Settings, from_env
from kiln.smoke import results, runner
from kiln.smoke.job import Job
from kiln.smoke.options import Options
from kiln.verdict import Verdict

pytestmark = pytest.mark.unit


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """A checkout of its own for receipts."""
    root = tmp_path / "checkout"
    root.mkdir()
    for name in ("topologies", "presets"):
        (root / name).symlink_to(ROOT / name)
    return replace(from_env(), root=root, home=tmp_path / "home")


@pytest.mark.slow
@pytest.mark.skipif(host.which("nvidia-smi") is not None, reason="NOT_RUN: it is about a machine without a GPU")
def test_this_machine_without_a_gpu_is_unfit_and_told_why(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    found = runner.smoke(settings, runner.plan(settings, Options(deadline=100)), quiet=True)
    (one,) = found
    named = {outcome.check: outcome for outcome in one.receipt.outcomes}
    assert one.receipt.verdict is Verdict.FAIL
    assert named["preflight/gpu-count"].verdict is Verdict.FAIL
    assert "lspci" in named["preflight/gpu-count"].cure
    assert named["preflight/driver"].verdict is Verdict.FAIL
    assert named["fabric/heat"].verdict is Verdict.NOT_RUN
    assert named["fabric/heat"].cure == "give --image REF@sha256:…"
    assert named["run/teardown"].verdict is Verdict.PASS
    assert {check.name for check in checks.load_all()} <= {*named}
    assert not [path for path in tmp_path.iterdir() if path.name.startswith("kiln-smoke")]
    assert receipts.load_all(settings) == (one.receipt,)
    assert one.path.is_relative_to(settings.root / "receipts" / "smoke" / "no-image")
    _require_report(one.job)
    results.show(found)
    shown = capsys.readouterr().out
    assert "FAIL    preflight/driver  the driver does not answer\n          cause no driver is loaded" in shown
    assert f"receipt  {one.path}" in shown
    assert shown.count("there is no image to run it in") == 1
    with pytest.raises(CheckFailed, match="not fit to serve: this node FAIL"):
        results.require_good(found)


def _require_report(job: Job) -> None:
    """The report has a test for each check under the check's name, with its cause and cure."""
    tests = {test.get("name"): test for test in ElementTree.parse(job.junit).iter("testcase")}
    failure = tests["test_before_the_pull[preflight/driver]"].find("failure")
    skipped = tests["test_check[fabric/heat]"].find("skipped")
    assert failure is not None
    assert "cure: install NVIDIA's driver" in str(failure.text) + str(failure.get("message"))
    assert skipped is not None
    assert "NOT_RUN: there is no image to run it in" in str(skipped.get("message"))


def receipt(*outcomes: Outcome, verdict: Verdict) -> Receipt:
    return Receipt(
        schema="kiln/receipt/1", id="x", started="2026-10-01T00:00:00Z", seconds=61, kiln="", verdict=verdict,
        image=ImageTested(), node=NodeTested(name_hash="0123456789ab", topology="any"), outcomes=outcomes,
    )  # fmt: skip


def ran(tmp_path: Path, found: Receipt, name: str) -> runner.Ran:
    job = Job(id="x", root=tmp_path, folder=tmp_path, host=name, phases=checks.PHASES, seconds=60)
    return runner.Ran(job, found, tmp_path / "receipt.json")


def test_the_table_names_what_is_wrong_once_and_what_is_not_required_not_at_all(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = receipt(
        Outcome(check="a/one", verdict=Verdict.PASS, message="fine"),
        Outcome(check="a/two", verdict=Verdict.WARN, message="slow", subject="GPU 3", cause="dust", cure="clean it"),
        Outcome(check="a/three", verdict=Verdict.NOT_RUN, message="no [image]"),
        Outcome(check="a/four", verdict=Verdict.NOT_RUN, message="no [image]"),
        Outcome(check="a/five", verdict=Verdict.NOT_RUN, message="nobody asks", required=False),
        verdict=Verdict.NOT_RUN,
    )
    good = receipt(Outcome(check="a/one", verdict=Verdict.PASS, message="fine"), verdict=Verdict.PASS)
    found = [ran(tmp_path, bad, "n1"), ran(tmp_path, good, "n2")]
    results.show(found)
    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    assert "WARN    a/two  GPU 3: slow\n          cause dust\n          cure  clean it\n" in shown
    assert "NOT_RUN a/three and 1 other  no [image]\n" in shown
    assert "nobody asks" not in shown
    assert "a/one" not in shown
    with pytest.raises(CheckFailed, match=r"n1 NOT_RUN$"):
        results.require_good(found)
    data = json.loads(json.dumps(results.data(found)))
    assert [(one["node"], one["verdict"]) for one in data] == [("n1", "NOT_RUN"), ("n2", "PASS")]


def test_a_node_with_warnings_is_fit(tmp_path: Path) -> None:
    results.require_good([ran(tmp_path, receipt(verdict=Verdict.WARN), "n1")])


def test_a_dry_run_tells_each_node_and_starts_nothing(
    settings: Settings, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    image = f"127.0.0.1:9/kiln/sglang@sha256:{'a' * 64}"
    options = Options(hosts=("n1", "n2"), image=image, phases=("fabric",), topology="any")
    jobs = runner.plan(settings, options)
    results.show_jobs(jobs)
    shown = capsys.readouterr().out
    assert "n1\n" in shown
    assert "phases   preflight, fabric, after\n" in shown
    assert "topology any\n" in shown
    assert "registry the registry does not tell from here" in shown
    assert len({job.id for job in jobs}) == 2
    assert not (tmp_path / "home").exists()
