"""Parts of the facts of GPUs at work: each returns its part with at least one GPU in it, or raises Unknown."""

from __future__ import annotations

from kiln.facts import Facts, Unknown, known
from kiln.facts.fabric import AllreduceFacts, BandwidthFacts, FabricFacts, HeatFacts, PeersFacts


def _fabric(facts: Facts) -> FabricFacts:
    return known(facts.fabric, "the fabric")


def bandwidth(facts: Facts) -> BandwidthFacts:
    """Return the copies between host and GPUs."""
    found = known(_fabric(facts).bandwidth, "copies from the host")
    known(found.gpus or None, "copies from the host", found.why)
    return found


def peers(facts: Facts) -> PeersFacts:
    """Return the copies between GPUs."""
    found = known(_fabric(facts).peers, "copies between GPUs")
    known(found.gpus or None, "copies between GPUs", found.why)
    return found


def allreduce(facts: Facts) -> AllreduceFacts:
    """Return the all-reduce; one on the CPU says nothing of a node."""
    found = known(_fabric(facts).allreduce, "all-reduce")
    if found.device != "cuda":
        raise Unknown("all-reduce", f"run with {found.backend} on the {found.device}, a test of the probe")
    known(found.gpus or None, "all-reduce", found.why)
    return found


def heat(facts: Facts) -> HeatFacts:
    """Return the load of matrix products."""
    found = known(_fabric(facts).heat, "the load")
    known(found.gpus or None, "the load", found.why)
    return found
