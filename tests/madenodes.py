"""Nodes made from the recording of a real one: other GPUs, more of them, and one fault at a time."""

from __future__ import annotations

import json
from functools import cache
from typing import Any, TypeVar

from kiln.facts.image import ImageFacts, from_labels
from kiln.facts.node import (
    Aer,
    Bridge,
    CdiSpec,
    ContainerEngineFacts,
    DiskFacts,
    NodeFacts,
    PciFacts,
    PciGpu,
    Xid,
)
from kiln.facts.reading import Fact, read
from kiln.settings import ROOT

Given = TypeVar("Given", bound=Fact)
RECORDED = ROOT / "tests" / "data" / "facts" / "h200.json"
SERVER_EDITION = "NVIDIA RTX PRO 6000 Blackwell Server Edition"
GOOD_AER = Aer(correctable={}, nonfatal={}, fatal={})
# What cannot be a fault of the node: where the recording was made no container runs and no time service.
_ENGINE = ContainerEngineFacts(
    docker="28.5.1",
    runtimes=("nvidia", "runc"),
    toolkit="1.18.0",
    hook=True,
    cdi=(CdiSpec(path="/etc/cdi/nvidia.yaml", gpus=1, driver="580.159.04"),),
)


@cache
def h200() -> NodeFacts:
    """Return the recorded node: one H200, passed through to a virtual machine."""
    return read(json.dumps(json.loads(RECORDED.read_text(encoding="utf-8"))), NodeFacts)


def good_h200() -> NodeFacts:
    """Return the recorded node with a container engine, time service and limits as they should be."""
    found = h200()
    assert found.clock
    assert found.limits
    images = DiskFacts(purpose="images", path="/var/lib/docker", mount="/", kind="ext4", total_bytes=4 * 10**12,
                       free_bytes=10**12)  # fmt: skip
    return _changed(
        found,
        faults=(),
        containers=_ENGINE,
        clock=_changed(found.clock, synchronised=True, max_error_s=0.004),
        limits=_changed(found.limits, of="dockerd", nofile=1048576),
        disks=(images, *(disk for disk in found.disks or () if disk.purpose == "cache")),
    )


@cache
def rtx8(*, sockets: int = 1) -> NodeFacts:
    """Return 8 × RTX PRO 6000 Server Edition on root ports of their own, idle: links at Gen1, as they do."""
    found = good_h200()
    assert found.nvidia
    assert found.host
    model = _changed(
        found.nvidia.gpus[0],
        name=SERVER_EDITION,
        compute_capability="12.0",
        virtualization="None",
        memory_total_mib=97887.0,
        memory_used_mib=2.0,
        bar1_total_mib=131072.0,
        power_w=32.1,
        power_limit_w=600.0,
        power_default_w=600.0,
        power_max_w=600.0,
        sm_clock_mhz=180,
        sm_clock_max_mhz=2430,
        link_generation=1,
    )
    addresses = [f"0000:{bus:02x}:00.0" for bus in range(0x01, 0x81, 0x10)]
    ports = [f"0000:{bus:02x}:01.1" for bus in range(0x00, 0x80, 0x10)]
    gpus = tuple(_changed(model, index=index, bus_id=address) for index, address in enumerate(addresses))
    on_bus = tuple(
        PciGpu(bus_id=address, device="0x2bb5", present=True, driver="nvidia", width=16, width_max=16, speed_gt_s=2.5,
               speed_max_gt_s=32.0, numa_node=index * sockets // 8, iommu="identity", aer=GOOD_AER, bridges=(port,))
        for index, (address, port) in enumerate(zip(addresses, ports, strict=True))
    )  # fmt: skip
    bus = PciFacts(
        gpus=on_bus,
        bridges=tuple(Bridge(bus_id=port, acs=("SrcValid",), aer=GOOD_AER) for port in ports),
        cmdline=("iommu=pt", "pcie_aspm=off", "pcie_port_pm=off"),
        aspm="performance",
    )
    return _changed(
        found,
        host=_changed(found.host, cpus=128, sockets=sockets, numa_nodes=sockets, memory_available_mib=500000.0),
        nvidia=_changed(found.nvidia, gpus=gpus),
        pci=bus,
        containers=_changed(_ENGINE, cdi=(CdiSpec(path="/etc/cdi/nvidia.yaml", gpus=8, driver="580.159.04"),)),
    )


def image(**labels: str) -> ImageFacts:
    """Return an image of kiln for SM120 on CUDA 13.0, 12 GB."""
    made = {"kiln.cuda": "13.0", "kiln.gpu": "sm120", "kiln.arch": "12.0f", "kiln.plan": "66fd7b5a9625", **labels}
    return from_labels(made, ref="kiln/sglang:test", size_bytes=12 * 10**9)


def changed(node: NodeFacts, part: str = "", **values: Any) -> NodeFacts:
    """Return the node with other values in one of its parts; in the node itself if none is named."""
    return _changed(node, **{part: _changed(getattr(node, part), **values)}) if part else _changed(node, **values)


def gpu(node: NodeFacts, index: int, **values: Any) -> NodeFacts:
    """Return the node with other values of one GPU."""
    assert node.nvidia
    gpus = tuple(_changed(one, **values) if one.index == index else one for one in node.gpus)
    return _changed(node, nvidia=_changed(node.nvidia, gpus=gpus))


def all_gpus(node: NodeFacts, **values: Any) -> NodeFacts:
    """Return the node with other values of all GPUs."""
    for index in range(len(node.gpus)):
        node = gpu(node, index, **values)
    return node


def on_bus(node: NodeFacts, index: int, **values: Any) -> NodeFacts:
    """Return the node with other values of one GPU on the PCI bus."""
    assert node.pci
    gpus = tuple(_changed(one, **values) if place == index else one for place, one in enumerate(node.pci.gpus))
    return _changed(node, pci=_changed(node.pci, gpus=gpus))


def bridge(node: NodeFacts, index: int, **values: Any) -> NodeFacts:
    """Return the node with other values of one bridge."""
    assert node.pci
    found = tuple(_changed(one, **values) if place == index else one for place, one in enumerate(node.pci.bridges))
    return _changed(node, pci=_changed(node.pci, bridges=found))


def without_gpu(node: NodeFacts, index: int) -> NodeFacts:
    """Return the node with a GPU that the driver does not list."""
    assert node.nvidia
    return _changed(node, nvidia=_changed(node.nvidia, gpus=tuple(one for one in node.gpus if one.index != index)))


def xid(node: NodeFacts, code: int, index: int = 3, when_s: float = 1.0) -> NodeFacts:
    """Return the node with an error of a GPU in the kernel log."""
    assert node.kernel_log
    address = node.gpus[index].bus_id
    text = f"NVRM: Xid (PCI:{address.removesuffix('.0')}): {code}, pid=1"
    one = Xid(time_s=node.time_s + when_s, bus_id=address, code=code, text=text)
    return _changed(node, kernel_log=_changed(node.kernel_log, xids=(*node.kernel_log.xids, one)))


def _changed(fact: Given, **values: Any) -> Given:
    """Return a fact with other values, validated as the probe's answer is."""
    return type(fact).model_validate({**fact.model_dump(), **{key: _plain(one) for key, one in values.items()}})


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(_plain(one) for one in value)
    return value.model_dump() if hasattr(value, "model_dump") else value
