"""NVML samples of GPUs under load, taken by a thread of the supervisor, not by the children that load them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from . import background, nvml


def value(lib: Any, read: Callable[[], Any]) -> Any:
    """Return what one call of NVML tells; None for what this GPU or this driver does not."""
    try:
        return read()
    except (lib.NVMLError, AttributeError):
        return None


def look(lib: Any, handle: Any) -> dict[str, Any]:
    """Sample one GPU. Units: W, degrees C, percent, MHz, MiB."""
    power = value(lib, lambda: lib.nvmlDeviceGetPowerUsage(handle))
    memory = value(lib, lambda: lib.nvmlDeviceGetMemoryInfo(handle, lib.nvmlMemory_v2))
    bits = value(lib, lambda: lib.nvmlDeviceGetCurrentClocksEventReasons(handle))
    return {
        "power_w": None if power is None else power / 1000,
        "temperature_c": value(lib, lambda: lib.nvmlDeviceGetTemperature(handle, lib.NVML_TEMPERATURE_GPU)),
        "utilization_percent": value(lib, lambda: lib.nvmlDeviceGetUtilizationRates(handle).gpu),
        "sm_clock_mhz": value(lib, lambda: lib.nvmlDeviceGetClockInfo(handle, lib.NVML_CLOCK_SM)),
        "memory_used_mib": None if memory is None else round(memory.used / 1048576, 1),
        "throttle": None if bits is None else nvml.reasons(bits),
    }


def link(lib: Any, handle: Any) -> tuple[int | None, int | None]:
    """Return the generation and the width of a GPU's PCIe link at this moment."""
    generation = value(lib, lambda: lib.nvmlDeviceGetCurrPcieLinkGeneration(handle))
    return generation, value(lib, lambda: lib.nvmlDeviceGetCurrPcieLinkWidth(handle))


def handles(lib: Any, gpus: list[dict[str, Any]]) -> dict[int, Any]:
    """Return NVML's handle of each GPU of an inventory: by UUID, as CUDA may count otherwise than NVML."""
    found = {gpu["gpu"]: value(lib, partial(lib.nvmlDeviceGetHandleByUUID, gpu["uuid"])) for gpu in gpus}
    return {index: handle for index, handle in found.items() if handle is not None}


@contextmanager
def sampling(
    lib: Any, gpus: list[dict[str, Any]], every_s: float, seen: Callable[[dict[str, Any]], None]
) -> Iterator[list[dict[str, Any]]]:
    """Sample all GPUs in the background; the list grows until the block ends. `seen` gets each sample too."""
    samples: list[dict[str, Any]] = []
    found, began = handles(lib, gpus), time.monotonic()

    def take() -> None:
        for gpu, handle in found.items():
            sample = {"time_s": round(time.monotonic() - began, 2), "gpu": gpu, **look(lib, handle)}
            samples.append(sample)
            seen(sample)

    with background.repeating(take, every_s, wait_s=2):
        yield samples
