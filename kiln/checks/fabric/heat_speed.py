"""Matrix products are as fast as they should be, on every GPU and until the end."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from kiln.checks import limits, parts
from kiln.facts import Facts, known
from kiln.facts.fabric import HeatGpu
from kiln.topologies import Limit, Topology
from kiln.verdict import Finding, Verdict


def judge(facts: Facts, topology: Topology) -> Iterator[Finding]:
    """Judge the median of each GPU by the limit and by the other GPUs, and its end by its beginning."""
    found = parts.heat(facts)
    speeds = {gpu.label: median(gpu.tflops) for gpu in found.gpus if gpu.tflops}
    slow = limits.outliers(speeds, topology.outlier_fraction)
    for gpu in found.gpus:
        yield _judge(gpu, topology, slow.get(gpu.label))


def _judge(gpu: HeatGpu, topology: Topology, part: float | None) -> Finding:
    middle = median(known(gpu.tflops or None, f"the speed of {gpu.label}", gpu.ended.error or gpu.ended.not_run or ""))
    limit: Limit | None = topology.heat.bf16_tflops
    verdict, words = limits.grade(middle, limit), f"{middle:.0f} TFLOP/s BF16"
    cause = "clocks are held down, the power limit is low, or another program uses this GPU"
    quarter = max(1, len(gpu.tflops) // 4)
    kept = median(gpu.tflops[-quarter:]) / median(gpu.tflops[:quarter])
    if part is not None:
        verdict, words = Verdict.FAIL, f"{words}: {part:.0%} of the median"
    elif verdict is Verdict.PASS and kept < topology.outlier_fraction:
        verdict, words = Verdict.WARN, f"{words}, at the end {kept:.0%} of the beginning"
        cause = "it slows down as it grows warm"
    else:
        words = f"{words}, {limits.against(limit, 'TFLOP/s')}"
    return limits.finding(
        verdict, words, gpu.label, cause=cause, cure="see the findings on clocks, power and temperature; nvidia-smi",
        numbers={"bf16_tflops": round(middle, 1), "kept": round(kept, 3)},
    )  # fmt: skip
