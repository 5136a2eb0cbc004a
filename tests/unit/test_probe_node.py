"""The node probe: its readers on made /proc and /sys trees, and all of it here, with what is missing and what hangs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from kiln import checks, topologies
from kiln.facts import Facts
from kiln.facts.node import KernelLogFacts, NodeFacts, PciFacts
from kiln.facts.reading import read
from kiln.probe import commands, containers, host, kernellog, module, pci, proctable, sections
from kiln.settings import ROOT
from kiln.verdict import Verdict, overall
from tests.processes import gone

pytestmark = pytest.mark.unit


@pytest.fixture
def faults() -> list[dict[str, str]]:
    return []


def write(root: Path, **texts: str) -> None:
    for name, text in texts.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def made_bus(root: Path, control: int = 0x1D, **gpu: str) -> Path:
    """Make a GPU below a root port whose ACS control register has this value; returns the GPU's folder."""
    port = root / "sys/devices/pci0000:20/0000:20:01.1"
    card = port / "0000:21:00.0"
    config = bytearray(4096)
    config[0x100:0x104] = (0x0001 | 1 << 16 | 0x148 << 20).to_bytes(4, "little")
    config[0x148:0x14C] = (0x000D | 1 << 16).to_bytes(4, "little")
    config[0x14E:0x150] = control.to_bytes(2, "little")
    values = {
        "vendor": "0x10de", "class": "0x030200", "device": "0x2bb5", "current_link_width": "16", "max_link_width": "16",
        "current_link_speed": "2.5 GT/s PCIe", "max_link_speed": "32.0 GT/s PCIe", "numa_node": "1",
        "aer_dev_correctable": "RxErr 0\nBadTLP 3\nTOTAL_ERR_COR 3\n", "aer_dev_nonfatal": "UnsupReq 1\n",
        "aer_dev_fatal": "Undefined 0\nTOTAL_ERR_FATAL 0\n", **gpu,
    }  # fmt: skip
    write(card, **values)
    (card / "config").write_bytes(bytes(config[:256]))
    (port / "config").write_bytes(bytes(config))
    groups = root / "sys/kernel/iommu_groups/7"
    write(groups, type="DMA-FQ\n")
    (card / "iommu_group").symlink_to(groups)
    devices = root / "sys/bus/pci/devices"
    devices.mkdir(parents=True)
    (devices / card.name).symlink_to(card)
    write(root, **{"proc/cmdline": "root=UUID=secret ro iommu=pt pcie_aspm=off\n"})
    write(root, **{"sys/module/pcie_aspm/parameters/policy": "[default] performance powersave"})
    return card


def bus(root: Path, faults: list[dict[str, str]]) -> PciFacts:
    return PciFacts.model_validate(pci.bus(faults, root))


def test_a_gpu_and_the_bridge_above_it_are_read_from_sys(tmp_path: Path, faults: list[dict[str, str]]) -> None:
    made_bus(tmp_path)
    found = bus(tmp_path, faults)
    (gpu,), (bridge,) = found.gpus, found.bridges
    assert (gpu.bus_id, gpu.device, gpu.present, gpu.driver) == ("0000:21:00.0", "0x2bb5", True, None)
    assert (gpu.width, gpu.width_max, gpu.speed_gt_s, gpu.speed_max_gt_s) == (16, 16, 2.5, 32.0)
    assert (gpu.numa_node, gpu.iommu, gpu.bridges) == (1, "DMA-FQ", ("0000:20:01.1",))
    assert gpu.aer
    assert (gpu.aer.correctable, gpu.aer.nonfatal, gpu.aer.fatal) == ({"BadTLP": 3}, {"UnsupReq": 1}, {})
    assert bridge.acs == ("SrcValid", "ReqRedir", "CmpltRedir", "UpstreamFwd")
    assert bridge.redirects
    assert faults == []


