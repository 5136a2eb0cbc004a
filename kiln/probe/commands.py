"""Commands of the node, each with a time limit; what goes wrong becomes a fault."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress


def run(
    argv: list[str],
    faults: list[dict[str, str]],
    timeout_s: float,
    *,
    name: str = "",
    env: dict[str, str] | None = None,
) -> str | None:
    """Return what a command printed; None, and a fault, if it is missing, fails, or does not end in time.

    The fault's source is `name`, or the command's first two words.
    """
    name = name or " ".join(argv[:2])
    try:
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
            env={**os.environ, "LC_ALL": "C", **(env or {})},
        )  # fmt: skip
    except OSError as error:
        faults.append({"source": name, "error": error.strerror or str(error)})
        return None
    try:
        out, err = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        _abandon(process)
        faults.append({"source": name, "error": f"no answer within {timeout_s:g} s"})
        return None
    text = out.decode("utf-8", "replace")
    if process.returncode != 0:
        last = (err.decode("utf-8", "replace").strip() or text.strip()).splitlines()[-1:]
        faults.append({"source": name, "error": "ended with {}: {}".format(process.returncode, "".join(last)[:300])})
        return None
    return text


def _abandon(process: subprocess.Popen[bytes]) -> None:
    """Kill a command and all that it started; one that hangs in the kernel is left behind."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):
        process.wait(timeout=1)
    for stream in (process.stdout, process.stderr):
        if stream:
            stream.close()
