"""Nothing but the power limit holds the clocks down under load."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from kiln.checks import parts
from kiln.facts import Facts, known
from kiln.facts.fabric import HeatFacts, HeatGpu
from kiln.topologies import Topology
from kiln.verdict import Finding, failed, passed, warned

_SETTLED_S = 5
# Reaching the power limit is what a product of large matrices is for; "idle" is the moment between two of them.
_NORMAL = {"sw_power_cap", "gpu_idle"}
_WHY = {
    "hw_power_brake_slowdown": (
        "the board's power brake: the power supply says that it is overloaded",
        "check power supplies and cables, spread the GPUs over them, lower the power limit",
    ),
    "hw_thermal_slowdown": ("the GPU protects itself from heat", "check fans, air flow and dust"),
    "hw_slowdown": (
        "heat, the power brake, or a supply that is too weak",
        "check fans, power supplies and power cables",
    ),
}
_SOFT = {
    "sw_thermal_slowdown": ("the driver lowers clocks to stay cool", "check fans, air flow and dust"),
    "applications_clocks_setting": ("somebody set fixed clocks", "take them back: nvidia-smi -rac"),
    "sync_boost": ("clocks are tied to the slowest GPU of a group", "dissolve the group of synchronised boost"),
}


def judge(facts: Facts, topology: Topology) -> Iterator[Finding]:
    """Judge the reasons that NVML gave once the load had settled, and how often."""
    found = parts.heat(facts)
    for gpu in found.gpus:
        yield from _judge(found, gpu)


def _judge(found: HeatFacts, gpu: HeatGpu) -> Iterator[Finding]:
    samples = [one for one in found.of(gpu.gpu, _SETTLED_S) if one.throttle is not None]
    known(samples or None, f"the clocks of {gpu.label} under load", found.why)
    seen = Counter(reason for one in samples for reason in one.throttle or () if reason not in _NORMAL)
    clocks = [one.sm_clock_mhz for one in samples if one.sm_clock_mhz is not None]
    numbers = {"sm_clock_min_mhz": min(clocks)} if clocks else {}
    for reason, count in sorted(seen.items()):
        words = f"{reason} in {count / len(samples):.0%} of {len(samples)} samples"
        if reason in _WHY:
            cause, cure = _WHY[reason]
            yield failed(words, gpu.label, cause=cause, cure=cure, **numbers)
        else:
            cause, cure = _SOFT.get(reason, ("the driver names this reason", "see `nvidia-smi -q -d PERFORMANCE`"))
            yield warned(words, gpu.label, cause=cause, cure=cure, **numbers)
    if not seen:
        yield passed(f"clocks are free{f', {min(clocks):.0f} MHz at least' if clocks else ''}", gpu.label, **numbers)