def test_only_boot_parameters_that_concern_the_bus_are_kept(tmp_path: Path, faults: list[dict[str, str]]) -> None:
    made_bus(tmp_path)
    assert bus(tmp_path, faults).cmdline == ("iommu=pt", "pcie_aspm=off")
    assert bus(tmp_path, faults).aspm == "default"


@pytest.mark.parametrize(
    ("control", "acs"),
    [(0, ()), (0x01, ("SrcValid",)), (0x5C, ("ReqRedir", "CmpltRedir", "UpstreamFwd", "DirectTrans"))],
)
def test_access_controls_are_the_bits_of_the_register(
    tmp_path: Path, faults: list[dict[str, str]], control: int, acs: tuple[str, ...]
) -> None:
    made_bus(tmp_path, control)
    assert bus(tmp_path, faults).bridges[0].acs == acs


def test_a_configuration_that_only_root_reads_is_not_known(tmp_path: Path, faults: list[dict[str, str]]) -> None:
    config = made_bus(tmp_path).parent / "config"
    config.write_bytes(config.read_bytes()[:64])
    assert bus(tmp_path, faults).bridges[0].acs is None
    assert [one["error"] for one in faults] == ["only root reads the extended part"]


@pytest.mark.parametrize("width", ["0", "255", "fast"])
def test_a_width_that_the_kernel_does_not_know_is_none(
    tmp_path: Path, faults: list[dict[str, str]], width: str
) -> None:
    made_bus(tmp_path, current_link_width=width)
    assert bus(tmp_path, faults).gpus[0].width is None
    assert len(faults) == 1


def test_a_gpu_that_answers_with_ones_is_not_present(tmp_path: Path, faults: list[dict[str, str]]) -> None:
    (made_bus(tmp_path) / "config").write_bytes(b"\xff" * 256)
    assert bus(tmp_path, faults).gpus[0].present is False


def test_audio_functions_and_other_makers_are_no_gpus(tmp_path: Path, faults: list[dict[str, str]]) -> None:
    card = made_bus(tmp_path)
    (card / "class").write_text("0x040300")
    assert bus(tmp_path, faults).gpus == ()


LOG = """\
[    0.000000] Linux version 6.8
[  123.500000] NVRM: Xid (PCI:0000:21:00): 79, pid=1234, GPU has fallen off the bus.
[  124.000000] NVRM: GPU 0000:21:00.0: RmInitAdapter failed! (0x22:0x56:884)
[  125.000000] pcieport 0000:20:01.1: AER: PCIe Bus Error: severity=Uncorrectable (Fatal), type=Transaction Layer
[  126.000000] pcieport 0000:20:01.1: AER: PCIe Bus Error: severity=Corrected, type=Physical Layer
"""


@pytest.fixture
def path_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder that is the whole of PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


