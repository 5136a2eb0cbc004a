"""Children of the GPU probes: real processes that hang, crash, lose a peer or leave others behind."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kiln.probe import children, offspring
from kiln.probe.children import Ended, Limits, Work
from tests.processes import gone

pytestmark = pytest.mark.unit

WORKER = """
import json, os, signal, subprocess, sys, time

def work(argv, say):
    what, rest = argv[0], argv[1:]
    say({"began": what})
    globals()[what](rest, say)

def good(rest, say):
    print("words of a library")
    say({"answer": 42})

def refuses(rest, say):
    from kiln.probe.child import NotRun
    raise NotRun("no GPU here")

def hangs(rest, say):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(600)

def talks(rest, say):
    for number in range(8):
        say({"number": number})
        time.sleep(0.25)
    time.sleep(600)

def raises(rest, say):
    raise ValueError("bad tactic 7")

def exits(rest, say):
    sys.exit(7)

def crashes(rest, say):
    print("before the crash", flush=True)
    os.kill(os.getpid(), signal.SIGSEGV)

def leaves(rest, say):
    child = subprocess.Popen(["sleep", "600"])
    daemon = subprocess.Popen(["sleep", "600"], start_new_session=True)
    say({"pids": [child.pid, daemon.pid]})

def orphans(rest, say):
    source = "import os, subprocess; print(subprocess.Popen(['sleep', '600'], start_new_session=True, stdout=2).pid)"
    done = subprocess.run([sys.executable, "-c", source + "; os._exit(0)"], stdout=subprocess.PIPE)
    say({"pids": [int(done.stdout)]})
    time.sleep(600)

def items(rest, say):
    say({"ready": True})
    for item in json.loads(rest[rest.index("--items") + 1]):
        if item == "crash":
            os.abort()
        if item == "hang":
            time.sleep(600)
        say({"item": item, "length": len(item)})

def never_ready(rest, say):
    raise OSError("no driver")
