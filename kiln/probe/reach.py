"""Whether a program that starts now still reaches the GPUs: a container may lose them while it runs."""

from __future__ import annotations

from typing import Any

from . import gpu, nvml


def facts(argv: list[str], faults: list[dict[str, str]]) -> dict[str, Any]:
    """Count the GPUs that NVML (as nvidia-smi) and the CUDA driver can open; null for one that does not start."""
    del argv
    found = gpu.inventory(faults)
    started = not any(fault["source"] == "CUDA driver" for fault in faults)
    return {"nvml": _opened(faults), "cuda": len(found) if started else None}


def _opened(faults: list[dict[str, str]]) -> int | None:
    library = nvml.connect(faults)
    if library is None:
        return None
    opened = 0
    try:
        for index in range(library.nvmlDeviceGetCount()):
            library.nvmlDeviceGetHandleByIndex(index)
            opened += 1
    except library.NVMLError as error:
        faults.append({"source": "nvml", "error": f"GPU {opened}: {error}"})
    return opened