def program(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(f"#!{sys.executable}\nimport sys, time\n{text}\n")
    (folder / name).chmod(0o755)


def kernel_log(root: Path, faults: list[dict[str, str]]) -> KernelLogFacts:
    return KernelLogFacts.model_validate(kernellog.read(faults, 8.0, root))


def test_the_kernel_log_is_read_with_times(tmp_path: Path, path_only: Path, faults: list[dict[str, str]]) -> None:
    write(tmp_path, **{"proc/uptime": "1000.00 1.0"})
    program(path_only, "dmesg", f"print({LOG!r})")
    found = kernel_log(tmp_path, faults)
    (xid,) = found.xids
    assert (found.source, found.from_boot, xid.bus_id, xid.code) == ("dmesg", None, "0000:21:00.0", 79)
    assert xid.time_s == pytest.approx(time.time() - 1000 + 123.5, abs=2)
    assert [line.text.split(": ")[1] for line in found.driver_errors] == ["GPU 0000:21:00.0"]
    assert ["severity=Uncorrectable" in line.text for line in found.pcie_errors] == [True]
    assert faults == []


def test_the_ring_buffer_is_whole_if_its_first_message_is_there(tmp_path: Path, path_only: Path) -> None:
    write(tmp_path, **{"proc/uptime": "1000.00 1.0", "dev/kmsg": "6,0,500000,-;NVRM: Xid (PCI:0000:21:00): 31, x\n"})
    found = kernel_log(tmp_path, [])
    assert (found.source, found.from_boot, [one.code for one in found.xids]) == ("/dev/kmsg", True, [31])


def test_a_ring_buffer_that_lost_its_beginning_gives_way_to_the_journal(tmp_path: Path, path_only: Path) -> None:
    write(tmp_path, **{"proc/uptime": "1000.00 1.0", "dev/kmsg": "6,900,500000,-;something\n"})
    assert (kernel_log(tmp_path, []).source, kernel_log(tmp_path, []).from_boot) == ("/dev/kmsg", False)
    program(path_only, "journalctl", f"print({LOG.replace('] ', '] node kernel: ')!r})")
    found = kernel_log(tmp_path, [])
    assert (found.source, found.from_boot, [one.code for one in found.xids]) == ("journalctl", True, [79])


def test_a_kernel_log_that_may_not_be_read_is_not_known(
    tmp_path: Path, path_only: Path, faults: list[dict[str, str]]
) -> None:
    program(path_only, "dmesg", "sys.exit('dmesg: read kernel buffer failed: Operation not permitted')")
    assert kernellog.read(faults, 8.0, tmp_path) is None
    assert [one["source"] for one in faults] == [str(tmp_path / "dev/kmsg"), "journalctl -k", "dmesg"]
    assert faults[-1]["error"] == "ended with 1: dmesg: read kernel buffer failed: Operation not permitted"


@pytest.mark.parametrize(
    ("text", "version", "is_open"),
    [
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (x)", "580.159.04", True),
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024", "550.54.15", False),
    ],
)
def test_the_kernel_module_says_what_it_is(
    tmp_path: Path, faults: list[dict[str, str]], text: str, version: str, is_open: bool
) -> None:
    write(tmp_path, **{"proc/driver/nvidia/version": text, "proc/driver/nvidia/params": 'EnableMSI: 1\nRmMsg: ""\n'})
    write(tmp_path, **{"sys/module/nvidia_uvm/parameters/uvm_disable_hmm": "Y\n"})
    assert module.loaded(faults, tmp_path) == {
        "version": version, "open": is_open, "parameters": {"EnableMSI": "1", "RmMsg": '""'}, "hmm_disabled": True,
    }  # fmt: skip


def process(root: Path, pid: int, parent: int, words: str, state: str = "S") -> None:
    folder = f"proc/{pid}"
    write(
        root, **{f"{folder}/stat": f"{pid} (a (b) c) {state} {parent} 1", f"{folder}/cmdline": words.replace(" ", "\0")}
    )


def test_orphans_are_workers_without_their_server_and_zombies_are_nothing(tmp_path: Path) -> None:
    process(tmp_path, 10, 1, "python3 -m sglang.launch_server --tp 2")
    process(tmp_path, 11, 10, "sglang::scheduler_TP0")
    process(tmp_path, 12, 1, "sglang::scheduler_TP1")
    process(tmp_path, 13, 1, "sglang::detokenizer", "Z")
    process(tmp_path, 14, 1, "vim sglang.launch_server.md")
    found = proctable.servers([], tmp_path)
    assert [(one["pid"], one["orphan"]) for one in found] == [(10, False), (11, False), (12, True)]


def test_ports_are_read_from_the_kernels_table_with_their_owner(tmp_path: Path, faults: list[dict[str, str]]) -> None:
    head = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
    row = "   0: 0100007F:7530 00000000:0000 {} 00000000:00000000 00:00000000 00000000 0 0 4242 1 0 100 0 0 10 0\n"
    write(tmp_path, **{"proc/net/tcp": head + row.format("0A") + row.format("01").replace("7530", "7531")})
    process(tmp_path, 77, 1, "python3 server.py")
    (tmp_path / "proc/77/fd").mkdir()
    (tmp_path / "proc/77/fd/3").symlink_to("socket:[4242]")
    assert host.ports([30000, 30001], faults, tmp_path) == [
        {"port": 30000, "free": False, "owner": "77 python3 server.py"},
        {"port": 30001, "free": True, "owner": None},
    ]


@pytest.mark.parametrize(
    ("path", "kind", "sized"), [("/", "ext4", True), ("/mnt/a", "nfs4", False), ("/mnt/a b", "xfs", True)]
)
def test_the_file_system_of_a_path_is_that_of_its_last_mount(
    tmp_path: Path, faults: list[dict[str, str]], path: str, kind: str, sized: bool
) -> None:
    mounts = [("/", "overlay"), ("/", "ext4"), ("/mnt", "nfs4"), (r"/mnt/a\040b", "xfs")]
    lines = [f"1 0 8:1 / {point} rw,relatime shared:1 - {of} dev rw" for point, of in mounts]
    found = host.mount(Path(path), "\n".join(lines))
    assert found
    assert (found[1], found[1] not in host.NETWORK) == (kind, sized)


@pytest.mark.parametrize("suffix", ["yaml", "json"])
def test_a_cdi_file_tells_its_gpus_and_its_driver(tmp_path: Path, suffix: str) -> None:
    devices = [
        {"name": str(index), "containerEdits": {"deviceNodes": [{"path": f"/dev/nvidia{index}"}]}} for index in range(2)
    ]
    devices.append(
        {"name": "all", "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia0"}, {"path": "/dev/nvidia1"}]}}
    )
    mounts = [{"hostPath": "/usr/lib/libcuda.so.580.159.04"}, {"hostPath": "/dev/nvidiactl"}]
    text = json.dumps({"kind": "nvidia.com/gpu", "devices": devices, "containerEdits": {"mounts": mounts}}, indent=1)
    path = tmp_path / f"nvidia.{suffix}"
    path.write_text(text if suffix == "json" else "\n".join(line.replace('"', "") for line in text.splitlines()))
    assert containers.cdi_file(path, []) == {"path": str(path), "gpus": 2, "driver": "580.159.04"}


