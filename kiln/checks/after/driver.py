"""After the load the driver still answers and lists all GPUs."""

from __future__ import annotations

from collections.abc import Iterator

from kiln.checks.each import gpus, plural
from kiln.facts import Facts, known
from kiln.topologies import Topology
from kiln.verdict import Finding, failed, passed

_POWER = "switch the node's power off and on; check power cables, cooling and the power limit"


def judge(facts: Facts, topology: Topology) -> Iterator[Finding]:
    """Judge: a GPU that fell off the bus is missing now."""
    before = gpus(facts)
    after = known(facts.after, "the node after the load")
    if after.nvidia is None:
        cause = f"it answered before the load ({after.why('nv') or 'no reason told'})"
        yield failed("the driver does not answer any more", cause=cause, cure=_POWER)
        return
    there = {gpu.bus_id for gpu in after.gpus}
    for gpu in before:
        if gpu.bus_id not in there:
            cause = "the GPU has fallen off the bus under load"
            yield failed("is gone", gpu.label, cause=cause, cure=_POWER)
    if {gpu.bus_id for gpu in before} <= there:
        yield passed(f"{plural(len(before), 'GPU')} as before")
