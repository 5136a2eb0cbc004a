"""The child's side of a GPU probe: run one module's `work` and write down each record that it says.

`python3 -m kiln.probe.child .MODULE ARGUMENTS…`, started by children.py only. A record is one JSON object on one line
of the file that PROBE_RECORDS names, so that neither a library's words nor a crash can spoil what was found before.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any, Protocol

RECORDS = "PROBE_RECORDS"
_PR_SET_PDEATHSIG = 1  # prctl(2)


class Say(Protocol):
    """Writes one record down."""

    def __call__(self, record: dict[str, Any]) -> None: ...


class NotRun(Exception):
    """What was asked for cannot be looked at here: no GPU, no library, not supported. Its text is the reason."""


def die_with(parent: int) -> None:
    """Ask the kernel to kill this process when its parent ends; ends it at once if the parent is gone already."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def main(argv: list[str]) -> int:
    """Run `work(arguments, say)` of the module; NotRun is a record and no error, anything else ends the child."""
    # Loaded by its name: this file runs as __main__, and a NotRun of another module would not be ours.
    own = importlib.import_module(f"{__package__}.child")
    own.die_with(int(os.environ["PROBE_PARENT"]))
    module = importlib.import_module(argv[0], __package__)
    with Path(os.environ[RECORDS]).open("a", encoding="utf-8", buffering=1) as file:

        def say(record: dict[str, Any]) -> None:
            file.write(json.dumps(record) + "\n")

        try:
            module.work(argv[1:], say)
        except own.NotRun as why:
            say({"not_run": str(why)})
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
