"""The only place where a process starts."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

from kiln import daemon
from kiln.errors import KilnError

# prctl(2): the signal that a process gets when the one that started it dies.
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Completed:
    """What a finished process left: exit status and decoded output."""

    argv: tuple[str, ...]
    returncode: int
    stdout: str
    stderr: str


class CommandFailed(KilnError):
    """A command that kiln needed ended with a non-zero status."""

    def __init__(self, done: Completed, log: Path | None = None) -> None:
        tail = "\n".join((done.stderr or done.stdout).strip().splitlines()[-12:])
        where = f"\n  log: {log}" if log else ""
        super().__init__(f"`{' '.join(done.argv[:6])}…` ended with {done.returncode}{where}\n{tail}")
        self.done = done


class CutOff(KilnError):
    """A command was ended before it was done: `late` if its time was up, else because we were asked to stop."""

    def __init__(self, done: Completed, *, late: bool, timeout_s: float) -> None:
        why = f"was still running after {timeout_s:.0f} s" if late else "was stopped"
        super().__init__(f"`{' '.join(done.argv[:6])[:200]}…` {why}")
        self.done, self.late = done, late


def run(
    argv: Sequence[str | Path],
    *,
    check: bool = True,
    timeout_s: float | None = None,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    stdin: bytes | None = None,
) -> Completed:
    """Run to the end with output captured. `env` is added to the process's own.

    Raises CommandFailed on a non-zero status if `check`, and subprocess.TimeoutExpired.
    """
    words = tuple(str(word) for word in argv)
    proc = subprocess.run(
        words, cwd=cwd, env={**os.environ, **(env or {})}, input=stdin, stdin=None if stdin else subprocess.DEVNULL,
        capture_output=True, timeout=timeout_s, check=False,
    )  # fmt: skip
    done = Completed(words, proc.returncode, _text(proc.stdout), _text(proc.stderr))
    if check and done.returncode != 0:
        raise CommandFailed(done)
    return done


def stream(
    argv: Sequence[str | Path],
    *,
    log: Path,
    on_line: Callable[[str], None] | None = None,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> Completed:
    """Run with both outputs joined, each line appended to `log` and given to `on_line`; returns whatever the status.

    The child leads a process group of its own, which dies with us on an interrupt or an error in `on_line`, and with it
    what it started in other groups (a container's processes); the child itself also when we are killed.
    """
    words = tuple(str(word) for word in argv)
    log.parent.mkdir(parents=True, exist_ok=True)
    tail: list[str] = []
    libc = ctypes.CDLL(None)
    with log.open("a", encoding="utf-8") as out:
        proc = subprocess.Popen(
            words, cwd=cwd, env={**os.environ, **(env or {})}, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
            preexec_fn=lambda: libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM),
        )  # fmt: skip
        try:
            assert proc.stdout is not None
            for raw in proc.stdout:
                line = _text(raw).rstrip("\r\n")
                out.write(line + "\n")
                out.flush()
                tail = [*tail[-199:], line]
                if on_line:
                    on_line(line)
            proc.wait()
        except BaseException:
            started = _descendants(proc.pid)
            os.killpg(proc.pid, signal.SIGTERM)
            proc.wait(timeout=20)
            _kill(started)
            raise
        finally:
            if proc.stdout:
                proc.stdout.close()
    return Completed(words, proc.returncode, "\n".join(tail), "")


def bounded(
    argv: Sequence[str | Path],
    *,
    timeout_s: float,
    grace_s: float = 5.0,
    stdin: bytes = b"",
    stop: threading.Event | None = None,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> Completed:
    """Run to an end that comes for certain; returns whatever the status.

    After `timeout_s`, or once `stop` is set, its process group and all below it get SIGTERM, and SIGKILL `grace_s`
    later: then CutOff is raised, with the output so far. Output goes through files, so nothing that holds it open
    makes us wait. The child also dies with the thread that started it.
    """
    words = tuple(str(word) for word in argv)
    libc = ctypes.CDLL(None)
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        given.write(stdin)
        given.seek(0)
        proc = subprocess.Popen(
            words, cwd=cwd, env={**os.environ, **(env or {})}, stdin=given, stdout=out, stderr=errors,
            start_new_session=True, preexec_fn=lambda: libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM),
        )  # fmt: skip
        ended = False
        try:
            ended = _ends(proc, time.monotonic() + timeout_s, stop)
        finally:
            late = not (stop and stop.is_set())
            if not ended:
                _end(proc, grace_s)
        out.seek(0)
        errors.seek(0)
        done = Completed(words, proc.returncode, _text(out.read()), _text(errors.read()))
    if not ended:
        raise CutOff(done, late=late, timeout_s=timeout_s)
    return done


def _ends(proc: subprocess.Popen[bytes], until: float, stop: threading.Event | None) -> bool:
    """Wait until a process has ended, its time is up or `stop` is set; tells whether it ended by itself."""
    while (left_s := until - time.monotonic()) > 0 and not (stop and stop.is_set()):
        with suppress(subprocess.TimeoutExpired):
            proc.wait(timeout=min(left_s, 0.2))
            return True
    return proc.poll() is not None


def _end(proc: subprocess.Popen[bytes], grace_s: float) -> None:
    """End a process, its group and what it started in other groups."""
    started = _descendants(proc.pid)
    with suppress(ProcessLookupError):
        os.killpg(proc.pid, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        proc.wait(timeout=grace_s)
    with suppress(ProcessLookupError):
        os.killpg(proc.pid, signal.SIGKILL)
    proc.wait()
    _kill(started)


@contextmanager
def reading(argv: Sequence[str | Path], *, env: Mapping[str, str] | None = None) -> Iterator[BinaryIO]:
    """Open what a process writes. At the end of the block it must have ended well, unless the reader stopped early.

    Raises CommandFailed on a non-zero status.
    """
    words = tuple(str(word) for word in argv)
    with tempfile.TemporaryFile() as errors:
        proc = subprocess.Popen(
            words, env={**os.environ, **(env or {})}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors,
        )  # fmt: skip
        assert proc.stdout is not None
        try:
            yield cast(BinaryIO, proc.stdout)
            stopped_early = bool(proc.stdout.read(1))
        except BaseException:
            proc.terminate()
            raise
        finally:
            proc.stdout.close()
            status = proc.wait()
        errors.seek(0)
        if status != 0 and not stopped_early:
            raise CommandFailed(Completed(words, status, "", _text(errors.read())))


def _descendants(pid: int) -> dict[int, str]:
    """Return the processes below one, each with the time it started: a number alone may soon be another's."""
    parents = dict[int, int]()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return {one: started for one in found - {pid} if (started := daemon.start_time(one))}


def _kill(processes: Mapping[int, str]) -> None:
    """Kill those that are still there; a daemon was never among them, it has another parent."""
    for pid, started in processes.items():
        if daemon.start_time(pid) == started:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def spawn_daemon(argv: Sequence[str | Path], *, log: Path, env: Mapping[str, str] | None = None) -> int:
    """Start a process that outlives us, output to `log`; returns its pid."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as out:
        proc = subprocess.Popen(
            [str(word) for word in argv], env={**os.environ, **(env or {})}, stdin=subprocess.DEVNULL,
            stdout=out, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
    proc.returncode = 0  # it outlives us: nobody waits for it, and Python shall not warn of that
    return proc.pid


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def attached(argv: Sequence[str | Path], *, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> int:
    """Run with our own terminal, inputs and outputs; returns the exit status."""
    return subprocess.call([str(word) for word in argv], cwd=cwd, env={**os.environ, **(env or {})})


def relay(argv: Sequence[str | Path], *, out: Path, cwd: Path, env: Mapping[str, str]) -> int:
    """Run with our own stderr, stdout into a file and no other environment than `env`; returns the exit status.

    An interrupt is handed on once, and the process may then tidy up for as long as it takes.
    """
    with out.open("wb") as file:
        proc = subprocess.Popen(
            [str(word) for word in argv], cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=file, process_group=0
        )
        try:
            return proc.wait()
        except BaseException:
            proc.send_signal(signal.SIGINT)
            proc.wait()
            raise
