"""kiln/run.py: processes end with us, however we end."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kiln import daemon
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
