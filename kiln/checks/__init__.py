"""Checks: pure functions over facts, one file each; adding a file below a phase's folder adds a check.

A module kiln/checks/<phase>/<name>.py holds a docstring whose first line is the check's title, and
`judge(facts, topology)`, which yields findings. It may set `REQUIRED = False`: then a NOT_RUN of it does not keep a
node from being good. Its name is "<phase>/<name>" with dashes.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache

from kiln.facts import Facts, Unknown
from kiln.topologies import Topology
from kiln.verdict import Finding, not_run

PHASES = ("preflight", "container", "fabric", "numerics", "server", "after")


@dataclass(frozen=True)
class Check:
    """A check: its name, its title, and whether a node may be good without it."""

    name: str
    title: str
    required: bool
    judge: Callable[[Facts, Topology], Iterable[Finding]]

    @property
    def phase(self) -> str:
        return self.name.partition("/")[0]

    def run(self, facts: Facts, topology: Topology) -> tuple[Finding, ...]:
        """Judge; a fact that is not known makes it NOT_RUN, and a check that says nothing is NOT_RUN too."""
        try:
            found = tuple(self.judge(facts, topology))
        except Unknown as error:
            found = (not_run(str(error)),)
        found = found or (not_run("the check said nothing"),)
        return tuple(replace(one, check=self.name, required=one.required and self.required) for one in found)


@cache
def load_all() -> tuple[Check, ...]:
    """Return every check, by phase, then by name."""
    return tuple(check for phase in PHASES for check in _phase(phase))


def _phase(phase: str) -> list[Check]:
    package = importlib.import_module(f"kiln.checks.{phase}")
    names = sorted(module.name for module in pkgutil.iter_modules(package.__path__))
    return [_check(phase, name) for name in names]


def _check(phase: str, name: str) -> Check:
    module = importlib.import_module(f"kiln.checks.{phase}.{name}")
    title = (module.__doc__ or name).splitlines()[0].rstrip(".")
    return Check(f"{phase}/{name.replace('_', '-')}", title, getattr(module, "REQUIRED", True), module.judge)
