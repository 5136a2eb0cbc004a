"""Checks of copies, peers, IPC, all-reduce and heat, over made facts: exact verdict, cause and cure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kiln import checks, topologies
from kiln.facts import Facts
from kiln.settings import ROOT
from kiln.verdict import Finding, Verdict, overall
from tests import gpufacts
from tests.gpufacts import DONE, bad_run, ended, facts, hung, peer, run

pytestmark = pytest.mark.unit

TOPOLOGY = topologies.load_all(ROOT)["rtx-pro-6000-8x-direct"]
ANY = topologies.load_all(ROOT)["any"]
FABRIC = [check for check in checks.load_all() if check.phase == "fabric"]
NAMES = [check.name for check in FABRIC]


def judge(name: str, topology: topologies.Topology = TOPOLOGY, **parts: Any) -> list[Finding]:
    """Run one check of the fabric; returns what is not PASS, or all if everything passes."""
    check = next(one for one in FABRIC if one.name == f"fabric/{name}")
    found = check.run(facts(**parts), topology)
    return [one for one in found if one.verdict is not Verdict.PASS] or list(found)


def only(findings: list[Finding]) -> Finding:
    assert len(findings) == 1, findings
    return findings[0]


def changed(made: dict[str, Any], change: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    change(made)
    return made


@pytest.mark.parametrize("name", NAMES)
def test_a_healthy_node_passes(name: str) -> None:
    found = next(one for one in FABRIC if one.name == name).run(facts(), TOPOLOGY)
    assert {one.verdict for one in found} == {Verdict.PASS}, found
    assert all(not one.cause and not one.cure for one in found)


@pytest.mark.parametrize("name", NAMES)
def test_a_node_that_no_topology_is_for_passes_with_its_numbers(name: str) -> None:
    found = next(one for one in FABRIC if one.name == name).run(facts(), ANY)
    assert {one.verdict for one in found} == {Verdict.PASS}, found


@pytest.mark.parametrize("name", NAMES)
def test_without_facts_nothing_passes(name: str) -> None:
    found = next(one for one in FABRIC if one.name == name).run(Facts(), TOPOLOGY)
    assert [one.verdict for one in found] == [Verdict.NOT_RUN]


@pytest.mark.parametrize("name", NAMES)
def test_without_a_gpu_nothing_passes_and_the_reason_is_told(name: str) -> None:
    fault = {"faults": [{"source": "CUDA driver", "error": "no CUDA driver: libcuda.so.1"}]}
    parts = {
        "bandwidth": {"bytes": 1, "gpus": [], **fault},
        "peers": {"gpus": 0, "pairs": [], "concurrent": None, **fault},
        "ipc": {"pairs": [], **fault},
        "allreduce": {**gpufacts.allreduce(), "gpus": 0, "groups": [], "not_run": [2, 4, 8], **fault},
        "heat": {"seconds": 60, "stopped": None, "gpus": [], "samples": [], **fault},
    }
    found = next(one for one in FABRIC if one.name == name).run(facts(**parts), TOPOLOGY)
    assert [one.verdict for one in found] == [Verdict.NOT_RUN]
    assert "no CUDA driver" in found[0].message


@pytest.mark.parametrize("name", NAMES)
def test_every_finding_that_is_not_good_has_cause_and_cure(name: str) -> None:
    broken = facts(
        bandwidth=changed(gpufacts.bandwidth(), lambda made: made["gpus"][2].update(h2d_gb_s=8.0, link_generation=2)),
        peers=changed(gpufacts.peers(), lambda made: made["pairs"][3].update(wrong_words=7, gb_s=2.0, latency_us=15.0)),
        allreduce=changed(gpufacts.allreduce(), lambda made: made["groups"][0].update(bad_run([0, 1], {0: hung()}))),
    )
    found = next(one for one in FABRIC if one.name == name).run(broken, TOPOLOGY)
    assert all(one.cause and one.cure for one in found if one.verdict in (Verdict.WARN, Verdict.FAIL))


def test_a_gpu_whose_link_trained_down_fails_with_the_link_as_cause() -> None:
    made = changed(gpufacts.bandwidth(), lambda m: m["gpus"][3].update(h2d_gb_s=8.1, d2h_gb_s=8.2, link_generation=2))
    copies, link = only(judge("copies", bandwidth=made)), only(judge("link", bandwidth=made))
    assert (copies.verdict, copies.subject) == (Verdict.FAIL, "GPU 3")
    assert copies.message == "8.1 GB/s to it, 8.2 from it: 15% of the median"
    assert copies.cause == "its link ran at Gen2 x16 during the copies, not at Gen5 x16"
    assert (link.verdict, link.message) == (Verdict.FAIL, "Gen2 x16 under load, not Gen5 x16")


def test_an_outlier_fails_where_the_topology_has_no_limit() -> None:
    made = changed(gpufacts.bandwidth(), lambda m: m["gpus"][5].update(d2h_gb_s=41.0))
    assert only(judge("copies", ANY, bandwidth=made)).message == "55.2 GB/s to it, 41.0 from it: 74% of the median"


def test_copies_below_the_first_limit_warn_and_below_the_second_fail() -> None:
    def all_at(speed: float) -> dict[str, Any]:
        return changed(gpufacts.bandwidth(), lambda m: [one.update(h2d_gb_s=speed) for one in m["gpus"]])

    warned, failed = judge("copies", bandwidth=all_at(50.0)), judge("copies", bandwidth=all_at(40.0))
    assert ({one.verdict for one in warned}, {one.verdict for one in failed}) == ({Verdict.WARN}, {Verdict.FAIL})
    assert warned[0].message == "50.0 GB/s to it, 56.4 from it, at least 52 GB/s wanted"


def test_a_gpu_whose_copies_hang_fails_and_the_others_are_judged() -> None:
    row = {"gpu": 6, "name": gpufacts.NAME, "ended": hung()}
    found = judge("copies", bandwidth=changed(gpufacts.bandwidth(), lambda m: m["gpus"].__setitem__(6, row)))
    assert only(found).message == "copies do not end: no end after 120 s; last words: "


def test_a_link_that_nvml_does_not_tell_is_not_run() -> None:
    made = changed(gpufacts.bandwidth(), lambda m: m["gpus"][0].update(link_generation=None, link_width=None, looks=0))
    assert only(judge("link", bandwidth=made)).verdict is Verdict.NOT_RUN


def test_a_pair_that_damages_bytes_fails_with_its_share() -> None:
    made = changed(gpufacts.peers(), lambda m: m["pairs"][9].update(wrong_words=1 << 22))
    found = only(judge("peer-bytes", peers=made))
    assert (found.verdict, found.subject, found.message) == (
        Verdict.FAIL, "GPU 1 -> 3", "25.00% of the bytes arrive wrong",
    )  # fmt: skip
    assert found.cause.startswith("peer copies are damaged")
    assert "iommu=pt" in found.cure


def test_a_pair_that_hangs_fails() -> None:
    row = {"source": 0, "target": 1, "between": "system", "ended": hung()}
    found = only(judge("peer-bytes", peers=changed(gpufacts.peers(), lambda m: m["pairs"].__setitem__(0, row))))
    assert (found.subject, found.message) == ("GPU 0 -> 1", "the copy does not end: no end after 120 s; last words: ")


def test_bytes_that_are_wrong_only_when_all_copy_at_once_fail() -> None:
    made = changed(gpufacts.peers(), lambda m: m["concurrent"].update(wrong_words=12, wrong_pairs=["2 -> 6"]))
    assert only(judge("peer-bytes", peers=made)).message == "bytes arrive wrong when all pairs copy at once: 2 -> 6"


def test_no_peer_access_warns() -> None:
    made = changed(gpufacts.peers(), lambda m: [pair.update(access=False) for pair in m["pairs"]])
    found = only(judge("peer-bytes", peers=made))
    assert found.verdict is Verdict.WARN
    assert found.message == "no peer access for 56 pairs: GPU 0 -> 1, GPU 0 -> 2, GPU 0 -> 3, GPU 0 -> 4"


def test_pairs_within_and_across_sockets_have_their_own_limits() -> None:
    made = changed(gpufacts.peers(), lambda m: [p.update(gb_s=41.0) for p in m["pairs"] if p["between"] != "system"])
    found = only(judge("peer-speed", peers=made))
    assert found.verdict is Verdict.WARN
    assert found.message.startswith("24 pairs within a socket: 41.0 to 41.0 GB/s, at least 50 GB/s wanted; slow: GPU 0")


def test_a_switch_that_collapses_under_writes_of_all_warns() -> None:
    made = changed(gpufacts.peers(), lambda m: m["concurrent"].update(gb_s=51.7))
    found = only(judge("peer-speed", peers=made))
    assert (found.verdict, found.numbers) == (Verdict.WARN, {"concurrent_gb_s": 51.7})


def test_a_small_copy_that_goes_through_host_memory_fails() -> None:
    made = changed(gpufacts.peers(), lambda m: m["pairs"][0].update(latency_us=14.2))
    found = only(judge("peer-latency", peers=made))
    assert (found.verdict, found.subject) == (Verdict.FAIL, "GPU 0 -> 1")
    assert found.message == "0.45 to 14.20 us, at most 2 us wanted"


def test_memory_that_cannot_be_shared_fails_with_the_words_of_the_side_that_knows() -> None:
    sides = {
        "owner": peer(),
        "opener": ended("exit", "CudaError: cuIpcOpenMemHandle_v2: error 101: invalid device", 1),
    }
    made = changed(gpufacts.ipc(), lambda m: m["pairs"][2].update(wrong_words=None, ended=sides))
    found = only(judge("ipc", ipc=made))
    assert (found.subject, found.verdict) == ("GPU 2 -> 3", Verdict.FAIL)
    assert found.message == "opener: CudaError: cuIpcOpenMemHandle_v2: error 101: invalid device"


def test_memory_that_is_shared_wrongly_fails() -> None:
    made = changed(gpufacts.ipc(), lambda m: m["pairs"][0].update(wrong_words=5))
    assert only(judge("ipc", ipc=made)).message == "5 of 4194304 words arrive wrong between two processes"


def reduced(first: dict[str, Any], without_p2p: dict[str, Any] | None, **more: Any) -> dict[str, Any]:
    """Make an all-reduce whose first pair did not go well."""
    made = gpufacts.allreduce()
    made["groups"][0] = {"gpus": [0, 1], **first, "without_p2p": without_p2p}
    return {**made, **more}


HANG = bad_run([0, 1], {0: hung(), 1: hung()})
KILLED = bad_run([0, 1], {0: peer(), 1: ended("signal", "killed by SIGKILL; last words: ", -9)})


@pytest.mark.parametrize(
    ("made", "message", "cause", "cure"),
    [
        (
            reduced(HANG, run([0, 1])),
            "2 ranks: hangs at 32768 bytes, killed after 120 s",
            "peer access: the same group does it with NCCL_P2P_DISABLE=1",
            "boot with iommu=pt",
        ),
        (
            reduced(HANG, HANG),
            "2 ranks: hangs at 32768 bytes, killed after 120 s",
            "not peer access alone: it fails with NCCL_P2P_DISABLE=1 too",
            "see the findings on /dev/shm, NCCL and Xid; try",
        ),
        (
            reduced(HANG, None, environment={"NCCL_P2P_DISABLE": "1"}),
            "2 ranks: hangs at 32768 bytes, killed after 120 s",
            "not peer access, which NCCL_P2P_DISABLE=1 of the environment switches off",
            "see the findings on /dev/shm, NCCL and Xid",
        ),
        (
            reduced(bad_run([0, 1], {}, wrong=17), run([0, 1])),
            "2 ranks: wrong values on rank 1 (GPU 1)",
            "peer access: the same group does it with NCCL_P2P_DISABLE=1",
            "boot with iommu=pt",
        ),
        (
            reduced(KILLED, run([0, 1])),
            "2 ranks: rank 1 on GPU 1 at 32768 bytes: killed by SIGKILL; last words: ",
            "the process of one rank died and the others waited for it",
            "look for the out-of-memory killer",
        ),
        (
            reduced(bad_run([0, 1], {0: ended("exit", "ncclSystemError: shm", 1), 1: peer()}, "join"), HANG),
            "2 ranks: rank 0 on GPU 0 failed at join: ncclSystemError: shm",
            "not peer access alone",
            "see the findings on /dev/shm",
        ),
    ],
    ids=["hang-p2p", "hang-not-p2p", "hang-p2p-off", "wrong", "killed", "refused"],
)  # fmt: skip
def test_an_all_reduce_that_does_not_go_well_fails_with_its_cause(
    made: dict[str, Any], message: str, cause: str, cure: str
) -> None:
    found = only(judge("allreduce", allreduce=made))
    assert (found.verdict, found.subject, found.message) == (Verdict.FAIL, "GPUs 0,1", message)
    assert found.cause.startswith(cause)
    assert found.cure.startswith(cure)


def test_an_all_reduce_on_the_cpu_says_nothing_of_the_node() -> None:
    made = {**gpufacts.allreduce(), "backend": "gloo", "device": "cpu"}
    for name in ("allreduce", "allreduce-speed", "nccl-transport"):
        found = only(judge(name, allreduce=made))
        assert found.verdict is Verdict.NOT_RUN
        assert found.message == "all-reduce is not known: run with gloo on the cpu, a test of the probe"


def test_sizes_for_which_there_are_too_few_gpus_are_not_run() -> None:
    made = {**gpufacts.allreduce(), "gpus": 7, "not_run": [8]}
    found = only(judge("allreduce", allreduce=made))
    assert (found.verdict, found.message, found.required) == (Verdict.NOT_RUN, "8 ranks: there are 7 GPUs", True)
    assert only(judge("allreduce", ANY, allreduce=made)).required is False


def test_one_gpu_has_nothing_to_reduce() -> None:
    made = {**gpufacts.allreduce(), "gpus": 1, "groups": [], "not_run": [2, 4, 8]}
    assert overall(judge("allreduce", ANY, allreduce=made)) is Verdict.PASS


def test_a_slow_all_reduce_warns_with_its_channels() -> None:
    made = gpufacts.allreduce()
    for one in made["groups"][-1]["numbers"]:
        one["busbw_gb_s"] = min(one["busbw_gb_s"], 26.0)
    made["groups"][-1]["nccl"]["channels"] = 2
    found = only(judge("allreduce-speed", allreduce=made))
    assert found.verdict is Verdict.WARN
    assert found.message == "8 ranks: bus bandwidth 26.0 GB/s, at least 34 GB/s wanted; 2 channels"
    assert "NCCL_MIN_NCHANNELS=8" in found.cure


def test_a_slow_small_all_reduce_fails() -> None:
    made = gpufacts.allreduce()
    made["groups"][-1]["numbers"][0]["latency_us"] = 390.0
    assert only(judge("allreduce-speed", allreduce=made)).verdict is Verdict.FAIL


@pytest.mark.parametrize(
    ("environment", "cause"),
    [
        ({"NCCL_P2P_DISABLE": "1"}, "NCCL_P2P_DISABLE=1 is set in the environment"),
        ({}, "NCCL finds no peer access between some GPUs, or NCCL_P2P_LEVEL forbids it for this topology"),
    ],
)
def test_nccl_through_host_memory_warns_and_the_environment_is_told_from_the_node(
    environment: dict[str, str], cause: str
) -> None:
    made = {**gpufacts.allreduce(), "environment": environment}
    made["groups"][-1]["nccl"]["transports"] = {"SHM/direct": 16}
    found = only(judge("nccl-transport", allreduce=made))
    assert (found.verdict, found.message, found.cause) == (Verdict.WARN, "NCCL 2.30.7: SHM/direct 16", cause)


def heated(**values: Any) -> dict[str, Any]:
    """Make a load under which GPU 4 had these values."""
    made = gpufacts.heat()
    for sample in made["samples"]:
        if sample["gpu"] == 4 and sample["time_s"] >= 10:
            sample.update(values)
    return made


def test_low_power_at_full_utilisation_is_an_alarm() -> None:
    found = only(judge("heat-power", heat=heated(power_w=125.0)))
    assert (found.verdict, found.subject) == (Verdict.FAIL, "GPU 4")
    assert found.message == "125 W of 600 W at full utilisation"
    assert found.cause.startswith("the kernels that run do next to nothing")


def test_low_power_with_a_reason_for_low_clocks_names_it() -> None:
    found = only(judge("heat-power", heat=heated(power_w=150.0, throttle=["hw_power_brake_slowdown"])))
    assert found.cause.startswith("clocks are held down: hw_power_brake_slowdown")


@pytest.mark.parametrize(("celsius", "verdict"), [(83.0, "PASS"), (85.0, "WARN"), (90.0, "FAIL")])
def test_a_hot_gpu_is_judged_by_its_highest_temperature(celsius: float, verdict: str) -> None:
    made = heated(temperature_c=celsius)
    made["stopped"] = {"gpu": 4, "temperature_c": celsius} if verdict == "FAIL" else None
    found = judge("heat-temperature", heat=made)
    assert overall(found) == verdict
    if verdict == "FAIL":
        assert only(found).message == "90 C at most; the load was taken away"


@pytest.mark.parametrize(
    ("reason", "verdict"),
    [
        ("hw_power_brake_slowdown", "FAIL"),
        ("hw_thermal_slowdown", "FAIL"),
        ("sw_thermal_slowdown", "WARN"),
        ("applications_clocks_setting", "WARN"),
        ("sw_power_cap", "PASS"),
    ],
)
def test_what_holds_the_clocks_down_is_judged_by_its_reason(reason: str, verdict: str) -> None:
    found = judge("heat-clocks", heat=heated(throttle=[reason]))
    assert overall(found) == verdict
    if verdict != "PASS":
        assert only(found).message == f"{reason} in 100% of 15 samples"


def test_a_gpu_that_computes_less_than_the_others_fails() -> None:
    made = gpufacts.heat()
    made["gpus"][1]["tflops"] = [310.0] * 20
    found = only(judge("heat-speed", heat=made))
    assert (found.verdict, found.message) == (Verdict.FAIL, "310 TFLOP/s BF16: 82% of the median")


def test_a_gpu_that_slows_down_as_it_grows_warm_warns() -> None:
    made = gpufacts.heat()
    made["gpus"][1]["tflops"] = [400.0] * 10 + [330.0] * 10
    found = only(judge("heat-speed", heat=made))
    assert found.verdict is Verdict.WARN
    assert found.message == "365 TFLOP/s BF16, at the end 82% of the beginning"


def test_a_gpu_that_falls_out_under_load_fails() -> None:
    made = gpufacts.heat()
    made["gpus"][7].update(tflops=[], wrong=None, ended=ended("exit", "CUDA error: unspecified launch failure", 1))
    found = only(judge("heat", heat=made))
    assert found.message == "does not live through the load: CUDA error: unspecified launch failure"
    assert judge("heat-speed", heat=made)[0].verdict is Verdict.NOT_RUN


def test_results_that_change_under_load_fail() -> None:
    made = gpufacts.heat()
    made["gpus"][0]["wrong"] = 3
    assert only(judge("heat", heat=made)).message == "3 numbers differ between runs of the same product"


def test_without_nvml_the_load_is_judged_by_its_speed_only() -> None:
    made = {**gpufacts.heat(), "samples": [], "faults": [{"source": "nvml", "error": "no Python bindings"}]}
    assert {one.verdict for one in judge("heat-temperature", heat=made)} == {Verdict.NOT_RUN}
    assert {one.verdict for one in judge("heat-power", heat=made)} == {Verdict.NOT_RUN}
    assert {one.verdict for one in judge("heat-speed", heat=made)} == {Verdict.PASS}


def test_a_torch_that_sees_no_gpu_is_not_run() -> None:
    cpu = {**DONE, "not_run": "torch 2.13.0+cpu sees no GPU: Torch not compiled with CUDA enabled"}
    made = changed(gpufacts.bandwidth(), lambda m: m["gpus"].__setitem__(0, {"gpu": 0, "name": "x", "ended": cpu}))
    found = judge("copies", bandwidth=made)
    assert [one.verdict for one in found] == [Verdict.NOT_RUN]
