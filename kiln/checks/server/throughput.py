"""The load runs as fast as this kind of node must."""

from __future__ import annotations

from collections.abc import Iterator

from kiln.facts import Facts, known
from kiln.topologies import Topology
from kiln.verdict import Finding, failed, passed


def judge(facts: Facts, topology: Topology) -> Iterator[Finding]:
    """Judge the output tokens per second of all rounds against the preset's floor, if the topology has one."""
    server = known(facts.server, "the server")
    load = known(server.load, "the load", "the server did not become ready")
    tok_s = known(load.tok_s, "the throughput", "no round ran")
    numbers = {"tok_s": round(tok_s, 1), **({} if load.power_w is None else {"power_w": round(load.power_w, 1)})}
    floor = topology.server.floors.get(server.preset)
    if floor is None:
        yield passed(f"{tok_s:.0f} tokens/s; no limit for preset {server.preset} in this topology", "", **numbers)
    elif tok_s >= floor:
        yield passed(f"{tok_s:.0f} tokens/s, at least {floor:.0f}", "", floor_tok_s=floor, **numbers)
    else:
        yield failed(
            f"{tok_s:.0f} tokens/s, {floor:.0f} are the least", "",
            cause="an untuned backend, a slow fabric, or GPUs held back by power or heat",
            cure="compare server/power, fabric/* and server/settings with a good node's receipt",
            floor_tok_s=floor, **numbers,
        )  # fmt: skip
