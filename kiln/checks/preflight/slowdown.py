"""No GPU is slowed down by heat or power while it idles."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from kiln.checks.each import each, gpus
from kiln.facts import Facts, known
from kiln.facts.node import GpuFacts
from kiln.topologies import Topology
from kiln.verdict import Finding, failed, passed, warned

_REASONS = {
    "hw_power_brake_slowdown": ("the node's power supply pulls the brake", "check the power supplies and GPU cables"),
    "hw_thermal_slowdown": ("the GPU is too hot", "check fans and air flow"),
    "sw_thermal_slowdown": ("the GPU is too hot", "check fans and air flow"),
    "hw_slowdown": ("heat, or the node's power supply", "check fans, air flow, power supplies and GPU cables"),
}


def judge(facts: Facts, topology: Topology) -> Iterator[Finding]:
    """Judge reasons that have no place in an idle GPU, and its temperature."""
    known_c = [gpu.temperature_c for gpu in gpus(facts) if gpu.temperature_c is not None]
    hottest = f", {max(known_c):.0f} C at most" if known_c else ""
    yield from each(gpus(facts), partial(_one, topology), passed(f"not slowed down{hottest}"))


def _one(topology: Topology, gpu: GpuFacts) -> Finding | None:
    reasons = known(gpu.throttle, "the reasons for lowered clocks")
    for name, (cause, cure) in _REASONS.items():
        if name in reasons:
            return failed(f"is slowed down: {name}", cause=cause, cure=cure)
    celsius, most = known(gpu.temperature_c, "the temperature"), topology.heat.temperature_idle_warn_c
    if celsius > most and not gpu.processes:
        return warned(
            f"{celsius:.0f} C while idle, {most:.0f} C at most is usual",
            cause="little air reaches the GPU, or it was under load a moment ago",
            cure="check fans and air flow",
            temperature_c=celsius,
        )
    return None
