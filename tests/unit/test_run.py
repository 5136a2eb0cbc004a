"""kiln/run.py: processes end with us, however we end."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from kiln import daemon
from kiln.run import CutOff, bounded
from kiln.settings import ROOT

pytestmark = pytest.mark.unit

STREAM = """
import signal, sys
from pathlib import Path
from kiln import run
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job would ignore it
run.stream(["sh", "-c", "echo $$; exec sleep 60"], log=Path(sys.argv[1]), on_line=lambda line: print(line, flush=True))
"""


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_streamed_process_ends_when_kiln_is_ended(end: signal.Signals, tmp_path: Path) -> None:
    """A client that outlived a killed build would compile on, beside the build that is started next."""
    with subprocess.Popen(
        [sys.executable, "-c", STREAM, str(tmp_path / "log")], cwd=ROOT, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, text=True,
    ) as proc:  # fmt: skip
        assert proc.stdout is not None
        child = int(proc.stdout.readline())
        assert daemon.start_time(child)
        proc.send_signal(end)
        proc.wait(timeout=30)
    deadline = time.monotonic() + 10
    while daemon.start_time(child) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert daemon.start_time(child) is None


def test_a_bounded_command_gives_its_output_and_status() -> None:
    done = bounded(["sh", "-c", "cat; echo no >&2; exit 3"], timeout_s=20, stdin=b"in")
    assert (done.returncode, done.stdout, done.stderr) == (3, "in", "no\n")


def test_a_bounded_command_ends_with_all_that_it_started_also_in_other_groups() -> None:
    """timeout(1) leads a process group of its own, so killing ours is not enough."""
    script = "trap '' TERM; echo so far; timeout 60 sh -c 'trap \"\" TERM; echo $$; while :; do sleep 0.1; done'"
    with pytest.raises(CutOff, match="was still running after 1 s") as caught:
        bounded(["sh", "-c", script], timeout_s=1, grace_s=0.5)
    words = caught.value.done.stdout.split()
    assert words[:2] == ["so", "far"]
    time.sleep(0.2)
    assert daemon.start_time(int(words[2])) is None


def test_what_holds_the_output_open_makes_nobody_wait() -> None:
    began = time.monotonic()
    done = bounded(["sh", "-c", "setsid sleep 5 & echo done"], timeout_s=20)
    assert done.stdout == "done\n"
    assert time.monotonic() - began < 4


def test_a_bounded_command_is_stopped_when_asked_to() -> None:
    stop = threading.Event()
    threading.Timer(0.3, stop.set).start()
    began = time.monotonic()
    with pytest.raises(CutOff, match="was stopped") as caught:
        bounded(["sleep", "30"], timeout_s=30, stop=stop)
    assert not caught.value.late
    assert time.monotonic() - began < 5
