"""No bridge above the GPUs redirects copies between them (ACS)."""

from __future__ import annotations

from collections.abc import Iterator

from kiln.checks.each import node, pci, plural
from kiln.facts import Facts, known
from kiln.topologies import Topology
from kiln.verdict import Finding, passed, warned

# Only root reads it; what it does to copies is measured by the checks of the fabric.
REQUIRED = False


def judge(facts: Facts, topology: Topology) -> Iterator[Finding]:
    """Judge: a redirected copy takes the way over the root complex, or never arrives (nccl issues 1999 and 2079)."""
    bus = pci(facts)
    if len(bus.gpus) == 1:
        yield passed("one GPU copies to no other")
        return
    for bridge in bus.bridges:
        known(bridge.acs, f"ACS of bridge {bridge.bus_id}", node(facts).why(bridge.bus_id))
    redirecting = [bridge for bridge in bus.bridges if bridge.redirects]
    if not redirecting:
        yield passed(f"{plural(len(bus.bridges), 'bridge')} above the GPUs, none redirects")
        return
    yield warned(
        f"{plural(len(redirecting), 'bridge')} above the GPUs redirect{'s' if len(redirecting) == 1 else ''}: "
        + ", ".join(f"{bridge.bus_id} {'+'.join(bridge.acs or ())}" for bridge in redirecting),
        cause="ACS sends copies between GPUs over the root complex: slow, and the first all-reduce may hang",
        cure="switch ACS off in the BIOS, or for each bridge: " + f"setpci -s {redirecting[0].bus_id} ECAP_ACS+6.w=0",
    )
