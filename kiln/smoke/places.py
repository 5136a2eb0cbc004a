"""Places where a probe runs: the node itself, a container of the image, or a Python of the node."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from testinfra.backend.base import CommandResult
from testinfra.host import Host

from kiln.facts.reading import BadReport
from kiln.smoke.connection import KILL_S, TIME_UP, TimedOut, call
from kiln.smoke.node import Opened

IMAGE_PYTHON = "/opt/kiln/bin/python"
BUNDLE = "/run/kiln/probe.pyz"
_DOCKER = ("--gpus", "all", "--ulimit", "memlock=-1", "--ulimit", "stack=67108864")
_PODMAN = ("--device", "nvidia.com/gpu=all", "--ulimit", "host")
# Starting a container, with the image's layers cold on disk.
START_S = 60


class Place(Protocol):
    """Where a probe runs."""

    def probe(self, name: str, args: Sequence[str], timeout_s: float) -> str:
        """Run a probe; returns what it printed. Raises TimedOut, NodeLost, BadReport, run.CutOff."""


def _words(words: Sequence[str]) -> str:
    return " ".join(shlex.quote(word) for word in words)


@dataclass(frozen=True)
class OnNode:
    """The node, with the given Python; as root where that needs no password."""

    host: Host
    opened: Opened
    python: str = "python3"
    as_root: bool = True

    def probe(self, name: str, args: Sequence[str], timeout_s: float) -> str:
        root = self.opened.as_root if self.as_root else ""
        # sudo's own timeout(1): the outer one runs as a user who may not kill what root runs.
        bound = f"{root}timeout -k {KILL_S} {timeout_s:.0f} " if root else ""
        words = _words([self.python, f"{self.opened.dir}/probe.pyz", name, *args])
        answer = call(self.host, bound + words, timeout_s=timeout_s + 2 * KILL_S if root else timeout_s)
        return output(name, answer, timeout_s)


@dataclass(frozen=True)
class InImage:
    """A container of the image, one for each probe; gone when the probe is, or its time."""

    host: Host
    opened: Opened
    image: str
    run_id: str
    options: Sequence[str] = field(default=())

    def probe(self, name: str, args: Sequence[str], timeout_s: float) -> str:
        program = ["timeout", "-k", str(KILL_S), f"{timeout_s:.0f}", IMAGE_PYTHON, BUNDLE, name, *args]
        options = ["--rm", "--network", "none", "--entrypoint", "/usr/bin/tini"]
        command = self.engine(["run", *self.container(name), *options, self.image, "--", *program])
        try:
            answer = call(self.host, command, timeout_s=timeout_s + START_S)
        except TimedOut:  # timeout(1) ended the client, not the container
            call(self.host, self.engine(["rm", "--force", self.name(name)]), timeout_s=30)
            raise
        return output(name, answer, timeout_s)

    def name(self, what: str) -> str:
        """Return the name of the container that runs a probe or the server."""
        return f"kiln-smoke-{self.run_id}-{what}"

    def engine(self, words: Sequence[str]) -> str:
        """Return a command of the node's container engine."""
        return f"{self.opened.runtime} {_words(words)}"

    def container(self, what: str) -> list[str]:
        """Return the options of every container: name, label, GPUs, limits, the bundle."""
        # Raising a limit takes rights that a podman without root does not have.
        gpus = _PODMAN if self.opened.is_podman else _DOCKER
        return [
            "--name", self.name(what), "--label", f"kiln.smoke={self.run_id}", *gpus, "--ipc", "host",
            "--pull", "never", "--volume", f"{self.opened.dir}/probe.pyz:{BUNDLE}:ro", *self.options,
        ]  # fmt: skip


def output(name: str, answer: CommandResult, timeout_s: float) -> str:
    """Return what a probe printed, if it ended well. Raises TimedOut, or BadReport with its last words."""
    if answer.rc == 0:
        return str(answer.stdout)
    if answer.rc == TIME_UP:
        raise TimedOut(f"probe {name}", timeout_s, answer.stderr)
    tail = "\n".join((answer.stderr.strip() or answer.stdout.strip()).splitlines()[-6:])
    raise BadReport(f"the probe {name} ended with {answer.rc}: {tail[-800:]}")
