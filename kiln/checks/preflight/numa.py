"""The kernel knows which processors are near each GPU, and the sockets are those of the topology."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from kiln.checks.each import node, pci, plural
from kiln.facts import Facts, known
from kiln.topologies import Topology
from kiln.verdict import Finding, passed, warned


def judge(facts: Facts, topology: Topology) -> Iterator[Finding]:
    """Judge: which limits hold for copies between GPUs depends on the sockets between them."""
    host, bus = known(node(facts).host, "the host"), pci(facts)
    sockets, nodes = known(host.sockets, "the sockets"), known(host.numa_nodes, "the NUMA nodes")
    places = Counter(gpu.numa_node for gpu in bus.gpus)
    wanted = topology.match.sockets
    if wanted not in (None, sockets):
        yield warned(
            f"{plural(sockets, 'socket')}, topology {topology.name} has {wanted}",
            cause="the topology is of another node: its limits between GPUs do not hold here",
            cure="name the topology that fits",
        )
    elif nodes > 1 and None in places:
        yield warned(
            f"the NUMA node of {places[None]} GPUs is not known, the host has {nodes}",
            cause="the BIOS does not tell: threads and memory may lie on the far socket",
            cure="update the BIOS; pass --numa-node to the server",
        )
    else:
        spread = ", ".join(f"node {place}: {count} GPUs" for place, count in sorted(places.items(), key=str))
        yield passed(
            f"{plural(sockets, 'socket')}, {plural(nodes, 'NUMA node')}" + ("" if nodes == 1 else f"; {spread}")
        )
