"""No GPU grows too hot under load."""

from __future__ import annotations

from collections.abc import Iterator

from kiln.checks import parts
from kiln.facts import Facts, known
from kiln.facts.fabric import HeatFacts, HeatGpu
from kiln.topologies import Heat, Topology
from kiln.verdict import Finding, failed, passed, warned

_CURE = "check fans, air flow and dust; lower the power limit: nvidia-smi -pl"


def judge(facts: Facts, topology: Topology) -> Iterator[Finding]:
    """Judge the highest temperature of each; at the topology's limit the probe itself took the load away."""
    found = parts.heat(facts)
    for gpu in found.gpus:
        yield _judge(found, gpu, topology.heat)


def _judge(found: HeatFacts, gpu: HeatGpu, limit: Heat) -> Finding:
    seen = [one.temperature_c for one in found.samples if one.gpu == gpu.gpu and one.temperature_c is not None]
    highest = max(known(seen or None, f"the temperature of {gpu.label}", found.why))
    words, numbers = f"{highest:.0f} C at most", {"temperature_max_c": highest}
    if highest >= limit.temperature_fail_c:
        stopped = "; the load was taken away" if found.stopped and found.stopped.gpu == gpu.gpu else ""
        cause = f"it is not cooled: at {limit.temperature_fail_c:.0f} C and more GPUs fell off the bus (Xid 79, 119)"
        return failed(words + stopped, gpu.label, cause=cause, cure=_CURE, **numbers)
    if highest >= limit.temperature_warn_c:
        cause = f"{limit.temperature_warn_c:.0f} C and more leaves no room for a warm day"
        return warned(words, gpu.label, cause=cause, cure=_CURE, **numbers)
    return passed(words, gpu.label, **numbers)
