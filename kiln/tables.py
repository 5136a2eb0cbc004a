"""What commands print for people: plans, results, lists."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from kiln.audit import alike
from kiln.audit.report import Report
from kiln.kernels import estimate
from kiln.plan import Plan
from kiln.result import Result
from kiln.view import clock

if TYPE_CHECKING:
    from kiln.bump import Bumped


def console() -> Console:
    """A console on stdout; wide when nobody looks, so that greps find whole lines."""
    found = Console(highlight=False)
    return found if found.is_terminal else Console(highlight=False, width=160)


def plan(plan: Plan, cached: dict[str, bool]) -> None:
    """Print a resolved plan."""
    out = console()
    out.print(f"plan     {plan.id[:12]}  {plan.image} for {plan.gpu.name} ({', '.join(plan.gpu.names)})")
    out.print(f"tag      {plan.tag}")
    out.print(f"stack    {plan.stack.name}: {plan.stack.summary}")
    out.print("pins     " + "  ".join(f"{name} {version}" for name, version in plan.pins().items()))
    base = plan.stack.base.suite or plan.stack.base.image
    compiler = f"   nvcc {plan.stack.nvcc}" if plan.stack.toolkit else ""
    out.print(f"cuda     {plan.stack.cuda}{compiler}   python {plan.stack.python}   base {base}")
    arch = plan.gpu.arch
    out.print(f"arch     FlashInfer {plan.arch}   torch {arch.torch}   CMake {arch.cmake}")
    out.print(f"patches  {', '.join(patch.label for patch in plan.patches) or 'none'}")
    cost = estimate(plan.modules)
    out.print(
        f"kernels  {plan.kernels}: {len(plan.modules)} modules, {cost.units} translation units, "
        f"about {cost.core_s / 60:.0f} core-minutes, heaviest unit {cost.peak_mb / 1024:.1f} GiB"
    )
    table = Table(box=None, pad_edge=False)
    for heading in ("image", "key", "wheels", "download", "state"):
        table.add_column(heading, justify="right" if heading in ("wheels", "download") else "left")
    for image in plan.chain:
        size = sum(wheel.size for wheel in image.wheels)
        state = "built" if cached.get(image.name) else "to build"
        table.add_row(image.name, image.key[:12], str(len(image.wheels)), f"{size / 1e6:.0f} MB", state)
    out.print(table)


def modules(plan: Plan) -> None:
    """Print the kernel modules of a plan, the dearest first."""
    table = Table(box=None, pad_edge=False)
    for heading in ("module", "units", "core-s", "peak MB"):
        table.add_column(heading, justify="left" if heading == "module" else "right")
    for module in sorted(plan.modules, key=lambda one: (-one.core_s, one.name)):
        table.add_row(module.name, str(module.units), f"{module.core_s:.0f}", str(module.peak_mb))
    console().print(table)


def built(found: Result) -> None:
    """Print a build's digest, layers, sizes and costs."""
    out = console()
    layers = Table(box=None, pad_edge=False, title="layers", title_justify="left")
    for heading in ("layer", "from", "files", "unpacked", "stored"):
        layers.add_column(heading, justify="left" if heading in ("layer", "from") else "right")
    for layer in found.layers:
        layers.add_row(layer.digest[7:19], layer.image, str(layer.files), _mb(layer.raw_bytes), _mb(layer.size_bytes))
    layers.add_row("all", "", "", _mb(found.raw_bytes), _mb(found.size_bytes))
    out.print(layers)
    stages = Table(box=None, pad_edge=False, title="stages", title_justify="left")
    for heading in ("stage", "state", "wall", "cpu (machine)", "peak memory (machine)"):
        stages.add_column(heading, justify="left" if heading in ("stage", "state") else "right")
    for cost in found.stages:
        peak = f"{cost.peak_bytes / 2**30:.1f} GiB"
        stages.add_row(cost.name, cost.state, clock(cost.wall_s), clock(cost.cpu_s), peak)
    out.print(stages)
    out.print(f"tests    {found.tests or 'not run'}")
    out.print(f"layout   {found.layout}")
    out.print(f"tag      {found.repository}:{found.tag}")
    out.print(f"pushed   {found.pushed or 'no'}")
    if found.gzip:
        out.print(f"gzip     {found.repository}:{found.gzip_tag}@{found.gzip}")
    out.print(f"digest   {found.digest}")


def rows(headings: tuple[str, ...], lines: list[tuple[str, ...]]) -> None:
    """Print a plain table."""
    table = Table(box=None, pad_edge=False)
    for heading in headings:
        table.add_column(heading)
    for line in lines:
        table.add_row(*line)
    console().print(table)


def _mb(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"


def audit(report: Report) -> None:
    """Print an audit: coverage by distribution, what is allowed, what fails."""
    out = console()
    stack = f", stack {report.stack}" if report.stack else ""
    out.print(f"audit    {report.target} for {report.gpu}{stack}: {report.files} files, {_mb(report.size_bytes)}")
    out.print("binaries by the target that the GPU takes")
    out.print(_coverage(report))
    checks = Table(box=None, pad_edge=False)
    for heading in ("check", "fails", "allowed"):
        checks.add_column(heading, justify="left" if heading == "check" else "right")
    for check, (fails, allowed) in report.counts().items():
        checks.add_row(check, str(fails), str(allowed))
    out.print(checks)
    for kind in alike.findings(report.failed):
        one = kind.first
        line = f"✗ {one.check:<9} {alike.label(kind.files)}: {one.subject}: {one.message}"
        out.print(line, markup=False, soft_wrap=True)


def _coverage(report: Report) -> Table:
    """Make the table of distributions × the target that the GPU takes."""
    found = report.distributions()
    targets = sorted({target for counts in found.values() for target in counts})
    table = Table(box=None, pad_edge=False)
    table.add_column("distribution")
    for target in targets:
        table.add_column(target, justify="right")
    for name, counts in found.items():
        table.add_row(name, *(str(counts[target] or "") for target in targets))
    return table


def bumped(found: Bumped, *, dry: bool) -> None:
    """Print what a bump changes, what becomes of the patches, and what to do next."""
    out = console()
    state = ", not written" if dry else ""
    out.print(f"stack {found.stack}: {', '.join(map(str, found.pins))}{state}")
    for change in found.changes:
        out.print(f"  {change.lock}: {change}", markup=False, soft_wrap=True)
    out.print("patches" if found.outcomes else "no patches to what changes")
    for one in found.outcomes:
        line = f"  {one.patch.label} ({one.patch.status}): {one.state}" + (f": {one.detail}" if one.detail else "")
        out.print(line, markup=False, soft_wrap=True)
        if step := found.next_step(one):
            out.print(f"    hint: {step}", markup=False, soft_wrap=True)
    if not dry:
        out.print("next: inv patches.refresh, inv lock --args (for another SGLang), inv render, inv check")
