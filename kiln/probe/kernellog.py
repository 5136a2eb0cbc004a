"""The kernel log since boot: the driver's errors (Xid), failed starts of GPUs, PCIe errors."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import Any

from . import commands, files

_XID = re.compile(r"NVRM: Xid \(PCI:([0-9a-fA-F:.]+)\): (\d+)")
_DRIVER = re.compile(
    r"NVRM: .*(RmInitAdapter failed|WPR2 already up|fallen off the bus|API mismatch|failed to initialize)"
)
_PCIE = re.compile(r"PCIe Bus Error: severity=(Uncorrect\w*|Fatal)|aer_uncor_status|Surprise Link Down")
# A storm of errors is told by its end.
_MOST = 100


def read(faults: list[dict[str, str]], timeout_s: float, root: Path = Path("/")) -> dict[str, Any] | None:
    """Read /dev/kmsg; if its beginning is lost, or it may not be read, the journal, then dmesg."""
    kept: list[dict[str, str]] = []
    boot = time.time() - (files.number(root / "proc/uptime") or 0.0)
    ring = _kmsg(root / "dev/kmsg", kept)
    if ring and ring[0]:
        return _facts("/dev/kmsg", True, ring[1], boot)
    journal = commands.run(["journalctl", "-k", "-b", "--no-pager", "-o", "short-monotonic"], kept, timeout_s / 2)
    if journal and "[" in journal:
        return _facts("journalctl", True, _lines(journal), boot)
    if ring:
        return _facts("/dev/kmsg", False, ring[1], boot)
    text = commands.run(["dmesg"], kept, timeout_s / 2)
    if text is None:
        faults.extend(kept)
        return None
    return _facts("dmesg", None, _lines(text), boot)


def _kmsg(path: Path, faults: list[dict[str, str]]) -> tuple[bool, list[tuple[float | None, str]]] | None:
    """Return whether the first message is still there, and all messages with seconds since boot."""
    try:
        ring = os.open(str(path), os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        faults.append({"source": str(path), "error": error.strerror or str(error)})
        return None
    records: list[str] = []
    try:
        for _ in range(1000000):
            try:
                data = os.read(ring, 8192)
            except BlockingIOError:
                break
            except BrokenPipeError:
                continue  # overwritten before it was read
            if not data:
                break
            records.append(data.decode("utf-8", "replace"))
    finally:
        os.close(ring)
    found = [re.match(r"\d+,(\d+),(\d+)[^;]*;([^\n]*)", record) for record in records]
    messages = [(int(one[1]), int(one[2]) / 1e6, one[3]) for one in found if one]
    return bool(messages) and messages[0][0] == 0, [(seconds, text) for _, seconds, text in messages]


def _lines(text: str) -> list[tuple[float | None, str]]:
    """Return the lines of dmesg or of the journal with seconds since boot."""
    found = [(re.match(r"\[\s*(\d+\.\d+)\]\s*(.*)", line), line) for line in text.splitlines()]
    return [(float(one[1]), one[2]) if one else (None, line) for one, line in found]


def _facts(source: str, from_boot: bool | None, lines: list[tuple[float | None, str]], boot: float) -> dict[str, Any]:
    stamped = [(None if seconds is None else round(boot + seconds, 3), text) for seconds, text in lines]
    xids = [(when, text, _XID.search(text)) for when, text in stamped]
    return {
        "source": source,
        "from_boot": from_boot,
        "xids": [{"time_s": when, "bus_id": _bus_id(one[1]), "code": int(one[2]), "text": text[-300:]}
                 for when, text, one in xids if one][-_MOST:],
        "driver_errors": _matching(_DRIVER, [(when, text) for when, text, one in xids if not one]),
        "pcie_errors": _matching(_PCIE, stamped),
    }  # fmt: skip


def _matching(pattern: re.Pattern[str], lines: list[tuple[float | None, str]]) -> list[dict[str, Any]]:
    return [{"time_s": when, "text": text[-300:]} for when, text in lines if pattern.search(text)][-_MOST:]


def _bus_id(text: str) -> str:
    """Write a PCI address as the kernel's file system does: the driver leaves the function out."""
    return (text if "." in text else text + ".0").lower()