def test_a_command_that_hangs_is_killed_with_what_it_started(path_only: Path, faults: list[dict[str, str]]) -> None:
    note = path_only / "pid"
    sleeping = "[sys.executable, '-c', 'import time; time.sleep(600)']"
    program(
        path_only, "slow", f"import subprocess\nchild = subprocess.Popen({sleeping})\n"
        f"open({str(note)!r}, 'w').write(str(child.pid))\nchild.wait()",
    )  # fmt: skip
    began = time.monotonic()
    assert commands.run(["slow", "--now"], faults, 1.5) is None
    assert time.monotonic() - began < 6
    assert faults == [{"source": "slow --now", "error": "no answer within 1.5 s"}]
    assert gone(int(note.read_text()))


def test_a_section_that_hangs_or_raises_costs_itself_only(faults: list[dict[str, str]]) -> None:
    stop = threading.Event()

    def broken(_: list[dict[str, str]]) -> None:
        raise ValueError("bad")

    found = sections.gather(
        {"hangs": lambda _: stop.wait(30), "raises": broken, "works": lambda _: 7}, faults, deadline_s=0.3
    )
    stop.set()
    assert found == {"hangs": None, "raises": None, "works": 7}
    assert faults == [
        {"source": "hangs", "error": "no answer within 0.3 s"},
        {"source": "raises", "error": "ValueError: bad"},
    ]


