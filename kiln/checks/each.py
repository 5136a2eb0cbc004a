"""What checks of a node share: its parts that must be known, and a judgement of each GPU or other thing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Protocol, TypeVar

from kiln.facts import Facts, Unknown, known
from kiln.facts.node import GpuFacts, NodeFacts, NvidiaFacts, PciFacts
from kiln.topologies import Topology
from kiln.verdict import Finding, not_run

Judge = Callable[[Facts, Topology], Iterable[Finding]]


class Labelled(Protocol):
    """A thing with a name for people."""

    @property
    def label(self) -> str: ...


Thing = TypeVar("Thing", bound=Labelled)


def node(facts: Facts) -> NodeFacts:
    """Return the node's facts; raises Unknown."""
    return known(facts.node, "the node")


def nvidia(facts: Facts) -> NvidiaFacts:
    """Return what the driver says; raises Unknown."""
    return known(node(facts).nvidia, "any GPU", "the driver does not answer")


def gpus(facts: Facts) -> tuple[GpuFacts, ...]:
    """Return the GPUs; raises Unknown if the driver does not answer or has none: nothing can be said of them."""
    return known(nvidia(facts).gpus or None, "any GPU", "the driver lists none")


def before_and_after(facts: Facts) -> tuple[dict[str, GpuFacts], list[GpuFacts]]:
    """Return the GPUs before the load by their bus id, and those of them that are there after it; raises Unknown."""
    before = {gpu.bus_id: gpu for gpu in gpus(facts)}
    after = [gpu for gpu in known(facts.after, "the node after the load").gpus if gpu.bus_id in before]
    return before, known(after or None, "any GPU after the load")


def pci(facts: Facts) -> PciFacts:
    """Return the PCI bus with at least one GPU on it; raises Unknown."""
    found = known(node(facts).pci, "the PCI bus", node(facts).why("pci"))
    known(found.gpus or None, "any GPU", "the PCI bus has none of NVIDIA's")
    return found


def each(things: Iterable[Thing], judge: Callable[[Thing], Finding | None], good: Finding) -> Iterator[Finding]:
    """Yield what is wrong with each thing or not known of it; `good` if nothing is."""
    found = [one for thing in things if (one := _of(thing, judge))]
    yield from found or [good]


def _of(thing: Thing, judge: Callable[[Thing], Finding | None]) -> Finding | None:
    try:
        found = judge(thing)
    except Unknown as error:
        found = not_run(str(error))
    return replace(found, subject=found.subject or thing.label) if found else None


def again(judge: Judge) -> Judge:
    """Return a check of the node before the load as one of the node after it."""

    def after(facts: Facts, topology: Topology) -> Iterable[Finding]:
        return judge(replace(facts, node=known(facts.after, "the node after the load")), topology)

    return after


def plural(count: int, word: str) -> str:
    """Write a count: "1 GPU", "8 GPUs"."""
    return f"{count} {word}" if count == 1 else f"{count} {word}s"
