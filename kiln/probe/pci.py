"""GPUs on the PCI bus as the kernel knows them, the bridges above them, and what the boot parameters say of both."""

from __future__ import annotations

import re
import struct
from pathlib import Path
from typing import Any

from . import files

_NVIDIA = "0x10de"
_DISPLAY = "0x03"
_ADDRESS = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
# Bits of the ACS control register: PCI Express base specification, 7.7.12.3, and lspci's names for them.
_ACS = ("SrcValid", "TransBlk", "ReqRedir", "CmpltRedir", "UpstreamFwd", "EgressCtrl", "DirectTrans")
_ACS_CAPABILITY = 0x0D
_FIRST_EXTENDED = 0x100
# Boot parameters that concern the bus; others may tell who the machine is.
_CONCERNS = re.compile(r"iommu|pci|aspm|acs|nvidia|nouveau|hmm|numa", re.IGNORECASE)


def bus(faults: list[dict[str, str]], root: Path = Path("/")) -> dict[str, Any] | None:
    """Read every GPU of NVIDIA and every bridge above one."""
    folder = root / "sys/bus/pci/devices"
    if not folder.is_dir():
        faults.append({"source": str(folder), "error": "no such folder"})
        return None
    devices = [path for path in sorted(folder.iterdir()) if _is_gpu(path)]
    gpus = [_gpu(path.resolve(), faults) for path in devices]
    bridges = {part: path for device in devices for part, path in _bridges(device.resolve())}
    cmdline = files.read(root / "proc/cmdline", faults)
    policy = re.search(r"\[(\w+)\]", files.read(root / "sys/module/pcie_aspm/parameters/policy") or "")
    return {
        "gpus": gpus,
        "bridges": [{"bus_id": name, "acs": _acs(path, faults), "aer": _aer(path)} for name, path in bridges.items()],
        "cmdline": None if cmdline is None else [word for word in cmdline.split() if _CONCERNS.search(word)],
        "aspm": policy[1] if policy else None,
    }


def _is_gpu(path: Path) -> bool:
    return files.read(path / "vendor") == _NVIDIA and (files.read(path / "class") or "").startswith(_DISPLAY)


def _gpu(path: Path, faults: list[dict[str, str]]) -> dict[str, Any]:
    numa, group = files.whole(path / "numa_node"), path / "iommu_group"
    kind = files.read(group / "type", faults) if group.exists() else "none"
    config = _config(path, faults)
    driver = path / "driver"
    return {
        "bus_id": path.name,
        "device": files.read(path / "device"),
        # What has fallen off the bus answers every read with ones.
        "present": None if config is None else config[:4] != b"\xff\xff\xff\xff",
        "driver": driver.resolve().name if driver.exists() else None,
        "width": _width(path / "current_link_width", faults),
        "width_max": _width(path / "max_link_width", faults),
        "speed_gt_s": files.number(path / "current_link_speed", faults),
        "speed_max_gt_s": files.number(path / "max_link_speed", faults),
        "numa_node": None if numa is None or numa < 0 else numa,
        "iommu": kind,
        "aer": _aer(path),
        "bridges": [name for name, _ in _bridges(path)],
    }


def _width(path: Path, faults: list[dict[str, str]]) -> int | None:
    """Return the lanes of a link; 0 and 255 are how the kernel says that it does not know."""
    found = files.whole(path, faults)
    if found in (0, 255):
        faults.append({"source": str(path), "error": f"the kernel says {found}: not known"})
        return None
    return found


def _bridges(path: Path) -> list[tuple[str, Path]]:
    """Return the bridges above a device, the root port first."""
    above = [parent for parent in reversed(path.parents) if _ADDRESS.fullmatch(parent.name)]
    return [(parent.name, parent) for parent in above]


def _config(path: Path, faults: list[dict[str, str]]) -> bytes | None:
    try:
        return (path / "config").read_bytes()
    except OSError as error:
        faults.append({"source": str(path / "config"), "error": error.strerror or str(error)})
        return None


def _acs(path: Path, faults: list[dict[str, str]]) -> list[str] | None:
    """Return the access controls that a bridge has switched on; None if its configuration cannot be read whole."""
    config = _config(path, faults)
    if config is None:
        return None
    if len(config) <= _FIRST_EXTENDED:
        faults.append({"source": str(path / "config"), "error": "only root reads the extended part"})
        return None
    offset = _FIRST_EXTENDED
    for _ in range(64):
        if not _FIRST_EXTENDED <= offset <= len(config) - 8:
            return []
        (header,) = struct.unpack_from("<I", config, offset)
        if header & 0xFFFF == _ACS_CAPABILITY:
            (control,) = struct.unpack_from("<H", config, offset + 6)
            return [name for bit, name in enumerate(_ACS) if control >> bit & 1]
        offset = header >> 20
    return []


def _aer(path: Path) -> dict[str, dict[str, int]] | None:
    """Return the errors since boot by kind, those that happened; None where the kernel does not count them."""
    found: dict[str, dict[str, int]] = {}
    for kind in ("correctable", "nonfatal", "fatal"):
        text = files.read(path / f"aer_dev_{kind}")
        if text is None:
            return None
        pairs = re.findall(r"^(\w+) (\d+)$", text, re.MULTILINE)
        found[kind] = {name: int(count) for name, count in pairs if int(count) and not name.startswith("TOTAL")}
    return found