def probe(*words: str, path: Path | None = None, **env: str) -> tuple[NodeFacts, dict[str, Any]]:
    """Run the whole probe as a program; `path` comes first on its PATH."""
    search = f"{path}:{os.environ['PATH']}" if path else os.environ["PATH"]
    done = subprocess.run(
        [sys.executable, "-m", "kiln.probe", "node", *words], cwd=ROOT, env={**os.environ, "PATH": search, **env},
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    return read(done.stdout, NodeFacts), json.loads(done.stdout)


@pytest.fixture(scope="module")
def here() -> tuple[NodeFacts, dict[str, Any]]:
    return probe("--ports", "1", "--cache", str(ROOT), "--deadline", "50")


def test_the_probe_answers_here(here: tuple[NodeFacts, dict[str, Any]]) -> None:
    found, _ = here
    assert found.host
    assert (found.host.hostname, found.host.cpus) == (os.uname().nodename, os.cpu_count())
    assert found.ports
    assert found.ports[0].port == 1


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="this machine has a GPU")
def test_without_a_gpu_there_are_faults_and_nulls_and_no_good_verdict(here: tuple[NodeFacts, dict[str, Any]]) -> None:
    found, _ = here
    assert (found.nvidia, found.module, found.gpus) == (None, None, ())
    assert {"nvml", "nvidia-smi -q"} <= {one.source for one in found.faults}
    known = topologies.load_all(ROOT)
    topology = topologies.match(known, found.gpu_names, found.gpu_count)
    findings = [
        finding
        for check in checks.load_all()
        if check.phase == "preflight"
        for finding in check.run(Facts(node=found), topology)
    ]
    (driver,) = [one for one in findings if one.check == "preflight/driver"]
    assert (topology.name, overall(findings), driver.verdict) == ("any", Verdict.FAIL, Verdict.FAIL)
    assert driver.cause.startswith("no driver is loaded (nvml: ")
    asks_gpus = {"bar1", "ecc", "gpu-model", "idle", "link-width", "mig", "remapped-rows", "slowdown", "power-limit"}
    verdicts = {one.check: one.verdict for one in findings}
    assert {verdicts[f"preflight/{name}"] for name in asks_gpus} == {Verdict.NOT_RUN}


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="this machine has a GPU")
@pytest.mark.parametrize("name", ["nvidia-smi", "docker", "nvidia-ctk"])
def test_a_tool_that_sleeps_for_ever_costs_its_own_facts_only(tmp_path: Path, name: str) -> None:
    program(tmp_path, name, "time.sleep(3600)")
    began = time.monotonic()
    found, answer = probe("--deadline", "4", path=tmp_path)
    assert time.monotonic() - began < 10
    assert answer["seconds"] <= 5.5
    assert any(name in one.source and "no answer within" in one.error for one in found.faults)
    assert found.host
    assert found.kernel_log is not None or found.why("kmsg", "dmesg")


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="this machine has a GPU")
def test_nvidia_smi_is_asked_where_nvml_does_not_load(tmp_path: Path) -> None:
    recorded = ROOT / "tests/data/facts/h200-smi.xml"
    program(
        tmp_path,
        "nvidia-smi",
        f"print(open({str(recorded)!r}).read() if '-x' in sys.argv else '00000000:00:06.0, 9.0')",
    )
    found, _ = probe("--no-containers", path=tmp_path)
    assert found.nvidia
    assert (found.nvidia.source, found.gpu_names, found.gpus[0].compute_capability) == (
        "nvidia-smi",
        ("NVIDIA H200",),
        "9.0",
    )
    assert found.containers is None
    assert not found.why("docker")


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    from kiln import bundle as made

    path = tmp_path / made.NAME
    path.write_bytes(made.build())
    return path


def test_the_bundle_is_a_function_of_the_checkout_and_small() -> None:
    from kiln import bundle as made

    assert made.build() == made.build()
    assert len(made.build()) < 200_000


def test_the_bundle_runs_with_another_python_in_another_folder(bundle: Path, tmp_path: Path) -> None:
    python = "/usr/bin/python3" if Path("/usr/bin/python3").exists() else sys.executable
    done = subprocess.run(
        [python, "-I", bundle, "node", "--no-containers"], cwd=tmp_path, env={"PATH": os.environ["PATH"]},
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    found = read(done.stdout, NodeFacts)
    assert found.host
    assert not found.why("ImportError", "bindings")
    assert found.nvidia or found.why("nvml") == "nvml: NVML Shared Library Not Found"
