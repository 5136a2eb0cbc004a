"""A GPU that is busy draws power."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from kiln.checks import parts
from kiln.facts import Facts, known
from kiln.facts.fabric import HeatFacts, HeatGpu
from kiln.topologies import Topology
from kiln.verdict import Finding, failed, passed

_SETTLED_S = 5
_BUSY_PERCENT = 95


def judge(facts: Facts, topology: Topology) -> Iterator[Finding]:
    """Judge the median of samples at full utilisation: busy at low power means that little is computed."""
    found = parts.heat(facts)
    for gpu in found.gpus:
        yield _judge(found, gpu, topology.heat.min_power_fraction)


def _judge(found: HeatFacts, gpu: HeatGpu, least: float) -> Finding:
    busy = [one for one in found.of(gpu.gpu, _SETTLED_S) if (one.utilization_percent or 0) >= _BUSY_PERCENT]
    watts = [one.power_w for one in busy if one.power_w is not None]
    power = median(known(watts or None, f"the power of {gpu.label} under load", found.why))
    limit = known(gpu.power_limit_w, f"the power limit of {gpu.label}")
    words = f"{power:.0f} W of {limit:.0f} W at full utilisation"
    numbers = {"power_w": round(power, 1), "power_limit_w": limit}
    if power >= least * limit:
        return passed(words, gpu.label, **numbers)
    reasons = sorted({reason for one in busy for reason in one.throttle or ()} - {"gpu_idle", "sw_power_cap"})
    held = f"clocks are held down: {', '.join(reasons)}" if reasons else "the kernels that run do next to nothing"
    return failed(
        words,
        gpu.label,
        cause=f"{held}; 125 W of 600 W was how a broken build looked that served 236 tokens per second",
        cure="see the findings on clocks; compare TFLOP/s; audit the image's kernels for empty bodies: inv audit",
        **numbers,
    )
