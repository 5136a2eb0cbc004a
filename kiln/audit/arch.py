"""Arch coverage: which targets each binary has code for, what of it the GPU can run, and what it could run before."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from kiln.audit import fatbin
from kiln.audit.facts import Facts
from kiln.audit.fatbin import Gpu
from kiln.audit.records import Record, Target
from kiln.audit.rules import Finding

NOTHING, ONLY_PTX, PLAIN, LOST, BROKEN = "no code", "PTX only", "plain FP4/MX", "lost target", "broken"
_BLOCK_SCALED_FILE = re.compile(r"(?<![a-z])(?:nv|mx)?fp4|mxfp[468]|nvfp", re.IGNORECASE)


@dataclass(frozen=True)
class Row:
    """One binary with device code. The GPU can run those in `runs`; `covered` of `parts` fatbins have one."""

    file: str
    targets: tuple[str, ...]
    runs: tuple[str, ...]
    parts: int
    covered: int
    kernels: int

    @property
    def best(self) -> str:
        """The target that the driver prefers; PTX only if there is nothing else."""
        sass = [target for target in self.runs if target.startswith("sm")]
        return (sass or self.runs or ("–",))[0]


def table(target: Target, gpu: Gpu) -> tuple[Row, ...]:
    """Return a row for each binary with device code."""
    return tuple(_row(record, facts, gpu) for record, facts in target.binaries() if facts.targets)


def check(target: Target, gpu: Gpu, name: str, baseline: Mapping[str, list[str]]) -> Iterator[Finding]:
    """Yield what is missing for the GPU `name`."""
    for record, facts in target.binaries():
        if facts.fault:
            yield Finding("arch", record.short, BROKEN, f"can't be read: {facts.fault}")
        elif facts.targets:
            yield from _missing(_row(record, facts, gpu), facts, name)
    yield from _lost({row.file: row for row in table(target, gpu)}, baseline)


def by_distribution(rows: tuple[Row, ...]) -> dict[str, Counter[str]]:
    """Count binaries by their best target, for each top folder below site-packages."""
    found: dict[str, Counter[str]] = {}
    for row in rows:
        found.setdefault(row.file.partition("/")[0], Counter())[row.best] += 1
    return dict(sorted(found.items()))


def baseline_file(root: Path, stack: str, gpu: str) -> Path:
    """Where the committed baseline of a stack and GPU lies."""
    return root / "audit" / "baselines" / f"{stack}-{gpu}.json"


def load_baseline(file: Path) -> dict[str, list[str]]:
    """Read what each file's runnable targets were; empty if there is no baseline yet."""
    if not file.exists():
        return {}
    found: dict[str, list[str]] = json.loads(file.read_text())
    return found


def write_baseline(file: Path, rows: tuple[Row, ...]) -> None:
    """Make what is there now the baseline: one line a file."""
    lines = [f" {json.dumps(row.file)}: {json.dumps(list(row.runs))}" for row in rows if row.runs]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def _row(record: Record, facts: Facts, gpu: Gpu) -> Row:
    targets = tuple(sorted(facts.targets, key=fatbin.order))
    runs = sorted((target for target in targets if gpu.runs(target)), key=lambda one: _preference(one, gpu))
    return Row(record.short, targets, tuple(runs), facts.parts, facts.covered, sum(facts.kernels.values()))


def _preference(target: str, gpu: Gpu) -> tuple[bool, int, int]:
    return target.startswith("ptx"), -gpu.runs(target), -fatbin.split(target)[1]


def _missing(row: Row, facts: Facts, name: str) -> Iterator[Finding]:
    if not row.runs:
        yield Finding("arch", row.file, NOTHING, f"none of its targets runs on {name}", row.targets)
    elif not any(target.startswith("sm") for target in row.runs):
        yield Finding("arch", row.file, ONLY_PTX, f"the driver compiles it on {name} at the first use", row.runs)
    plain = {target: count for target, count in facts.block_scaled.items() if target[-1] not in "af"}
    if _BLOCK_SCALED_FILE.search(row.file) and row.runs and row.best[-1] not in "af":
        plain = plain or {row.best: row.kernels}
    for target, count in plain.items():
        if target.startswith("sm_12"):
            yield Finding("arch", row.file, PLAIN, f"{count} FP4/MX kernels for plain {target}, not {target}a or f")


def _lost(rows: Mapping[str, Row], baseline: Mapping[str, list[str]]) -> Iterator[Finding]:
    for file, before in baseline.items():
        gone = tuple(sorted(set(before) - set(rows[file].runs if file in rows else ())))
        if gone:
            what = "has lost a target of the baseline" if file in rows else "of the baseline is gone"
            yield Finding("arch", file, LOST, f"{what}: {', '.join(gone)}", gone)