"""


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Work]:
    """Make the work of one function of WORKER."""
    (tmp_path / "worker.py").write_text(WORKER, encoding="utf-8")
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    return lambda what: Work("worker", [what], name=what)


def run(work: Work, deadline_s: float = 20.0) -> Ended:
    return children.one(work, Limits(deadline_s))


def test_a_good_child_leaves_its_records_and_its_words(start: Callable[[str], Work]) -> None:
    ended = run(start("good"))
    assert (ended.good, ended.records, ended.error()) == (True, [{"began": "good"}, {"answer": 42}], None)
    assert "words of a library" in ended.output


def test_a_child_that_cannot_look_says_why_and_is_not_in_error(start: Callable[[str], Work]) -> None:
    ended = run(start("refuses"))
    assert (ended.good, ended.not_run) == (True, "no GPU here")


def test_a_child_that_hangs_is_killed_at_its_deadline(start: Callable[[str], Work]) -> None:
    began = time.monotonic()
    ended = run(start("hangs"), deadline_s=1.5)
    assert time.monotonic() - began < 8
    assert (ended.reason, ended.code) == ("deadline", -9)
    assert (ended.error() or "").startswith(f"no end after {ended.seconds:.0f} s")


def test_a_record_is_progress_and_silence_is_not(start: Callable[[str], Work]) -> None:
    ended = children.one(start("talks"), Limits(deadline_s=60, silence_s=1.5))
    assert (ended.reason, ended.records[-1]) == ("deadline", {"number": 7})


@pytest.mark.parametrize(
    ("what", "reason", "code", "error"),
    [
        ("raises", "exit", 1, "ValueError: bad tactic 7"),
        ("exits", "exit", 7, "exit status 7"),
        ("crashes", "signal", -11, "killed by SIGSEGV; last words: before the crash"),
    ],
)
def test_a_child_that_ends_badly_says_how(
    start: Callable[[str], Work], what: str, reason: str, code: int, error: str
) -> None:
    ended = run(start(what))
    assert (ended.reason, ended.code, ended.error(), ended.good) == (reason, code, error, False)


def test_what_a_child_leaves_behind_is_counted_and_killed(start: Callable[[str], Work]) -> None:
    ended = run(start("leaves"))
    assert (ended.reason, ended.leftovers) == ("exit", 2)
    assert all(gone(pid) for pid in ended.records[-1]["pids"])


def test_a_daemon_of_a_child_that_hangs_is_killed_with_it(start: Callable[[str], Work]) -> None:
    ended = children.one(start("orphans"), Limits(60, silence_s=1))
    assert (ended.reason, ended.running) == ("deadline", ["sleep"])
    assert all(gone(pid) for pid in ended.records[-1]["pids"])
    assert "running: sleep" in (ended.error() or "")


def test_when_one_of_a_group_dies_the_others_do_not_wait_for_the_deadline(start: Callable[[str], Work]) -> None:
    began = time.monotonic()
    found = children.together([start("hangs"), start("crashes")], Limits(deadline_s=60, grace_s=0.5))
    assert time.monotonic() - began < 10
    assert [ended.reason for ended in found] == ["peer", "signal"]
    assert found[0].error() == "killed, as another process of its group had ended"


def test_the_items_after_one_that_kills_the_child_are_still_done(start: Callable[[str], Work]) -> None:
    found = children.each(start("items"), ["a", "crash", "bb", "hang", "ccc"], Limits(60, silence_s=2))
    assert {item: record.get("length") for item, record in found.items()} == {
        "a": 1, "crash": None, "bb": 2, "hang": None, "ccc": 3,
    }  # fmt: skip
    assert found["crash"]["ended"]["reason"] == "signal"
    assert found["hang"]["ended"]["reason"] == "deadline"


def test_a_child_that_never_gets_ready_is_started_once_for_all_items(start: Callable[[str], Work]) -> None:
    began = time.monotonic()
    found = children.each(start("never_ready"), ["a", "b", "c"], Limits(60))
    assert time.monotonic() - began < 5
    assert [record["ended"]["error"] for record in found.values()] == ["OSError: no driver"] * 3


def test_nothing_of_a_run_stays_in_the_temporary_folder(start: Callable[[str], Work], tmp_path: Path) -> None:
    run(start("leaves"))
    assert list((tmp_path / "tmp").iterdir()) == []


def supervise(work: Work) -> tuple[int, list[offspring.Process]]:
    """Start a supervisor in a process of its own; returns it and its family once a `sleep` is among them."""
    supervisor = os.fork()
    if supervisor == 0:
        try:
            children.one(work, Limits(60))
        finally:
            os._exit(3)
    until = time.monotonic() + 20
    while time.monotonic() < until:
        family = offspring.family(supervisor, "nothing")
        if any(process.name == "sleep" for process in family):
            return supervisor, family
        time.sleep(0.1)
    raise TimeoutError("the child did not start its own")


def test_a_child_dies_with_the_process_that_started_it(start: Callable[[str], Work]) -> None:
    supervisor, family = supervise(start("orphans"))
    os.kill(supervisor, 9)
    os.waitpid(supervisor, 0)
    sleeping = [process.pid for process in family if process.name == "sleep"]
    others = [process.pid for process in family if process.name != "sleep"]
    assert others
    assert all(gone(pid) for pid in others)
    lives_on = [not gone(pid, within_s=0) for pid in sleeping]  # nobody was left to end what the child itself started
    for pid in sleeping:
        os.kill(pid, 9)
    assert lives_on == [True]


def test_a_supervisor_that_is_told_to_stop_takes_its_children_and_files_with_it(
    start: Callable[[str], Work], tmp_path: Path
) -> None:
    supervisor, family = supervise(start("orphans"))
    os.kill(supervisor, 15)
    assert os.waitstatus_to_exitcode(os.waitpid(supervisor, 0)[1]) == 3
    assert all(gone(process.pid) for process in family)
    assert list((tmp_path / "tmp").iterdir()) == []
