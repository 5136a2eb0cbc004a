"""PCI bus, driver and topology agree on the number of GPUs."""

from __future__ import annotations

from collections.abc import Iterator

from kiln.checks.each import node, nvidia, plural
from kiln.facts import Facts, known
from kiln.facts.node import PciGpu
from kiln.topologies import Topology
from kiln.verdict import Finding, failed, passed


def judge(facts: Facts, topology: Topology) -> Iterator[Finding]:
    """Judge each way a GPU can be missing: not on the bus, dead on the bus, or there without the driver."""
    here = node(facts)
    bus = known(here.pci, "the PCI bus", here.why("pci"))
    wanted = topology.gpus.count
    if wanted is not None and len(bus.gpus) != wanted:
        yield failed(
            f"{plural(len(bus.gpus), 'GPU')} on the PCI bus, the topology has {wanted}",
            cause="a GPU has no power, is not seated, or was lost at boot; or the topology is of another node",
            cure="look for the missing slot in `lspci`, power off and reseat the GPU; or name another topology",
        )
    elif not bus.gpus:
        yield failed(
            "no GPU of NVIDIA on the PCI bus",
            cause="this node has none, or it has no power or is not seated",
            cure="run it on a node with GPUs; look for the slot in `lspci`",
        )
    dead = [gpu for gpu in bus.gpus if gpu.present is False]
    for gpu in dead:
        yield failed(
            "answers no read on the PCI bus",
            f"PCI {gpu.bus_id}",
            cause="the GPU has fallen off the bus",
            cure="switch the node's power off and on; if it happens again, test the GPU in another slot",
        )
    if not bus.gpus:
        return
    seen = {gpu.bus_id for gpu in nvidia(facts).gpus}
    missing = [gpu for gpu in bus.gpus if gpu.bus_id not in seen and gpu not in dead]
    yield from (_unseen(gpu) for gpu in missing)
    if not missing and not dead and wanted in (None, len(bus.gpus)):
        yield passed(f"{plural(len(bus.gpus), 'GPU')} on the PCI bus and by the driver")


def _unseen(gpu: PciGpu) -> Finding:
    if gpu.driver not in (None, "nvidia"):
        cause, cure = f"{gpu.driver} holds it", f"unbind it from {gpu.driver}, or boot without that driver"
    else:
        cause = "the driver could not start it: closed module, no room for its BARs, or a GPU that needs a power cycle"
        cure = "read the kernel log for NVRM; set Above 4G Decoding and Resizable BAR in the BIOS; power it off and on"
    return failed("is on the PCI bus, the driver does not list it", f"PCI {gpu.bus_id}", cause=cause, cure=cure)
