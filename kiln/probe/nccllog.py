"""What NCCL says of itself with NCCL_DEBUG=INFO: version, channels, transports, graph patterns, warnings."""

from __future__ import annotations

import re
from typing import Any

_VERSION = re.compile(r"NCCL version (\d+\.\d+\.\d+)")
_CHANNELS = re.compile(r"(\d+) coll channels")
# "Channel 03/0 : 1[1] -> 0[0] via P2P/CUMEM", "… via SHM/direct/direct", "… via NET/Socket/0"
_TRANSPORT = re.compile(r"Channel \d+(?:/\d+)? : \d+\[\w+\] -> \d+\[\w+\] (?:\[\w+\] )?via ([A-Z]\w*(?:/[A-Za-z]\w*)?)")
_PATTERN = re.compile(r"(Pattern \d+, crossNic \d+, nChannels \d+, bw [\d.]+/[\d.]+, type \w+/\w+)")
_WARNING = re.compile(r"NCCL WARN (.*)")
_MOST = 12


def read(outputs: list[str]) -> dict[str, Any]:
    """Read the output of all ranks of one group; nothing is known (None, empty) where NCCL said nothing."""
    text = "\n".join(outputs)
    channels = [int(found) for found in _CHANNELS.findall(text)]
    transports: dict[str, int] = {}
    for found in _TRANSPORT.findall(text):
        transports[found] = transports.get(found, 0) + 1
    version = _VERSION.search(text)
    return {
        "version": version[1] if version else None,
        "channels": min(channels) if channels else None,
        "transports": transports,
        "patterns": _first(_PATTERN.findall(text)),
        "warnings": _first(line.strip()[:300] for line in _WARNING.findall(text)),
    }


def _first(found: Any) -> list[str]:
    """Return the first few, each once."""
    return list(dict.fromkeys(found))[:_MOST]
