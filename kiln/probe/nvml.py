"""The GPUs as NVML tells them. A probe of its own, because a call into a broken driver may never come back."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from . import files, proctable
from .unread import Unread

# NVML's numbers of nvmlDeviceGpuRecoveryAction_t and nvmlComputeMode_t, in nvidia-smi's words.
RECOVERY = (
    "None",
    "Reset",
    "Reboot",
    "Drain P2P",
    "Drain and Reset",
    "Recover IMEX Domain",
    "Bus Reset",
    "System Reboot",
)
COMPUTE_MODE = ("Default", "Exclusive_Thread", "Prohibited", "Exclusive_Process")
VIRTUALIZATION = ("None", "Pass-Through", "VGPU", "Host VGPU", "Host VSGA")
# Bits of nvmlDeviceGetCurrentClocksEventReasons, named as nvidia-smi names them.
THROTTLE = {
    0x1: "gpu_idle", 0x2: "applications_clocks_setting", 0x4: "sw_power_cap", 0x8: "hw_slowdown", 0x10: "sync_boost",
    0x20: "sw_thermal_slowdown", 0x40: "hw_thermal_slowdown", 0x80: "hw_power_brake_slowdown",
    0x100: "display_clocks_setting",
}  # fmt: skip
_MIB = 1048576


def connect(faults: list[dict[str, str]]) -> Any:
    """Return pynvml, initialised; None and a fault if there are no bindings or no driver."""
    try:
        import pynvml  # type: ignore[import-untyped]
    except ImportError as error:
        faults.append({"source": "nvml", "error": f"no Python bindings: {error}"})
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        faults.append({"source": "nvml", "error": str(error)})
        return None
    return pynvml


def facts(argv: list[str], faults: list[dict[str, str]]) -> dict[str, Any] | None:
    """Return the driver and all GPUs; None if NVML does not answer at all."""
    pynvml = connect(faults)
    if pynvml is None:
        return None
    unread = Unread("nvml")
    found = {
        "source": "nvml",
        "driver": pynvml.nvmlSystemGetDriverVersion(),
        "cuda": _cuda(pynvml.nvmlSystemGetCudaDriverVersion_v2()),
        "libcuda": libcuda(faults),
        "gpus": [_gpu(pynvml, index, unread) for index in range(pynvml.nvmlDeviceGetCount())],
    }
    faults.extend(unread.faults())
    return found


def _cuda(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"


def libcuda(faults: list[dict[str, str]]) -> str | None:
    """Return the version of the libcuda that programs here load, from the name of its file."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        faults.append({"source": "libcuda", "error": str(error)})
        return None
    found = re.search(r"libcuda\.so\.(\d+\.\d+(\.\d+)?)", files.read(Path("/proc/self/maps")) or "")
    if not found:
        faults.append({"source": "libcuda", "error": "the loaded file has no version in its name"})
    return found[1] if found else None


def _gpu(nvml: Any, index: int, unread: Unread) -> dict[str, Any]:
    """Return one GPU; each field that NVML does not tell is None and noted."""
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    found: dict[str, Any] = {"index": index}
    for names, read in _readers(nvml).items():
        values: tuple[Any, ...]
        try:
            value = read(handle)
            values = value if isinstance(value, tuple) else (value,)
        except (nvml.NVMLError, AttributeError, IndexError, ValueError) as error:
            unread.add(index, names, str(error))
            values = (None,) * len(names.split())
        found.update(zip(names.split(), values))
    return found


