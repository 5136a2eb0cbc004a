"""`inv audit`: read a target, check it, judge what was found."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from kiln import context, inventory, locks, result, versions
from kiln.audit import arch, fatbin, hollow, layers, python, rules, sources, symbols, toolchain
from kiln.audit.html import page
from kiln.audit.reader import Reader
from kiln.audit.records import Target
from kiln.audit.report import Report
from kiln.audit.rules import Finding
from kiln.errors import CheckFailed, UserError
from kiln.intent import Gpu
from kiln.settings import Settings
from kiln.store import Store

_TOOL = "nvidia-cuda-cuobjdump"


@dataclass(frozen=True)
class Subject:
    """Where a target lies and what it was made for; `stack` is empty if nobody says."""

    path: Path
    gpu: Gpu
    stack: str


def subject(settings: Settings, target: str, *, gpu: str, stack: str, kernel_set: str) -> Subject:
    """Find a target: a path, the id of a plan, or (empty) the plan of the other arguments. Raises UserError."""
    loaded = versions.load(settings.root / "versions.yaml")
    if not target:
        plan = inventory.plan_for(settings, gpu=gpu, stack=stack, kernel_set=kernel_set, image="")
        built = result.load(settings, plan.id)
        if built is None:
            command = f"inv build --gpu {plan.gpu.name} --stack {plan.stack.name} --kernels {plan.kernels}"
            raise UserError(f"plan {plan.id[:12]} is not built", hint=command)
        return Subject(Path(built.layout), plan.gpu, plan.stack.name)
    path = Path(target)
    if not path.exists() and (settings.home / "images" / path.name).is_dir():
        path = settings.home / "images" / path.name
    labels = layers.labels(path) if (path / "oci-layout").is_file() else {}
    chosen = loaded.gpu(gpu or labels.get("kiln.gpu") or loaded.defaults.gpu)
    return Subject(path, chosen, stack or labels.get("kiln.stack", ""))


def audit(settings: Settings, about: Subject, say: Callable[[str], None]) -> Report:
    """Read and check a target. Raises UserError if it can't be read or the allow-list is wrong."""
    started = time.monotonic()
    allowed = rules.load(settings.root)
    gpu = fatbin.gpu(about.gpu.compute_capability)
    target = sources.read(about.path, Reader(gpu, settings.home, lambda: _tool(settings)), say)
    found = allowed.judge(findings(settings, about, target), about.gpu.name, about.stack)
    return Report(
        str(about.path), about.gpu.name, about.stack, len(target.records),
        sum(record.size for record in target.records.values()), arch.table(target, gpu),
        tuple(_pip_judged(settings, about.stack, found)), time.monotonic() - started,
    )  # fmt: skip


def findings(settings: Settings, about: Subject, target: Target) -> Iterator[Finding]:
    """Yield what every check found."""
    gpu = fatbin.gpu(about.gpu.compute_capability)
    baseline = (
        arch.load_baseline(arch.baseline_file(settings.root, about.stack, about.gpu.name)) if target.whole else {}
    )
    yield from arch.check(target, gpu, about.gpu.name, baseline)
    yield from hollow.check(target)
    yield from symbols.check(target)
    yield from python.check(target)
    yield from toolchain.check(target, about.gpu.arch.cmake)


def write(settings: Settings, report: Report, *, html: str, accept: bool) -> Iterator[Path]:
    """Write the page, the baseline or neither. Raises UserError for the baseline of a target of no stack."""
    if html:
        Path(html).write_text(page(settings.root, report), encoding="utf-8")
        yield Path(html)
    if accept and not report.stack:
        raise UserError(f"{report.target} belongs to no stack, so it is nobody's baseline", hint="--stack NAME")
    if accept:
        file = arch.baseline_file(settings.root, report.stack, report.gpu)
        arch.write_baseline(file, report.rows)
        yield file


def require_passed(report: Report) -> None:
    """Raise CheckFailed if any finding has no reason."""
    if report.failed:
        found = ", ".join(f"{fails} {check}" for check, (fails, _) in report.counts().items() if fails)
        hint = f"mend it, or say in {rules.FILE} why it is right"
        raise CheckFailed(f"the audit found: {found}\n  hint: {hint}")


def _pip_judged(settings: Settings, stack: str, found: Iterable[Finding]) -> Iterator[Finding]:
    file, lines = python.allowed_lines(settings.root, stack)
    for finding in found:
        explained = finding.subject == python.PIP_CHECK and any(line.search(finding.message) for line in lines)
        yield replace(finding, reason=str(file.relative_to(settings.root))) if explained else finding


def _tool(settings: Settings) -> Path:
    tools = locks.read(settings.root, locks.path_of("", "tools")).all()
    return context.tool(tools, _TOOL, Store(settings.store), settings.home / "audit" / "tools")
