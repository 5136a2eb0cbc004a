"""GPUs that say they are busy draw the power of work."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import mean

from kiln.facts import Facts, known
from kiln.topologies import Topology
from kiln.verdict import Finding, failed, not_run, passed

REQUIRED = False
BUSY_PERCENT = 95


def judge(facts: Facts, topology: Topology) -> Iterator[Finding]:
    """Judge the power at full utilisation: ranks that wait for each other spin at 100 % and draw little."""
    server = known(facts.server, "the server")
    load = known(server.load, "the load", "the server did not become ready")
    if not server.weights:
        yield not_run("a tiny model cannot load a GPU", cure="--weights DIR", required=False)
        return
    limits = {gpu.index: gpu.power_limit_w for gpu in known(facts.node, "the node").gpus}
    busy = [one for one in load.samples if (one.utilization_percent or 0) >= BUSY_PERCENT and one.power_w is not None]
    for gpu in sorted({one.gpu for one in busy}):
        drawn = mean(one.power_w or 0 for one in busy if one.gpu == gpu)
        limit = known(limits.get(gpu), f"the power limit of GPU {gpu}")
        least = limit * topology.server.min_power_fraction
        text, where = f"{drawn:.0f} W of {limit:.0f} W at full utilisation", f"GPU {gpu}"
        if drawn >= least:
            yield passed(text, where, power_w=round(drawn, 1))
            continue
        yield failed(
            text, where,
            cause="the GPUs wait for each other: a slow all-reduce, or a kernel without work for this architecture",
            cure="inv audit for hollow kernels; no all-reduce fusion on PCIe; compare with fabric/allreduce-speed",
            power_w=round(drawn, 1), least_w=round(least, 1),
        )  # fmt: skip
    if not busy:
        yield not_run(f"no GPU was busy at {BUSY_PERCENT} %, or NVML does not tell", required=False)