def _readers(nvml: Any) -> dict[str, Callable[[Any], Any]]:
    """Return how to read each field, or several fields at once, of a GPU."""
    volatile, aggregate = nvml.NVML_VOLATILE_ECC, nvml.NVML_AGGREGATE_ECC
    corrected, uncorrected = nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED

    def ecc(kind: int, counter: int) -> Callable[[Any], int]:
        return lambda handle: int(nvml.nvmlDeviceGetTotalEccErrors(handle, kind, counter))

    return {
        "bus_id": lambda handle: bus_id(nvml.nvmlDeviceGetPciInfo(handle).busId),
        "name": lambda handle: nvml.nvmlDeviceGetName(handle),
        "compute_capability": lambda h: "{}.{}".format(*nvml.nvmlDeviceGetCudaComputeCapability(h)),
        "virtualization": lambda h: VIRTUALIZATION[nvml.nvmlDeviceGetVirtualizationMode(h)],
        "memory_total_mib memory_used_mib": lambda h: _memory(nvml.nvmlDeviceGetMemoryInfo(h, nvml.nvmlMemory_v2)),
        "bar1_total_mib": lambda h: round(nvml.nvmlDeviceGetBAR1MemoryInfo(h).bar1Total / _MIB, 1),
        "mig mig_pending": lambda h: tuple(bool(one) for one in nvml.nvmlDeviceGetMigMode(h)),
        "compute_mode": lambda h: COMPUTE_MODE[nvml.nvmlDeviceGetComputeMode(h)],
        "persistence": lambda h: bool(nvml.nvmlDeviceGetPersistenceMode(h)),
        "ecc ecc_pending": lambda h: tuple(bool(one) for one in nvml.nvmlDeviceGetEccMode(h)),
        "ecc_volatile_corrected": ecc(corrected, volatile),
        "ecc_volatile_uncorrected": ecc(uncorrected, volatile),
        "ecc_aggregate_corrected": ecc(corrected, aggregate),
        "ecc_aggregate_uncorrected": ecc(uncorrected, aggregate),
        "remapped_correctable remapped_uncorrectable remap_pending remap_failure": lambda h: _remapped(nvml, h),
        "recovery_action": lambda h: RECOVERY[_field(nvml, h, nvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION)],
        "power_w": lambda h: nvml.nvmlDeviceGetPowerUsage(h) / 1000,
        "power_limit_w": lambda h: nvml.nvmlDeviceGetEnforcedPowerLimit(h) / 1000,
        "power_default_w": lambda h: nvml.nvmlDeviceGetPowerManagementDefaultLimit(h) / 1000,
        "power_max_w": lambda h: nvml.nvmlDeviceGetPowerManagementLimitConstraints(h)[1] / 1000,
        "temperature_c": lambda h: nvml.nvmlDeviceGetTemperature(h, nvml.NVML_TEMPERATURE_GPU),
        "utilization_percent": lambda h: nvml.nvmlDeviceGetUtilizationRates(h).gpu,
        "sm_clock_mhz": lambda h: nvml.nvmlDeviceGetClockInfo(h, nvml.NVML_CLOCK_SM),
        "sm_clock_max_mhz": lambda h: nvml.nvmlDeviceGetMaxClockInfo(h, nvml.NVML_CLOCK_SM),
        "throttle": lambda h: reasons(nvml.nvmlDeviceGetCurrentClocksEventReasons(h)),
        "link_generation": nvml.nvmlDeviceGetCurrPcieLinkGeneration,
        "link_generation_max": nvml.nvmlDeviceGetMaxPcieLinkGeneration,
        "link_width": nvml.nvmlDeviceGetCurrPcieLinkWidth,
        "link_width_max": nvml.nvmlDeviceGetMaxPcieLinkWidth,
        "processes": lambda h: [_process(one) for one in nvml.nvmlDeviceGetComputeRunningProcesses(h)],
    }


def bus_id(text: str) -> str:
    """Write a GPU's address as /sys does: "00000000:C1:00.0" is "0000:c1:00.0"."""
    domain, _, rest = text.lower().partition(":")
    return f"{int(domain, 16):04x}:{rest}"


def reasons(bits: int) -> list[str]:
    """Return the names of the reasons for which the clocks are lowered."""
    return [name for bit, name in THROTTLE.items() if bits & bit]


def _memory(info: Any) -> tuple[float, float]:
    return round(info.total / _MIB, 1), round(info.used / _MIB, 1)


def _remapped(nvml: Any, handle: Any) -> tuple[int, int, bool, bool]:
    correctable, uncorrectable, pending, failure = nvml.nvmlDeviceGetRemappedRows(handle)
    return correctable, uncorrectable, bool(pending), bool(failure)


def _field(nvml: Any, handle: Any, field: int) -> int:
    """Return one field value; raises NVMLError with the driver's reason."""
    (value,) = nvml.nvmlDeviceGetFieldValues(handle, [field])
    if value.nvmlReturn != nvml.NVML_SUCCESS:
        raise nvml.NVMLError(value.nvmlReturn)
    return int(value.value.uiVal)


def _process(one: Any) -> dict[str, Any]:
    used = one.usedGpuMemory
    return {"pid": one.pid, "name": proctable.title(one.pid)[:120] or None,
            "memory_mib": None if used is None else round(used / _MIB, 1)}  # fmt: skip
