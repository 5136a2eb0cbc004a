"""Facts of each phase: which probe runs where, with which words, and for how long at most."""

from __future__ import annotations

import time

from kiln import backends, presets
from kiln.facts.container import ContainerFacts
from kiln.facts.fabric import FabricFacts
from kiln.facts.node import NodeFacts
from kiln.facts.numerics import NumericsFacts
from kiln.facts.reading import BadReport, read, report
from kiln.smoke.access import Access, CannotRun
from kiln.smoke.connection import TimedOut
from kiln.smoke.job import PORT
from kiln.topologies import Topology

NODE_S = 30.0
CONTAINER_S = 120.0
NUMERICS_S = 1600.0
# After the load: memory freed and ports closed within this time.
SETTLED_S = 60.0
_AGAIN_S = 3.0


def node(access: Access) -> NodeFacts:
    """Run the node probe. Raises BadReport, TimedOut, NodeLost, CannotRun, run.CutOff."""
    args = ["--ports", str(PORT), *(["--no-containers"] if access.job.python else [])]
    if access.job.size_bytes is not None:
        args += ["--image-size", str(access.job.size_bytes)]
    return read(access.probe(access.on_node(), "node", args, NODE_S), NodeFacts)


def container(access: Access) -> ContainerFacts:
    """Run the container probe where the GPU probes run."""
    return read(access.probe(access.for_gpus(), "container", [], CONTAINER_S), ContainerFacts)


def fabric(access: Access, topology: Topology) -> tuple[FabricFacts, dict[str, str]]:
    """Run the fabric's probes one after the other; returns the facts, and why a probe has none.

    Raises NodeLost, run.CutOff.
    """
    heat = topology.heat
    hot = ["--seconds", f"{heat.seconds:.0f}", "--stop-at", f"{heat.temperature_fail_c:.0f}"]
    probes: dict[str, tuple[list[str], float]] = {
        "bandwidth": ([], 360),
        "peers": ([], 600),
        "ipc": ([], 300),
        "allreduce": (["--ranks", "2,4,8", "--deadline", "120"], 1560),
        "heat": (hot, heat.seconds + 240),
    }  # fmt: skip
    parts: dict[str, object] = {}
    missing: dict[str, str] = {}
    for name, (args, limit_s) in probes.items():
        try:
            answer = report(access.probe(access.for_gpus(), name, args, limit_s))
        except (BadReport, TimedOut, CannotRun) as error:
            missing[name] = str(error)
            continue
        parts[name] = {**answer.facts, "faults": [one.model_dump() for one in answer.faults]}
    return FabricFacts.model_validate(parts), missing


def numerics(access: Access) -> NumericsFacts:
    """Compare kernels with a reference: those that the preset names, or all if none is served here."""
    named: tuple[str, ...] = ()
    if access.job.preset and not access.job.python:
        preset = presets.load_all(access.job.root)[access.job.preset]
        named = backends.cases(preset.model, preset.args)
    words = ["--backends", ",".join(named)] if named else []
    return read(access.probe(access.for_gpus(), "numerics", words, NUMERICS_S), NumericsFacts)


def after(access: Access, topology: Topology) -> NodeFacts:
    """Run the node probe again until GPUs and ports are free, or for SETTLED_S."""
    until = time.monotonic() + SETTLED_S
    while True:
        found = node(access)
        if settled(found, topology) or time.monotonic() > until:
            return found
        access.say("waiting until memory and ports are free")
        access.clock.stop.wait(_AGAIN_S)


def settled(found: NodeFacts, topology: Topology) -> bool:
    """Tell whether no GPU holds memory and no port of ours is taken; what is not known is not waited for."""
    used = [gpu.memory_used_mib for gpu in found.gpus if gpu.memory_used_mib is not None]
    busy = [port for port in found.ports or () if not port.free]
    return all(mib <= topology.idle_memory_max_mib for mib in used) and not busy
