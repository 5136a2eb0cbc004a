"""The reader of `nvidia-smi -q -x` on a real recording, and on words that it does not know."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kiln.facts.node import NvidiaFacts
from kiln.probe import nvml, smi
from kiln.settings import ROOT
from tests.madenodes import RECORDED

pytestmark = pytest.mark.unit

XML = (ROOT / "tests/data/facts/h200-smi.xml").read_text(encoding="utf-8")
MOVING = {"power_w", "temperature_c", "compute_capability"}


def parsed(text: str) -> tuple[dict[str, Any], list[dict[str, str]]]:
    faults: list[dict[str, str]] = []
    found = smi.parse(text, faults)
    assert found
    NvidiaFacts.model_validate(found | {"gpus": [gpu | {"compute_capability": None} for gpu in found["gpus"]]})
    return found, faults


def test_the_recording_is_read_without_a_fault_and_says_what_nvml_said_of_the_same_card() -> None:
    found, faults = parsed(XML)
    by_nvml = json.loads(RECORDED.read_text(encoding="utf-8"))["facts"]["nvidia"]
    assert faults == []
    assert (found["driver"], found["cuda"]) == (by_nvml["driver"], by_nvml["cuda"])
    (smi_gpu,), (nvml_gpu,) = found["gpus"], by_nvml["gpus"]
    assert {key: smi_gpu[key] for key in smi_gpu.keys() - MOVING} == {
        key: nvml_gpu[key] for key in nvml_gpu.keys() - MOVING
    }


@pytest.mark.parametrize(
    ("old", "new", "field", "error"),
    [
        ("<used>0 MiB</used>\n\t\t\t<free>143156", "<used>N/A</used>\n\t\t\t<free>143156", "memory_used_mib",
         "fb_memory_usage/used: N/A (GPU 0)"),
        ("<used>0 MiB</used>\n\t\t\t<free>143156", "<used>0 GiB</used>\n\t\t\t<free>143156", "memory_used_mib",
         "fb_memory_usage/used: not a number of MiB: '0 GiB' (GPU 0)"),
        ("<remapped_row_pending>No</remapped_row_pending>", "<remapped_row_pending>Maybe</remapped_row_pending>",
         "remap_pending", "remapped_rows/remapped_row_pending: neither of Enabled Disabled Yes No Active Not Active: "
         "'Maybe' (GPU 0)"),
        ("<remapped_row_failure>No</remapped_row_failure>", "", "remap_failure",
         "remapped_rows/remapped_row_failure: not in the output (GPU 0)"),
        ("<current_link_width>16x</current_link_width>", "<current_link_width>[Unknown Error]</current_link_width>",
         "link_width", "pci/pci_gpu_link_info/link_widths/current_link_width: [Unknown Error] (GPU 0)"),
        ("<current_mig>Disabled</current_mig>", "<current_mig>N/A</current_mig>", "mig",
         "mig_mode/current_mig: N/A (GPU 0)"),
    ],
)  # fmt: skip
def test_a_value_that_is_not_told_is_none_and_a_fault_and_never_zero(
    old: str, new: str, field: str, error: str
) -> None:
    assert XML.count(old) == 1
    found, faults = parsed(XML.replace(old, new))
    assert found["gpus"][0][field] is None
    assert [f"{one['source'].removeprefix('nvidia-smi -q ')}: {one['error']}" for one in faults] == [error]


def test_one_unknown_part_makes_a_sum_unknown() -> None:
    volatile = XML.replace(
        "<dram_uncorrectable>0</dram_uncorrectable>", "<dram_uncorrectable>N/A</dram_uncorrectable>", 1
    )
    gpu = parsed(volatile)[0]["gpus"][0]
    assert (gpu["ecc_volatile_uncorrected"], gpu["ecc_aggregate_uncorrected"]) == (None, 0)


def test_gpus_that_lack_the_same_share_one_fault() -> None:
    start, end = XML.index("\t<gpu "), XML.index("</gpu>") + len("</gpu>\n")
    one = XML[start:end].replace("<persistence_mode>Enabled<", "<persistence_mode>N/A<")
    faults = parsed(XML[:start] + one * 3 + XML[end:])[1]
    assert faults == [
        {"source": "nvidia-smi -q persistence_mode", "error": "N/A (GPU 0, 1, 2)"},
        {"source": "nvidia-smi -q", "error": "says 1 GPUs, lists 3"},
    ]


def test_processes_throttling_and_capabilities_are_read() -> None:
    busy = XML.replace(
        "<processes>\n\t\t</processes>",
        "<processes><process_info><pid>4000000</pid><type>C</type><process_name>python3</process_name>"
        "<used_memory>512 MiB</used_memory></process_info></processes>",
    ).replace("hw_slowdown>Not Active<", "hw_slowdown>Active<")
    gpus = parsed(busy)[0]["gpus"]
    smi.add_capabilities(gpus, "00000000:00:06.0, 9.0\n")
    assert gpus[0]["processes"] == [{"pid": 4000000, "name": "python3", "memory_mib": 512.0}]
    assert gpus[0]["throttle"] == ["gpu_idle", "hw_slowdown"]
    assert gpus[0]["compute_capability"] == "9.0"


@pytest.mark.parametrize(
    ("text", "error"),
    [("Failed to initialize NVML", "not XML: syntax error: line 1, column 0"), ("<html/>", "not its log: <html>")],
)
def test_what_is_not_its_log_is_a_fault(text: str, error: str) -> None:
    faults: list[dict[str, str]] = []
    assert smi.parse(text, faults) is None
    assert faults == [{"source": "nvidia-smi -q", "error": error}]


@pytest.mark.parametrize(
    ("text", "expected"), [("00000000:C1:00.0", "0000:c1:00.0"), ("00010000:01:00.0", "10000:01:00.0")]
)
def test_addresses_are_written_as_in_sys(text: str, expected: str) -> None:
    assert nvml.bus_id(text) == expected


def test_reasons_for_lowered_clocks_have_nvidia_smis_names() -> None:
    assert nvml.reasons(0x1 | 0x40) == ["gpu_idle", "hw_thermal_slowdown"]
