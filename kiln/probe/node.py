"""The node itself: driver, GPUs, PCI bus, kernel log, limits, disks, clock, ports, container engine.

Reads only, changes nothing, and is done within its deadline whatever hangs. As root it sees more: PCIe access
controls, the kernel log, the owners of ports.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from . import commands, containers, host, kernellog, module, pci, proctable, sections, smi

DEADLINE_S = 9.0


def facts(argv: list[str], faults: list[dict[str, str]]) -> dict[str, Any]:
    """Gather everything side by side; what has not answered at the deadline is None and a fault."""
    asked = _arguments(argv)
    limit = asked.deadline * 0.9
    wanted: dict[str, Callable[[list[dict[str, str]]], Any]] = {
        "host": host.machine,
        "nvidia": partial(_nvidia, limit),
        "module": module.loaded,
        "pci": pci.bus,
        "kernel_log": partial(kernellog.read, timeout_s=limit),
        "limits": host.limits,
        "shm": host.shm,
        "cache": partial(host.disk, "cache", asked.cache),
        "clock": host.clock,
        "ports": partial(host.ports, asked.ports),
        "servers": proctable.servers,
        "engine": partial(_engine, asked, limit),
    }
    began = time.time()
    found = sections.gather(wanted, faults, asked.deadline)
    engine, images = found.pop("engine") or (None, None)
    disks = [disk for disk in (images, found.pop("cache")) if disk]
    return {
        "time_s": round(began, 3),
        "containers_wanted": asked.containers,
        "image_size_bytes": asked.image_size,
        "disks": disks or None,
        "containers": engine,
        **found,
    }


def _arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="node", description=__doc__.splitlines()[0])
    parser.add_argument("--image-size", type=int, help="bytes of the image that is to be pulled")
    parser.add_argument("--cache", default="/", help="where the caches of a server lie")
    parser.add_argument("--disk", default="", help="where images are kept, if not where Docker says")
    parser.add_argument("--ports", type=_ports, default=[], help="ports that must be free: 30000,30001")
    parser.add_argument("--no-containers", dest="containers", action="store_false", help="no image is to be run")
    parser.add_argument("--deadline", type=float, default=DEADLINE_S, help="seconds")
    return parser.parse_args(argv)


def _ports(text: str) -> list[int]:
    return [int(word) for word in text.split(",") if word]


def _engine(
    asked: argparse.Namespace, limit_s: float, faults: list[dict[str, str]]
) -> tuple[dict[str, Any], dict[str, Any] | None] | None:
    if not asked.containers:
        return None
    found, folder = containers.engine(faults, limit_s / 2)
    return found, host.disk("images", asked.disk or folder, faults)


def _nvidia(limit_s: float, faults: list[dict[str, str]]) -> dict[str, Any] | None:
    """Ask NVML in a process of its own, and nvidia-smi if that cannot load it."""
    began = time.monotonic()
    where = Path(__file__).resolve()
    package = __package__ or ""
    path = str(where.parents[package.count(".") + 1])
    text = commands.run([sys.executable, "-m", package, "nvml"], faults, limit_s, name="nvml", env={"PYTHONPATH": path})
    answer = json.loads(text) if text else {"faults": [], "facts": None}
    faults.extend(answer["faults"])
    found: dict[str, Any] | None = answer["facts"]
    left_s = limit_s - (time.monotonic() - began)
    return found if found or left_s < 0.5 else smi.read(faults, left_s)
