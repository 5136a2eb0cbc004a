"""The GPUs as `nvidia-smi -q -x` tells them: what is left where NVML's bindings do not load.

Its text may change between drivers, so a value is taken only in the form that is known here; anything else, "N/A"
too, is None and noted.
"""

from __future__ import annotations

import re
from typing import Any
from xml.etree import ElementTree

from . import commands, nvml, proctable
from .unread import Unread

_NOT_TOLD = ("", "N/A", "[N/A]", "[Not Supported]", "[Unknown Error]", "Unknown Error", "ERR!", "[GPU requires reset]")
_SWITCH = {"Enabled": True, "Disabled": False, "Yes": True, "No": False, "Active": True, "Not Active": False}
_TEXTS = {
    "name": "product_name", "virtualization": "gpu_virtualization_mode/virtualization_mode",
    "compute_mode": "compute_mode", "recovery_action": "gpu_recovery_action",
}  # fmt: skip
_SWITCHES = {
    "mig": "mig_mode/current_mig", "mig_pending": "mig_mode/pending_mig", "persistence": "persistence_mode",
    "ecc": "ecc_mode/current_ecc", "ecc_pending": "ecc_mode/pending_ecc",
    "remap_pending": "remapped_rows/remapped_row_pending", "remap_failure": "remapped_rows/remapped_row_failure",
}  # fmt: skip
# Field: path, unit, and whether it is a whole number.
_NUMBERS = {
    "memory_total_mib": ("fb_memory_usage/total", "MiB", False),
    "memory_used_mib": ("fb_memory_usage/used", "MiB", False),
    "bar1_total_mib": ("bar1_memory_usage/total", "MiB", False),
    "remapped_correctable": ("remapped_rows/remapped_row_corr", "", True),
    "remapped_uncorrectable": ("remapped_rows/remapped_row_unc", "", True),
    "power_w": ("gpu_power_readings/instant_power_draw", "W", False),
    "power_limit_w": ("gpu_power_readings/current_power_limit", "W", False),
    "power_default_w": ("gpu_power_readings/default_power_limit", "W", False),
    "power_max_w": ("gpu_power_readings/max_power_limit", "W", False),
    "temperature_c": ("temperature/gpu_temp", "C", False),
    "utilization_percent": ("utilization/gpu_util", "%", False),
    "sm_clock_mhz": ("clocks/sm_clock", "MHz", False),
    "sm_clock_max_mhz": ("max_clocks/sm_clock", "MHz", False),
    "link_generation": ("pci/pci_gpu_link_info/pcie_gen/current_link_gen", "", True),
    "link_generation_max": ("pci/pci_gpu_link_info/pcie_gen/max_link_gen", "", True),
    "link_width": ("pci/pci_gpu_link_info/link_widths/current_link_width", "x", True),
    "link_width_max": ("pci/pci_gpu_link_info/link_widths/max_link_width", "x", True),
}
_ECC = {
    "corrected": ("sram_correctable", "dram_correctable"),
    "uncorrected": ("sram_uncorrectable_parity", "sram_uncorrectable_secded", "dram_uncorrectable"),
}


def read(faults: list[dict[str, str]], timeout_s: float) -> dict[str, Any] | None:
    """Ask nvidia-smi; None if it does not answer."""
    text = commands.run(["nvidia-smi", "-q", "-x"], faults, timeout_s)
    if text is None:
        return None
    found = parse(text, faults)
    if found:
        table = commands.run(
            ["nvidia-smi", "--query-gpu=pci.bus_id,compute_cap", "--format=csv,noheader"], faults, timeout_s / 2
        )
        add_capabilities(found["gpus"], table or "")
        found["libcuda"] = nvml.libcuda(faults)
    return found


def add_capabilities(gpus: list[dict[str, Any]], table: str) -> None:
    """Fill in what the XML does not say, from lines of "address, capability"."""
    pairs = dict(re.findall(r"^([0-9A-Fa-f:.]+), *(\d+\.\d)$", table, re.MULTILINE))
    found = {nvml.bus_id(address): capability for address, capability in pairs.items()}
    for gpu in gpus:
        gpu["compute_capability"] = found.get(gpu["bus_id"])


