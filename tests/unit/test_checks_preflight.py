"""Preflight on recorded and made nodes: each fault gives its verdict, cause and cure, and no other check fails."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from kiln import checks, topologies
from kiln.facts import Facts
from kiln.facts.image import ImageFacts
from kiln.facts.node import Aer, CdiSpec, DiskFacts, GpuProcess, LogLine, NodeFacts, PortFacts, ServerProcess
from kiln.settings import ROOT
from kiln.topologies import Topology
from kiln.verdict import Finding, Verdict, overall
from tests import madenodes
from tests.madenodes import all_gpus, bridge, changed, gpu, image, on_bus, rtx8, without_gpu, xid

pytestmark = pytest.mark.unit

TOPOLOGIES = topologies.load_all(ROOT)
DIRECT = TOPOLOGIES["rtx-pro-6000-8x-direct"]
PREFLIGHT = [check for check in checks.load_all() if check.phase == "preflight"]
PASS, WARN, FAIL, NOT_RUN = Verdict.PASS, Verdict.WARN, Verdict.FAIL, Verdict.NOT_RUN


def judge(node: NodeFacts, topology: Topology = DIRECT, image: ImageFacts | None = None) -> list[Finding]:
    facts = Facts(node=node, image=image)
    return [finding for check in PREFLIGHT for finding in check.run(facts, topology)]


def bad(findings: list[Finding]) -> list[Finding]:
    return [one for one in findings if one.verdict is not PASS]


def words(finding: Finding) -> tuple[str, str, str, str, str]:
    return finding.verdict.value, finding.subject, finding.message, finding.cause, finding.cure


def test_eight_good_gpus_pass_every_check_though_their_idle_links_run_at_gen1() -> None:
    findings = judge(rtx8(), image=image())
    assert bad(findings) == []
    (width,) = [one for one in findings if one.check == "preflight/link-width"]
    assert width.message == "x16, Gen1 now"


def test_two_sockets_and_switches_have_their_own_topology() -> None:
    for node, name in [
        (rtx8(), "rtx-pro-6000-8x-direct"),
        (rtx8(sockets=2), "rtx-pro-6000-8x-dual-socket"),
        (on_bus(rtx8(), 1, bridges=("0000:00:01.1",)), "rtx-pro-6000-8x-switch"),
        (madenodes.h200(), "h200-1x"),
        (changed(rtx8(), nvidia=None), "any"),
    ]:
        found = topologies.match(
            TOPOLOGIES, node.gpu_names, node.gpu_count, sockets=node.sockets, switched=node.switched
        )
        assert found.name == name


def test_two_sockets_are_good_where_the_topology_has_two() -> None:
    assert bad(judge(rtx8(sockets=2), TOPOLOGIES["rtx-pro-6000-8x-dual-socket"], image())) == []


def test_the_recorded_h200_is_good_but_for_its_machine() -> None:
    found = {(one.check, one.verdict) for one in bad(judge(madenodes.h200(), TOPOLOGIES["h200-1x"]))}
    assert found == {
        ("preflight/aer", NOT_RUN), ("preflight/cdi", FAIL), ("preflight/clock", WARN),
        ("preflight/container-toolkit", FAIL), ("preflight/disk", NOT_RUN), ("preflight/driver-cuda", NOT_RUN),
        ("preflight/image-target", NOT_RUN), ("preflight/process-limits", WARN),
    }  # fmt: skip


def test_without_containers_their_checks_are_not_run_and_not_missed() -> None:
    node = changed(madenodes.h200(), containers_wanted=False, containers=None)
    findings = judge(node, TOPOLOGIES["h200-1x"])
    not_run = {one.check for one in findings if one.verdict is NOT_RUN}
    assert {"preflight/container-toolkit", "preflight/cdi", "preflight/disk"} <= not_run
    assert overall(findings) is WARN


G3 = "GPU 3"
CASES = [
    ("link width", gpu(rtx8(), 3, link_width=8), FAIL, G3, "x8, x16 is wanted",
     "lanes do not work: the GPU is not seated, a riser or cable is bad, or the slot is shared",
     "reseat the GPU, change the riser or cable, look at the BIOS's lane split"),
    ("link width", gpu(rtx8(), 3, link_generation_max=4), WARN, G3, "Gen4 at most, Gen5 is wanted",
     "the slot or the BIOS limits the speed", "set the slot to Auto or to its generation in the BIOS"),
    ("remapped rows", gpu(rtx8(), 3, remap_pending=True, remapped_uncorrectable=1), FAIL, G3,
     "a row of memory waits for its replacement",
     "an uncorrected error was found; the row is replaced at the next reset, until then it may fail again",
     "reset the GPU (nvidia-smi -i 3 -r) or reboot, then run the check again"),
    ("remapped rows", gpu(rtx8(), 3, remap_failure=True, remap_pending=True), FAIL, G3,
     "a row of memory could not be replaced", "the GPU has no spare rows left in that bank", "replace the GPU"),
    ("remapped rows", gpu(rtx8(), 3, remapped_uncorrectable=2), WARN, G3,
     "2 rows were replaced after uncorrected errors", "memory of the GPU failed before",
     "watch it: if the number grows, replace the GPU"),
    ("ecc", gpu(rtx8(), 3, ecc_volatile_uncorrected=4, ecc_aggregate_uncorrected=4), FAIL, G3,
     "4 uncorrected ECC errors since the driver started",
     "memory of the GPU fails; what was computed meanwhile may be wrong",
     "reset the GPU (nvidia-smi -i 3 -r) or reboot; if it comes back, replace the GPU"),
    ("ecc", gpu(rtx8(), 3, ecc_aggregate_uncorrected=1), WARN, G3,
     "1 uncorrected ECC errors in its life, none since the driver started", "memory of the GPU failed before",
     "watch it: if the count grows, replace the GPU"),
    ("recovery", gpu(rtx8(), 3, recovery_action="Reset"), FAIL, G3, "needs a recovery: Reset",
     "the driver met an error that it cannot clear while the GPU is in use",
     "stop all that uses it, then nvidia-smi -i 3 -r"),
    ("xid", xid(rtx8(), 79), FAIL, G3, "Xid 79 since boot, 1 time: NVRM: Xid (PCI:0000:31:00): 79, pid=1",
     "the GPU has fallen off the bus",
     "switch the node's power off and on; check power cables, cooling and the power limit"),
    ("xid", xid(rtx8(), 31), WARN, G3, "Xid 31 since boot, 1 time: NVRM: Xid (PCI:0000:31:00): 31, pid=1",
     "a program read or wrote memory that is not its own",
     "look at what ran then; if no program is at fault, test the GPU in another slot"),
    ("xid", xid(rtx8(), 999), WARN, G3, "Xid 999 since boot, 1 time: NVRM: Xid (PCI:0000:31:00): 999, pid=1",
     "not one of those that condemn a GPU; see NVIDIA's Xid catalogue",
     "look at what ran then; if no program is at fault, test the GPU in another slot"),
    ("bar1", gpu(rtx8(), 3, bar1_total_mib=256.0), FAIL, G3, "BAR1 is 256 MiB, 97000 are wanted",
     "resizable BAR is off, or the GPU is in its display mode: peers reach a small window of its memory only",
     "set Above 4G Decoding and Resizable BAR in the BIOS; switch a display mode off with displaymodeselector"),
    ("idle", gpu(rtx8(), 3, processes=(GpuProcess(pid=77, name="train.py"),), memory_used_mib=9000.0), FAIL, G3,
     "is used by 77 train.py", "another program computes on the GPU, or is left over", "stop it: kill 77"),
    ("idle", gpu(rtx8(), 3, memory_used_mib=5000.0), FAIL, G3, "5000 MiB are in use, 1024 at most are idle",
     "a process that the driver does not show holds memory: another user's, or one in another container",
     "find it with `fuser -v /dev/nvidia*` as root and stop it"),
    ("leftovers", changed(rtx8(), servers=(ServerProcess(pid=9, title="sglang::scheduler_TP0", orphan=True),)), FAIL,
     "process 9", "sglang::scheduler_TP0 is left over", "its server died and the worker did not", "kill -9 9"),
    ("leftovers",
     changed(rtx8(), servers=(ServerProcess(pid=9, title="python -m sglang.launch_server", orphan=False),)),
     FAIL, "process 9", "an SGLang server runs: python -m sglang.launch_server", "the node serves already",
     "stop that server first"),
    ("leftovers", changed(rtx8(), "shm", stale_nccl=("nccl-a", "nccl-b")), WARN, "",
     "2 segments of NCCL in /dev/shm that no process has open", "a server was killed; the memory stays in use",
     "rm /dev/shm/nccl-*"),
    ("acs", bridge(rtx8(), 2, acs=("SrcValid", "ReqRedir", "CmpltRedir", "UpstreamFwd")), WARN, "",
     "1 bridge above the GPUs redirects: 0000:20:01.1 SrcValid+ReqRedir+CmpltRedir+UpstreamFwd",
     "ACS sends copies between GPUs over the root complex: slow, and the first all-reduce may hang",
     "switch ACS off in the BIOS, or for each bridge: setpci -s 0000:20:01.1 ECAP_ACS+6.w=0"),
    ("iommu", on_bus(on_bus(rtx8(), 0, iommu="DMA-FQ"), 1, iommu="DMA-FQ"), WARN, "",
     "the IOMMU translates for 2 GPUs (DMA-FQ, identity); boot: iommu=pt pcie_aspm=off pcie_port_pm=off",
     "copies between GPUs go through the IOMMU: slow, and the first all-reduce may hang",
     "boot with iommu=pt (or iommu=off), and set uvm_disable_hmm=1 for nvidia_uvm"),
    ("aspm", changed(rtx8(), "pci", cmdline=("iommu=pt",), aspm="default"), WARN, "",
     "ASPM policy default; not among the boot parameters: pcie_aspm=off pcie_port_pm=off",
     "a link that saves power may go down under load and take the GPU with it (Xid 79)",
     "boot with pcie_aspm=off pcie_port_pm=off"),
    ("aer", on_bus(rtx8(), 3, aer=Aer(correctable={}, nonfatal={"UnsupReq": 4}, fatal={"SDES": 1})), FAIL,
     "PCI 0000:31:00.0", "fatal PCIe errors: SDES 1", "the PCIe link failed",
     "reseat the GPU, change the riser or cable; boot with pcie_aspm=off pcie_port_pm=off"),
    ("driver log", changed(rtx8(), "kernel_log", driver_errors=(
        LogLine(text="NVRM: _kgspBootGspRm: unexpected WPR2 already up, cannot proceed with booting GSP"),)), FAIL, "",
     "1 line in the kernel log: NVRM: _kgspBootGspRm: unexpected WPR2 already up, cannot proceed with booting GSP",
     "the GPU was not reset since its last driver", "switch the node's power off and on"),
    ("driver log", changed(rtx8(), "kernel_log", pcie_errors=(
        LogLine(text="pcieport 0000:20:01.1: AER: PCIe Bus Error: severity=Fatal"),)), FAIL, "",
     "1 line in the kernel log: pcieport 0000:20:01.1: AER: PCIe Bus Error: severity=Fatal",
     "a PCIe link failed: power saving of the link, a riser or cable, or a GPU that is not seated",
     "boot with pcie_aspm=off pcie_port_pm=off; reseat the GPU, use a shorter cable"),
    ("driver cuda", changed(rtx8(), "nvidia", cuda="12.8"), FAIL, "",
     "driver 580.159.04 runs CUDA 12.8, the image has 13.0",
     "the driver is too old for the image: CUDA would end with error 803 or 804",
     "install a driver that runs CUDA 13.0, or take an image for CUDA 12.8"),
    ("driver", changed(rtx8(), "module", version="570.1.2"), FAIL, "",
     "NVML is 580.159.04; libcuda is 580.159.04; the kernel module is 570.1.2",
     "the driver was upgraded and the old module is still loaded, or libcuda comes from another package",
     "reboot the node; if it stays, remove the second package that brings libcuda"),
    ("kernel module", changed(rtx8(), "module", open=False), FAIL, "", "the closed kernel module is loaded",
     "this GPU works with the open kernel module only",
     "install the driver's package with the open kernel module (its name ends in -open), reboot"),
    ("cdi", changed(rtx8(), "containers", cdi=(), hook=False, runtimes=("runc",)), FAIL, "", "there is no CDI file",
     "never written, and no runtime hook is installed: `--gpus all` finds no GPU",
     "nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml"),
    ("cdi", changed(rtx8(), "containers", cdi=()), WARN, "", "there is no CDI file",
     "never written; the toolkit's runtime hook does without, newer engines do not",
     "nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml"),
    ("cdi", changed(rtx8(), "containers", cdi=(CdiSpec(path="/etc/cdi/a.yaml", gpus=8, driver="570.1.2"),)), FAIL,
     "/etc/cdi/a.yaml", "driver 570.1.2, 580.159.04 runs",
     "the driver was upgraded after the file was written: containers are given files that are gone",
     "nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml"),
    ("cdi", changed(rtx8(), "containers", cdi=(CdiSpec(path="/etc/cdi/a.yaml", gpus=7, driver="580.159.04"),)), FAIL,
     "/etc/cdi/a.yaml", "7 GPUs, the driver has 8",
     "the file was written while a GPU was missing, or for another node",
     "nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml"),
    ("container toolkit", changed(rtx8(), "containers", toolkit=None, hook=False), FAIL, "",
     "NVIDIA's container toolkit is not there", "it is not installed",
     "install nvidia-container-toolkit, then nvidia-ctk runtime configure --runtime=docker; restart Docker"),
    ("container toolkit", changed(rtx8(), "containers", docker=None), FAIL, "", "Docker does not answer",
     "it is not installed", "install Docker and start it; the user of this run needs the right to use it"),
    ("mig", gpu(rtx8(), 3, mig=True), FAIL, G3, "MIG is on",
     "the GPU is cut into slices; peer access and tensor parallelism do not work with them",
     "nvidia-smi -i 3 -mig 0, then reset the GPU: nvidia-smi -i 3 -r"),
    ("mig", gpu(rtx8(), 3, compute_mode="Exclusive_Process"), FAIL, G3, "compute mode Exclusive_Process",
     "only one process at most may use the GPU, a server has several", "nvidia-smi -i 3 -c DEFAULT"),
    ("persistence", gpu(rtx8(), 3, persistence=False), WARN, G3, "persistence mode is off",
     "the driver unloads the GPU when no program uses it: every start waits, and settings are lost",
     "systemctl enable --now nvidia-persistenced, or nvidia-smi -pm 1"),
    ("power limit", all_gpus(rtx8(), power_limit_w=250.0), WARN, "GPU 0", "power limit 250 W, 300 W are wanted",
     "the limit was lowered by hand or by the BMC", "nvidia-smi -i 0 -pl 600"),
    ("power limit", gpu(rtx8(), 3, power_limit_w=450.0), WARN, "", "the power limits differ: 450 W, 600 W",
     "tensor parallelism runs at the pace of the slowest GPU", "nvidia-smi -pl 600"),
    ("slowdown", gpu(rtx8(), 3, throttle=("gpu_idle", "hw_power_brake_slowdown")), FAIL, G3,
     "is slowed down: hw_power_brake_slowdown", "the node's power supply pulls the brake",
     "check the power supplies and GPU cables"),
    ("slowdown", gpu(rtx8(), 3, temperature_c=71), WARN, G3, "71 C while idle, 60 C at most is usual",
     "little air reaches the GPU, or it was under load a moment ago", "check fans and air flow"),
    ("numa", rtx8(sockets=2), WARN, "", "2 sockets, topology rtx-pro-6000-8x-direct has 1",
     "the topology is of another node: its limits between GPUs do not hold here", "name the topology that fits"),
    ("shm", changed(rtx8(), "shm", free_mib=64.0), FAIL, "", "0.1 GiB free in /dev/shm, 16 are wanted",
     "NCCL keeps its buffers there and ends with `Error while creating shared memory segment`",
     "mount -o remount,size=64G /dev/shm; remove what is left over there"),
    ("process limits", changed(rtx8(), "limits", memlock_bytes=8388608), WARN, "",
     "dockerd: 8 MiB of locked memory at most", "pinned memory for copies to and from GPUs may be refused",
     "run containers with --ulimit memlock=-1, or set LimitMEMLOCK=infinity for the engine's service"),
    ("disk", changed(rtx8(), disks=(
        DiskFacts(purpose="images", path="/var/lib/docker", mount="/", kind="ext4", free_bytes=30 * 10**9),
        DiskFacts(purpose="cache", path="/", mount="/", kind="ext4"))), FAIL, "",
     "30 GB free at /, 36 GB are wanted", "the image and its unpacked layers need 3 times its size",
     "remove images that are not used (docker image prune), or move Docker's data-root to a larger disk"),
    ("filesystem", changed(rtx8(), disks=(
        *(disk for disk in rtx8().disks or () if disk.purpose == "images"),
        DiskFacts(purpose="cache", path="/cache", mount="/cache", kind="nfs4"))), FAIL, "",
     "/cache is nfs4, mounted at /cache",
     "JIT caches on a network's file system are broken by other nodes and by stale file handles",
     "give the cache a folder on a local disk"),
    ("clock", changed(rtx8(), "clock", synchronised=False), WARN, "", "the clock is not synchronised",
     "no time service runs, or it has not reached a server",
     "systemctl enable --now chrony (or systemd-timesyncd)"),
    ("ports", changed(rtx8(), ports=(PortFacts(port=30000, free=False, owner="77 python"),)), FAIL, "port 30000",
     "is taken by 77 python", "another server listens there, or one is left over", "stop it: kill 77"),
    ("host memory", changed(rtx8(), "host", memory_available_mib=2048.0), FAIL, "",
     "2 GiB of memory are available, 128 are wanted",
     "other programs use it, or the node has too little: loading ends by the kernel's out-of-memory killer",
     "stop what uses it, or add memory"),
    ("gpu model", gpu(rtx8(), 3, name="NVIDIA RTX PRO 6000 Blackwell Workstation Edition"), WARN, "",
     "the GPUs are of 2 models: NVIDIA RTX PRO 6000 Blackwell Server Edition, "
     "NVIDIA RTX PRO 6000 Blackwell Workstation Edition",
     "tensor parallelism runs at the pace of the slowest, with the memory of the smallest",
     "put GPUs of one model into a node"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("check", "node", "verdict", "subject", "message", "cause", "cure"),
    CASES,
    ids=[f"{case[0]}: {case[4][:40]}" for case in CASES],
)
def test_a_fault_has_its_verdict_cause_and_cure_and_is_told_by_its_own_check_only(
    check: str, node: NodeFacts, verdict: Verdict, subject: str, message: str, cause: str, cure: str
) -> None:
    found = bad(judge(node, image=image()))
    assert {one.check for one in found} == {f"preflight/{check.replace(' ', '-')}"}
    assert words(found[0]) == (verdict.value, subject, message, cause, cure)
    assert overall(found) is verdict


def test_a_gpu_that_the_driver_lost_is_named_by_its_place() -> None:
    found = bad(judge(without_gpu(rtx8(), 3), image=image()))
    assert [(one.check, one.subject, one.message) for one in found] == [
        ("preflight/cdi", "/etc/cdi/nvidia.yaml", "8 GPUs, the driver has 7"),
        ("preflight/gpu-count", "PCI 0000:31:00.0", "is on the PCI bus, the driver does not list it"),
    ]
    held = on_bus(without_gpu(rtx8(), 3), 3, driver="vfio-pci")
    (gone,) = [one for one in bad(judge(held)) if one.check == "preflight/gpu-count"]
    assert (gone.cause, gone.cure) == ("vfio-pci holds it", "unbind it from vfio-pci, or boot without that driver")


def test_a_gpu_that_answers_with_ones_has_fallen_off_the_bus() -> None:
    (found,) = [
        one
        for one in bad(judge(on_bus(without_gpu(rtx8(), 3), 3, present=False)))
        if one.check == "preflight/gpu-count"
    ]
    assert (found.subject, found.cause) == ("PCI 0000:31:00.0", "the GPU has fallen off the bus")


def test_seven_gpus_are_not_eight() -> None:
    node = without_gpu(rtx8(), 7)
    assert node.pci
    node = changed(node, "pci", gpus=node.pci.gpus[:7])
    (found,) = [one for one in bad(judge(node)) if one.check == "preflight/gpu-count"]
    assert words(found)[:3] == ("FAIL", "", "7 GPUs on the PCI bus, the topology has 8")


def test_a_driver_of_the_same_cuda_major_runs_the_image_with_a_warning() -> None:
    found = [one for one in judge(rtx8(), image=image(**{"kiln.cuda": "13.2"})) if one.check == "preflight/driver-cuda"]
    assert [(one.verdict, one.message) for one in found] == [
        (WARN, "driver 580.159.04 runs CUDA 13.0, the image has 13.2")
    ]


def test_a_driver_must_run_the_cuda_of_the_kernels_where_another_than_torch_s_compiled_them() -> None:
    labels = {"kiln.cuda": "12.8", "kiln.toolkit": "14.0"}
    found = [one for one in bad(judge(rtx8(), image=image(**labels))) if one.check == "preflight/driver-cuda"]
    assert [(one.verdict, one.message) for one in found] == [
        (FAIL, "driver 580.159.04 runs CUDA 13.0, the image has 14.0")
    ]


def test_an_image_for_another_gpu_is_told_before_the_pull() -> None:
    found = bad(judge(rtx8(), image=image(**{"kiln.arch": "9.0a"})))
    assert [one.check for one in found] == ["preflight/image-target"] * 8
    assert found[0].message == "has compute capability 12.0, the image is for 9.0"


def test_an_image_of_another_maker_is_not_judged() -> None:
    plain = ImageFacts(ref="some/image", size_bytes=1, labels={})
    found = {one.check: one.message for one in bad(judge(rtx8(), image=plain))}
    assert found == {
        "preflight/driver-cuda": "the image's CUDA is not known: it has no label kiln.cuda",
        "preflight/image-target": "the image's GPU target is not known: it has no label kiln.arch",
    }


OPTIONAL = {"index", "bus_id", "virtualization", "utilization_percent", "power_w", "power_max_w", "sm_clock_mhz",
            "sm_clock_max_mhz", "memory_total_mib", "ecc_volatile_corrected", "ecc_aggregate_corrected",
            "remapped_correctable", "power_default_w", "link_generation", "link_width_max", "mig_pending",
            "ecc_pending"}  # fmt: skip


@pytest.mark.parametrize("field", sorted(set(type(rtx8().gpus[0]).model_fields) - OPTIONAL))
def test_an_unknown_field_of_a_gpu_is_not_run_and_never_zero(field: str) -> None:
    found = bad(judge(gpu(rtx8(), 3, **{field: None}), image=image()))
    assert found
    assert {one.verdict for one in found} <= {NOT_RUN, WARN}
    assert any(one.verdict is NOT_RUN and one.subject == G3 and "is not known" in one.message for one in found)


def test_what_a_gpu_does_not_have_is_no_gap_where_the_topology_says_so() -> None:
    names = ("ecc", "ecc_pending", "ecc_volatile_corrected", "ecc_volatile_uncorrected", "ecc_aggregate_corrected",
             "ecc_aggregate_uncorrected", "mig", "mig_pending", "remap_pending", "remap_failure",
             "remapped_correctable", "remapped_uncorrectable")  # fmt: skip
    node = all_gpus(rtx8(), name="NVIDIA GeForce RTX 5090", **dict.fromkeys(names))
    assert bad(judge(node, TOPOLOGIES["rtx-5090-8x"], image())) == []


@pytest.mark.parametrize(
    "part",
    ["host", "nvidia", "module", "pci", "kernel_log", "limits", "shm", "disks", "clock", "ports", "servers",
     "containers"],
)  # fmt: skip
def test_a_part_that_the_probe_could_not_read_is_never_good(part: str) -> None:
    missing: dict[str, Any] = {part: None}
    found = bad(judge(changed(rtx8(), **missing), image=image()))
    assert found
    assert {one.verdict for one in found} <= {NOT_RUN, FAIL}


def test_without_any_facts_nothing_is_run() -> None:
    findings = [finding for check in PREFLIGHT for finding in check.run(Facts(), DIRECT)]
    assert {one.verdict for one in findings} == {NOT_RUN}
    assert overall(findings) is NOT_RUN


def test_a_generic_topology_judges_no_hardware_numbers() -> None:
    node = gpu(gpu(rtx8(), 3, link_width=8), 4, bar1_total_mib=256.0)
    found = judge(node, TOPOLOGIES["any"], image())
    assert bad(found) == []
    assert "no limit in this topology" in next(one.message for one in found if one.check == "preflight/bar1")


def test_every_check_has_a_title_and_its_own_name() -> None:
    assert len({check.name for check in PREFLIGHT}) == len(PREFLIGHT) >= 30
    assert all(check.title and not check.title.endswith(".") for check in PREFLIGHT)


def test_every_finding_that_is_no_pass_says_why_and_what_to_do() -> None:
    found = [one for case in CASES for one in bad(judge(case[1], image=image())) if one.verdict in (WARN, FAIL)]
    assert all(one.cause and one.cure and dataclasses.asdict(one) for one in found)
