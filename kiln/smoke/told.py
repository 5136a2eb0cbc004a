"""Facts as a receipt tells them: cards, the peer matrix, samples, the server's run; nothing that identifies a card."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from kiln.facts import Facts
from kiln.facts.fabric import HeatSample
from kiln.receipt import Gpu, Sample, Server, ServerStep
from kiln.topologies import Topology


def gpus(facts: Facts) -> tuple[Gpu, ...]:
    """Return the GPUs by index."""
    found = facts.node.gpus if facts.node else ()
    return tuple(
        Gpu(
            index=gpu.index,
            name=gpu.name or "unknown",
            memory_mib=gpu.memory_total_mib,
            power_limit_w=gpu.power_limit_w,
        )
        for gpu in found
    )


def peers(facts: Facts) -> tuple[tuple[float | None, ...], ...]:
    """Return the peer matrix in GB/s, by source and target."""
    return facts.fabric.peers.matrix() if facts.fabric and facts.fabric.peers else ()


def samples(facts: Facts, times: Mapping[str, float]) -> tuple[Sample, ...]:
    """Return what was sampled during the heat and the server's load; `times` is when a probe was begun."""
    heat = facts.fabric.heat if facts.fabric else None
    load = facts.server.load if facts.server else None
    return (
        *_samples(heat.samples if heat else (), times.get("heat", 0.0)),
        *_samples(load.samples if load else (), times.get("load", 0.0)),
    )


def _samples(found: Iterable[HeatSample], begun_s: float) -> Iterator[Sample]:
    for one in found:
        moved = {"time_s": round(begun_s + one.time_s, 2), "throttle": one.throttle or ()}
        yield Sample(**{**one.model_dump(), **moved})


def server(facts: Facts, topology: Topology | None) -> Server | None:
    """Return the server's run, and the floor that its preset has in the topology."""
    found = facts.server
    if found is None:
        return None
    return Server(
        timeline=tuple(ServerStep(time_s=one.time_s, state=one.state, why=one.why) for one in found.start.timeline),
        startup_s=dict(found.startup_s),
        throughput_tok_s=found.load.tok_s if found.load else None,
        floor_tok_s=topology.server.floors.get(found.preset) if topology else None,
        power_w=found.load.power_w if found.load else None,
        log_excerpts=tuple(f"{one.line} ({one.means})" for one in found.log) or found.log_tail[-20:],
    )
