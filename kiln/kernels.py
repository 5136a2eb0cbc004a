"""Kernel modules: the machine-written tables in locks/kernels, and the choice of modules by globs."""

from __future__ import annotations

import difflib
import fnmatch
import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from kiln.errors import Problem, UserError, raise_all

COMMAND = "images/flashinfer/enumerate_kernels.py"
_ROW = re.compile(
    r' +\{name = "(?P<name>[^"\\]+)", units = (?P<units>\d+), core_s = (?P<core_s>\d+), peak_mb = (?P<peak_mb>\d+)'
    r"(?:, measured = (?P<measured>true))?\},"
)


@dataclass(frozen=True, order=True)
class Module:
    """One kernel library. `core_s` is CPU seconds over all its units, `peak_mb` the memory of its heaviest unit."""

    name: str
    units: int
    core_s: float
    peak_mb: int
    measured: bool = False


@dataclass(frozen=True)
class KernelTable:
    """Every module that one FlashInfer version makes for one GPU, by name; `file` is relative to the checkout."""

    file: str
    modules: tuple[Module, ...]


@dataclass(frozen=True)
class Estimate:
    """What it costs to compile some modules."""

    units: int
    core_s: float
    peak_mb: int


def table_file(version: str, gpu: str) -> str:
    """Return the table's path in a checkout; a local version suffix makes no other kernels."""
    return f"locks/kernels/flashinfer-{version.partition('+')[0]}-{gpu}.toml"


def load_table(root: Path, version: str, gpu: str) -> KernelTable:
    """Read the table of one FlashInfer version and GPU. Raises UserError."""
    file = table_file(version, gpu)
    try:
        rows = tuple(sorted(_rows((root / file).read_text(encoding="utf-8"))))
    except FileNotFoundError:
        raise UserError(
            f"no kernel table for FlashInfer {version} on {gpu}", hint=f"write it with {COMMAND}", source=file
        ) from None
    except (tomllib.TOMLDecodeError, KeyError, TypeError) as error:
        raise UserError(f"not a kernel table: {error}", hint=f"write it again with {COMMAND}", source=file) from None
    return KernelTable(file, rows)


def _rows(text: str) -> list[Module]:
    """Read rows as the enumeration writes them, one a line; TOML's parser, which is slow, reads whatever else it is."""
    lines = text.partition("modules = [\n")[2].splitlines()
    found = [_ROW.fullmatch(line) for line in lines[:-1]]
    if lines[-1:] != ["]"] or not all(found):
        return [Module(**row) for row in tomllib.loads(text)["modules"]]
    return [
        Module(one["name"], int(one["units"]), int(one["core_s"]), int(one["peak_mb"]), bool(one["measured"]))
        for one in found if one
    ]  # fmt: skip


def select(table: KernelTable, globs: Iterable[str]) -> tuple[Module, ...]:
    """Return the modules that any glob matches, by name. Raises Problems with each glob that matches none."""
    known = {module.name: module for module in table.modules}
    chosen: set[str] = set()
    problems: list[Problem] = []
    for glob in globs:
        found = fnmatch.filter(known, glob)
        chosen.update(found)
        if not found:
            problems.append(_no_match(table, glob, known))
    raise_all(problems)
    return tuple(known[name] for name in sorted(chosen))


def longest_first(modules: Iterable[Module]) -> list[Module]:
    """Order modules by the CPU time of one unit: begun last, one of twenty minutes has all other cores wait for it."""
    return sorted(modules, key=lambda one: (-one.core_s / one.units, one.name))


def estimate(modules: Iterable[Module]) -> Estimate:
    """Sum up what it costs to compile the modules."""
    rows = tuple(modules)
    peak_mb = max((row.peak_mb for row in rows), default=0)
    return Estimate(sum(row.units for row in rows), sum(row.core_s for row in rows), peak_mb)


def _no_match(table: KernelTable, glob: str, known: Iterable[str]) -> Problem:
    close = difflib.get_close_matches(glob, list(known), n=3)
    hint = f"close to it: {', '.join(close)}" if close else f"the table lists {len(table.modules)} modules, one a line"
    return Problem(table.file, f"kernel glob {glob!r} matches no module", hint)