def parse(text: str, faults: list[dict[str, str]]) -> dict[str, Any] | None:
    """Read the XML; None, and a fault, if it is none of nvidia-smi's."""
    try:
        top = ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        faults.append({"source": "nvidia-smi -q", "error": f"not XML: {error}"})
        return None
    if top.tag != "nvidia_smi_log":
        faults.append({"source": "nvidia-smi -q", "error": f"not its log: <{top.tag}>"})
        return None
    unread = Unread("nvidia-smi -q")
    gpus = [_gpu(index, element, unread) for index, element in enumerate(top.findall("gpu"))]
    driver, cuda = (_known(top.findtext(name)) for name in ("driver_version", "cuda_version"))
    attached = _known(top.findtext("attached_gpus"))
    faults.extend(unread.faults())
    if attached != str(len(gpus)):
        faults.append({"source": "nvidia-smi -q", "error": f"says {attached} GPUs, lists {len(gpus)}"})
    return {"source": "nvidia-smi", "driver": driver, "cuda": cuda, "libcuda": None, "gpus": gpus}


def _known(text: str | None) -> str | None:
    text = (text or "").strip()
    return None if text in _NOT_TOLD else text


def _gpu(index: int, element: ElementTree.Element, unread: Unread) -> dict[str, Any]:
    gpu = _Gpu(index, element, unread)
    found: dict[str, Any] = {"index": index, "bus_id": nvml.bus_id(element.get("id", ""))}
    found.update({field: gpu.text(path) for field, path in _TEXTS.items()})
    found.update({field: gpu.switch(path) for field, path in _SWITCHES.items()})
    found.update({field: gpu.number(*rule) for field, rule in _NUMBERS.items()})
    for counter in ("volatile", "aggregate"):
        for kind, paths in _ECC.items():
            found[f"ecc_{counter}_{kind}"] = gpu.total([f"ecc_errors/{counter}/{one}" for one in paths])
    found["throttle"] = gpu.throttle()
    found["processes"] = gpu.processes()
    return found


class _Gpu:
    """One GPU's element; a value that is not told, or told in another form than known, is None and noted."""

    def __init__(self, index: int, element: ElementTree.Element, unread: Unread) -> None:
        self.index, self.element, self.unread = index, element, unread

    def text(self, path: str) -> str | None:
        raw = self.element.findtext(path)
        found = _known(raw)
        if found is None:
            self.unread.add(self.index, path, "not in the output" if raw is None else raw.strip() or "empty")
        return found

    def switch(self, path: str) -> bool | None:
        return self._form(path, self.text(path), _SWITCH)

    def number(self, path: str, unit: str, whole: bool) -> float | int | None:
        text = self.text(path)
        found = re.fullmatch(rf"(-?\d+(?:\.\d+)?) ?{unit}", text or "")
        if text is not None and not found:
            self.unread.add(self.index, path, "not a number of {}: {!r}".format(unit or "things", text))
        return (int(found[1]) if whole else float(found[1])) if found else None

    def total(self, paths: list[str]) -> int | None:
        """Return the sum of several counters; None if one is not known."""
        values = [self.number(path, "", True) for path in paths]
        known = [int(value) for value in values if value is not None]
        return sum(known) if len(known) == len(values) else None

    def throttle(self) -> list[str] | None:
        """Return the reasons for lowered clocks that are active; the element had another name before driver 535."""
        for block in ("clocks_event_reasons", "clocks_throttle_reasons"):
            found = self.element.find(block)
            if found is not None and len(found):
                active = [one.tag[len(block) :] for one in found if _SWITCH.get((one.text or "").strip())]
                return [name.strip("_") for name in active]
        self.unread.add(self.index, "clocks_event_reasons", "not in the output")
        return None

    def processes(self) -> list[dict[str, Any]] | None:
        found = self.element.find("processes")
        if found is None or (len(found) == 0 and (found.text or "").strip() not in ("", "None")):
            self.unread.add(self.index, "processes", "not in the output" if found is None else str(found.text).strip())
            return None
        computing = [one for one in found.findall("process_info") if "C" in (one.findtext("type") or "C")]
        return [_process(one) for one in computing]

    def _form(self, path: str, text: str | None, forms: dict[str, bool]) -> bool | None:
        if text is not None and text not in forms:
            self.unread.add(self.index, path, "neither of {}: {!r}".format(" ".join(forms), text))
        return forms.get(text or "")


def _process(element: ElementTree.Element) -> dict[str, Any]:
    pid = int(element.findtext("pid") or 0)
    used = re.match(r"(\d+) MiB", element.findtext("used_memory") or "")
    name = proctable.title(pid)[:120] or _known(element.findtext("process_name"))
    return {"pid": pid, "name": name, "memory_mib": float(used[1]) if used else None}
