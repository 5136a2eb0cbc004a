"""The connection to a node: testinfra's host, but every command on it ends, here and there."""

from __future__ import annotations

import shlex
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from testinfra.backend.base import BaseBackend, CommandResult
from testinfra.host import Host

from kiln.errors import KilnError
from kiln.run import Completed, CutOff, bounded
from kiln.smoke import ssh

LIMIT_S = 20.0
# What a connection and a slow login shell may take on top, before the command's own limit begins.
LOGIN_S = 30.0
KILL_S = 5
BEGIN, END = "kiln-begin", "kiln-end"
# What timeout(1) says when the time was up and TERM was enough; after KILL it is 137, as for any killed command.
TIME_UP = 124


class NodeLost(KilnError):
    """The node could not be reached, or not any more."""

    def __init__(self, host: str, fault: ssh.Fault) -> None:
        super().__init__(f"{host or 'this node'}: {fault.message}")
        self.fault = fault


class TimedOut(KilnError):
    """A command on the node was ended because its time was up; `output` is what it had said."""

    def __init__(self, command: str, limit_s: float, output: str) -> None:
        super().__init__(f"`{command[:120]}` was still running after {limit_s:.0f} s")
        self.limit_s, self.output = limit_s, output


def wrapped(command: str, limit_s: float) -> str:
    """Bound a command by timeout(1) and have its status told in the output.

    ssh's own status 255 cannot be told from a command's, and a login shell may print before the command does.
    """
    bound = f"timeout -k {KILL_S} {limit_s:.0f} /bin/sh -c {shlex.quote(command)}"
    script = rf"echo {BEGIN}; {bound}; printf '\n{END} %d\n' $?"
    return f"/bin/sh -c {shlex.quote(script)}"


def unwrapped(output: str) -> tuple[int, str] | None:
    """Return status and output of a wrapped command; None if it did not come to its end."""
    _, began, rest = output.partition(f"{BEGIN}\n")
    text, ended, status = rest.rpartition(f"\n{END} ")
    return (int(status), text) if began and ended and status.strip().isdigit() else None


@dataclass(frozen=True)
class Target:
    """Where commands go: ssh with a configuration of its own, or this machine if `host` is empty."""

    host: str = ""
    ssh_config: Path | None = None

    def argv(self, script: str) -> list[str]:
        """Return what carries a script to the node's shell."""
        if not self.host:
            return ["/bin/sh", "-c", script]
        return ["ssh", "-T", "-F", str(self.ssh_config), "--", ssh.address(self.host), script]


@dataclass
class Counts:
    """What went over the connection."""

    round_trips: int = 0
    sent_bytes: int = 0
    commands: list[str] = field(default_factory=list)


class Connection(BaseBackend):  # type: ignore[misc]
    """testinfra's way to the node. Every module of it goes through `run`, so nothing has no limit.

    `stop`, once set, ends the command that runs and refuses further ones.
    """

    NAME = "kiln"

    def __init__(self, target: Target, stop: threading.Event | None = None, login_s: float = LOGIN_S) -> None:
        super().__init__(target.host or "local")
        self.target, self.stop, self.login_s = target, stop, login_s
        self.counts = Counts()

    def run(self, command: str, *args: str, **kwargs: Any) -> CommandResult:
        """Run a command; `timeout_s` (default LIMIT_S) and `stdin` are keyword arguments of `host.run`.

        A command that was ended has status 124 or 137. Raises NodeLost, CutOff if we were asked to stop.
        """
        limit_s = float(kwargs.get("timeout_s", LIMIT_S))
        full = self.get_command(command, *args)
        argv, stdin = self.target.argv(wrapped(full, limit_s)), kwargs.get("stdin", b"")
        self.counts.round_trips += 1
        self.counts.sent_bytes += len(stdin) + len(argv[-1])
        self.counts.commands.append(full[:80])
        done = self._watched(argv, stdin, limit_s)
        found = unwrapped(done.stdout)
        if found is None:
            raise NodeLost(self.target.host, ssh.explain(done.returncode, done.stderr, began=BEGIN in done.stdout))
        return self.result(found[0], full.encode(), found[1], done.stderr)

    def _watched(self, argv: Sequence[str], stdin: bytes, limit_s: float) -> Completed:
        """Run with a watchdog on this side: the link or the login shell may hang where timeout(1) does not reach."""
        patience_s = limit_s + KILL_S + (self.login_s if self.target.host else 1)
        try:
            return bounded(argv, timeout_s=patience_s, grace_s=1, stdin=stdin, stop=self.stop)
        except CutOff as error:
            if not error.late:
                raise
            raise NodeLost(self.target.host, ssh.silent(patience_s, BEGIN in error.done.stdout)) from None


def call(host: Host, command: str, *, timeout_s: float = LIMIT_S, stdin: bytes = b"") -> CommandResult:
    """Run a command on the node. Raises TimedOut, NodeLost, CutOff."""
    began = time.monotonic()
    answer: CommandResult = host.run(command, timeout_s=timeout_s, stdin=stdin)
    if answer.rc in (TIME_UP, 137) and time.monotonic() - began >= timeout_s:
        raise TimedOut(command, timeout_s, answer.stdout + answer.stderr)
    return answer


def connect(target: Target, stop: threading.Event | None = None) -> Host:
    """Return testinfra's host; nothing is sent yet."""
    return Host(Connection(target, stop))


def of(host: Host) -> Connection:
    """Return the connection behind a host of `connect`."""
    found = host.backend
    assert isinstance(found, Connection)
    return found


def hang_up(host: Host) -> None:
    """End the master connection that ssh keeps; it would end by itself a minute later."""
    target = of(host).target
    if target.host:
        argv = ["ssh", "-F", str(target.ssh_config), "-O", "exit", "--", ssh.address(target.host)]
        with suppress(CutOff):
            bounded(argv, timeout_s=5, grace_s=1)
