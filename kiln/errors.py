"""Errors: one problem, or all problems of a phase at once; the command line maps them to exit codes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Problem:
    """One thing wrong: where it stands (`file:line` or empty), what it is, and the next command.

    Problems sort by file, then by line as a number.
    """

    source: str
    message: str
    hint: str = ""

    def __lt__(self, other: Problem) -> bool:
        return self._order() < other._order()

    def _order(self) -> tuple[str, int, str, str]:
        file, _, line = self.source.rpartition(":")
        where = (file, int(line)) if line.isdigit() else (self.source, 0)
        return (*where, self.message, self.hint)

    def __str__(self) -> str:
        head = f"{self.source}: {self.message}" if self.source else self.message
        return f"{head}\n  hint: {self.hint}" if self.hint else head


class KilnError(Exception):
    """Any error that kiln itself reports; `exit_code` is the process's."""

    exit_code = 3


class UserError(KilnError):
    """Bad input or a missing part that the user can mend. Exit code 2."""

    exit_code = 2

    def __init__(self, message: str, *, hint: str = "", source: str = "") -> None:
        super().__init__(message)
        self.problems: tuple[Problem, ...] = (Problem(source, message, hint),)

    def __str__(self) -> str:
        return "\n".join(str(problem) for problem in self.problems)


class Problems(UserError):
    """Every problem of one phase, sorted. Exit code 2."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(sorted(set(problems)))
        KilnError.__init__(self, f"{len(self.problems)} problems")


class CheckFailed(KilnError):
    """A check or a test failed: the input was good, the result is not. Exit code 1."""

    exit_code = 1


def raise_all(problems: Iterable[Problem]) -> None:
    """Raise `Problems` if there are any."""
    found = tuple(problems)
    if found:
        raise Problems(found)
