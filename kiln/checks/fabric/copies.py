"""Copies between host and each GPU are fast, and no GPU is slower than the others."""

from __future__ import annotations

from collections.abc import Iterator

from kiln.checks import limits, parts
from kiln.facts import Facts, known
from kiln.facts.fabric import GpuCopies
from kiln.topologies import Topology
from kiln.verdict import Finding, Verdict, failed


def judge(facts: Facts, topology: Topology) -> Iterator[Finding]:
    """Judge each GPU by the topology's limits and by the median of all; one that could not copy at all fails."""
    found = parts.bandwidth(facts)
    speeds = {gpu.label: min(gpu.h2d_gb_s, gpu.d2h_gb_s) for gpu in found.gpus if gpu.h2d_gb_s and gpu.d2h_gb_s}
    slow = limits.outliers(speeds, topology.outlier_fraction)
    for gpu in found.gpus:
        yield _failed(gpu) if gpu.ended else _judge(gpu, topology, slow.get(gpu.label))


def _failed(gpu: GpuCopies) -> Finding:
    assert gpu.ended
    known(None if gpu.ended.not_run else 1, "host copies", gpu.ended.not_run or "")
    return failed(
        f"copies do not end: {gpu.ended.error}" if gpu.ended.hung else f"copies fail: {gpu.ended.error}",
        gpu.label,
        cause="the GPU, its link or its driver is broken, or another program holds it",
        cure="read the kernel log for NVRM, Xid and AER; stop what uses the GPU; power the node off and on",
    )


def _judge(gpu: GpuCopies, topology: Topology, part: float | None) -> Finding:
    into, out = known(gpu.h2d_gb_s, "host to GPU"), known(gpu.d2h_gb_s, "GPU to host")
    bounds = topology.limits
    worst = max(limits.grade(into, bounds.h2d_gb_s), limits.grade(out, bounds.d2h_gb_s), key=_order)
    words = f"{into:.1f} GB/s to it, {out:.1f} from it"
    if part is not None:
        worst, words = Verdict.FAIL, f"{words}: {part:.0%} of the median"
    elif worst is not Verdict.PASS or bounds.h2d_gb_s is None:
        words = f"{words}, {limits.against(bounds.h2d_gb_s, 'GB/s')}"
    cause, cure = _why(gpu, topology)
    numbers = {"h2d_gb_s": into, "d2h_gb_s": out}
    return limits.finding(worst, words, gpu.label, cause=cause, cure=cure, numbers=numbers)


def _order(verdict: Verdict) -> int:
    return [Verdict.PASS, Verdict.WARN, Verdict.FAIL].index(verdict)


def _why(gpu: GpuCopies, topology: Topology) -> tuple[str, str]:
    """Name the link if it was seen to be slow during the copies, and else what else slows them."""
    want, generation, width = topology.pcie, gpu.link_generation, gpu.link_width
    if want and generation and width and (generation < want.generation or width < want.width):
        cause = f"its link ran at Gen{generation} x{width} during the copies, not at Gen{want.generation} x{want.width}"
        return cause, "reseat the GPU, change the riser or cable, set the slot's speed in the BIOS; power off and on"
    cause = "host memory with empty channels, a far NUMA node, IOMMU translation, or another program on this GPU"
    return cause, "fill all memory channels; boot with iommu=pt; look for other programs: nvidia-smi"
