"""NVIDIA's kernel module: which one is loaded, and with which parameters."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from . import files


def loaded(faults: list[dict[str, str]], root: Path = Path("/")) -> dict[str, Any] | None:
    """Read /proc/driver/nvidia; None if no module is loaded."""
    folder = root / "proc/driver/nvidia"
    text = files.read(folder / "version", faults)
    if text is None:
        return None
    version = re.search(r"Kernel Module.*?\s(\d+\.\d+(?:\.\d+)?)\s", text)
    parameters = files.read(folder / "params", faults)
    hmm = files.read(root / "sys/module/nvidia_uvm/parameters/uvm_disable_hmm")
    return {
        "version": version[1] if version else None,
        "open": "Open Kernel Module" in text,
        "parameters": None if parameters is None else dict(re.findall(r"^(\w+): *(.*)$", parameters, re.MULTILINE)),
        "hmm_disabled": None if hmm is None else hmm == "Y",
    }
