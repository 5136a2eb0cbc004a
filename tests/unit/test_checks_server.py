"""Checks of phase `server` over made-up facts: verdict, cause and cure of each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kiln import checks, topologies
from kiln.facts import Facts
from kiln.facts.server import ServerFacts
from kiln.settings import ROOT
from kiln.verdict import Finding, Verdict
from tests import madenodes
from tests.unit.test_server import START

pytestmark = pytest.mark.unit

ANY = topologies.load_all(ROOT)["any"]
CHECKS = {check.name: check for check in checks.load_all() if check.phase == "server"}
ROUND: dict[str, Any] = {
    "requests": 64, "error": None, "completed": 64, "seconds": 2.0, "input_tokens": 9000, "output_tokens": 3000,
    "tok_s": 1500.0, "stalled": 0, "not_finite": 0, "errors": [], "first_token_median_s": 0.2,
    "first_token_worst_s": 0.9, "longest_gap_s": 0.9,
}  # fmt: skip
SAMPLE: dict[str, Any] = {
    "time_s": 1.0, "gpu": 0, "power_w": 300.0, "temperature_c": 60.0, "utilization_percent": 99.0,
    "sm_clock_mhz": 2000.0, "memory_used_mib": 90000.0, "throttle": [],
}  # fmt: skip
ANSWER: dict[str, Any] = {
    "prompt": "The capital of France is", "prompt_length": 24, "wanted": "Paris", "got": " Paris. It lies",
    "found": True, "tokens": 64, "repetition": 0.1, "strange": 0.0, "not_finite": 0, "error": None,
}  # fmt: skip
LOAD: dict[str, Any] = {
    "resolved": {"attention_backend": "flashinfer", "mem_fraction_static": "0.5", "disable_radix_cache": "True"},
    "same": {"tokens": 64, "agree": 64, "error": ""}, "rounds": [ROUND] * 4, "answers": None, "compiled": [],
    "samples": [SAMPLE],
}  # fmt: skip
WANTED = {
    "attention-backend": "flashinfer",
    "mem-fraction-static": "0.50",
    "disable-radix-cache": "yes",
    "tp-size": "1",
}
XID = {
    "rule": "xid", "blames": "host", "means": "the GPU reported a fault", "cure": "reset it", "count": 1,
    "line": "NVRM: Xid (PCI:0000:41:00): 79",
}  # fmt: skip
SLOW = {**XID, "rule": "no-moe-config", "blames": "speed", "means": "slow", "cure": "tune"}
NCCL = {"process": "scheduler_TP0", "libraries": ["/a/libnccl.so.2"]}


def judge(name: str, *, start: dict[str, Any] | None = None, load: dict[str, Any] | str | None = "good",
          topology: topologies.Topology = ANY, **facts: Any) -> list[Finding]:  # fmt: skip
    loaded = {**LOAD, **load} if isinstance(load, dict) else LOAD if load else None
    value = {
        "preset": "tiny", "wanted": WANTED, "weights": True, "start": {**START, **(start or {})}, "load": loaded,
        "reach": {"nvml": 8, "cuda": 8},
    }  # fmt: skip
    server = ServerFacts.model_validate({**value, **facts})
    return [*CHECKS[f"server/{name}"].run(Facts(server=server), topology)]


def verdicts(found: list[Finding]) -> list[str]:
    return [str(one.verdict) for one in found]


@pytest.mark.parametrize("name", sorted(CHECKS))
def test_without_a_server_every_check_is_not_run(name: str) -> None:
    found = CHECKS[name].run(Facts(), ANY)
    assert [(one.verdict, one.message) for one in found] == [(Verdict.NOT_RUN, "the server is not known")]


@pytest.mark.parametrize("name", ["answers", "power", "requests", "same-prompt", "settings", "throughput"])
def test_without_a_load_its_checks_are_not_run(name: str) -> None:
    assert verdicts(judge(name, load=None)) == ["NOT_RUN"]


@pytest.mark.parametrize("name", sorted(name for name in CHECKS if name not in ("server/answers", "server/power")))
def test_a_good_run_passes(name: str) -> None:
    assert verdicts(judge(name.removeprefix("server/"))) == ["PASS"]


def dead(state: str = "DEAD", why: str = "died: scheduler_TP0:10", **more: Any) -> dict[str, Any]:
    return {"state": state, "timeline": [{"time_s": 61.0, "state": state, "why": why}], **more}


@pytest.mark.parametrize(
    ("start", "facts", "message", "cause", "cure"),
    [
        (dead(), {"log": [SLOW, XID]}, "DEAD after 61 s: died: scheduler_TP0:10",
         "the GPU reported a fault: NVRM: Xid (PCI:0000:41:00): 79", "reset it"),
        (dead(), {"log_tail": ["Killed"]}, "DEAD after 61 s: died: scheduler_TP0:10",
         "no rule knows a line of its log; the last one: Killed", "read the server's log in the receipt"),
        (dead("STUCK", "health: 503 after 20 s"), {}, "STUCK after 61 s: health: 503 after 20 s",
         "no rule knows a line of its log; the last one: its log is empty", "read the stacks"),
        (dead("WARMING", "compiling cicc:fused_moe_120", timed_out=True,
              compiled=[{"program": "cicc", "module": "fused_moe_120", "count": 85}]), {},
         "not ready after 61 s: compiling cicc:fused_moe_120", "it compiled fused_moe_120 on this node",
         "add the modules to the kernel set"),
        (dead("STARTING", "9 processes", timed_out=True), {}, "not ready after 61 s: 9 processes",
         "no rule knows", "give it more time"),
    ],
)  # fmt: skip
def test_a_server_that_did_not_come_up_fails_with_what_explains_it(
    start: dict[str, Any], facts: dict[str, Any], message: str, cause: str, cure: str
) -> None:
    (found,) = judge("ready", start=start, load=None, **facts)
    assert (str(found.verdict), found.message) == ("FAIL", message)
    assert found.cause.startswith(cause)
    assert found.cure.startswith(cure)


def test_a_ready_server_is_ready_whatever_its_log_says() -> None:
    (found,) = judge("ready", log=[XID], startup_s={"launch": 50.0, "sglang.load_weight": 0.1})
    assert str(found.verdict) == "PASS"
    assert found.numbers == {"ready_s": 61.0, "launch_s": 50.0, "sglang_load_weight_s": 0.1}


def test_compilers_at_the_start_and_under_load_are_counted_by_module() -> None:
    at_start = {"compiled": [{"program": "cicc", "module": "norm", "count": 3}]}
    under_load = {"compiled": [{"program": "nvcc", "module": "norm", "count": 1},
                               {"program": "ptxas", "module": "triton", "count": 7}]}  # fmt: skip
    found = judge("prewarm", start=at_start, load=under_load)
    assert [(str(one.verdict), one.subject, one.message) for one in found] == [
        ("WARN", "norm", "PREWARM_MISS: cicc, nvcc ran 4 times"),
        ("WARN", "triton", "PREWARM_MISS: ptxas ran 7 times"),
    ]


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        ([NCCL, {**NCCL, "process": "scheduler_TP1"}], ["PASS"]),
        ([{**NCCL, "libraries": ["/a/libnccl.so.2", "/b/libnccl.so.2"]}, NCCL], ["FAIL"]),
        ([{**NCCL, "libraries": []}], ["FAIL"]),
        ([{**NCCL, "libraries": None}], ["NOT_RUN"]),
        ([], ["NOT_RUN"]),
    ],
)
def test_every_rank_has_one_nccl(ranks: list[dict[str, Any]], expected: list[str]) -> None:
    assert verdicts(judge("nccl", start={"nccl": ranks})) == expected


@pytest.mark.parametrize(
    ("resolved", "expected"),
    [
        ({"attention_backend": "triton"}, ["attention-backend is triton, the preset says flashinfer"]),
        ({"mem_fraction_static": "0.4", "disable_radix_cache": "False"},
         ["disable-radix-cache is False, the preset says yes", "mem-fraction-static is 0.4, the preset says 0.50"]),
    ],
)  # fmt: skip
def test_a_setting_that_is_not_the_preset_s_fails(resolved: dict[str, str], expected: list[str]) -> None:
    found = judge("settings", load={"resolved": resolved})
    assert [one.message for one in found] == expected
    assert set(verdicts(found)) == {"FAIL"}


@pytest.mark.parametrize("load", [{"resolved": {"version": "0.5.23"}}, {"resolved": None}])
def test_settings_that_the_server_does_not_tell_are_not_run(load: dict[str, Any]) -> None:
    assert verdicts(judge("settings", load=load)) == ["NOT_RUN"]


@pytest.mark.parametrize(
    ("last", "verdict", "message"),
    [
        (
            {"stalled": 2, "completed": 62, "errors": ["no token for 120 s"]},
            "FAIL",
            "2 requests had no token for 120 s",
        ),
        ({"longest_gap_s": 130.0}, "FAIL", "0 requests had no token for 120 s"),
        ({"not_finite": 9}, "FAIL", "9 log probabilities are not finite"),
        ({"completed": 60, "errors": ["status 500: x"]}, "FAIL", "4 of 64 requests failed: status 500: x"),
        (
            {"error": "the deadline had passed", "completed": None},
            "NOT_RUN",
            "192 requests were answered, 200 are needed",
        ),
    ],
)
def test_a_round_that_went_wrong_is_told(last: dict[str, Any], verdict: str, message: str) -> None:
    found = judge("requests", load={"rounds": [ROUND] * 3 + [{**ROUND, **last}]})
    assert [(str(one.verdict), one.message) for one in found] == [(verdict, message)]


@pytest.mark.parametrize(
    ("agree", "weights", "error", "verdict"),
    [
        (64, True, "", "PASS"),
        (3, False, "", "PASS"),
        (30, True, "", "WARN"),
        (0, True, "", "FAIL"),
        (0, True, "x", "FAIL"),
    ],
)
def test_one_prompt_twice(agree: int, weights: bool, error: str, verdict: str) -> None:
    same = {"tokens": 64, "agree": agree, "error": error}
    assert verdicts(judge("same-prompt", load={"same": same}, weights=weights)) == [verdict]


@pytest.mark.parametrize(
    ("change", "verdict", "message"),
    [
        ({}, "PASS", "3 known answers"),
        ({"repetition": 1.0, "got": "!!!!", "found": False}, "FAIL", "one token makes 100% of the answer: '!!!!'"),
        ({"strange": 0.4, "got": "\ufffd", "found": False}, "FAIL", "40% of the characters are none: '�'"),
        ({"not_finite": 3}, "FAIL", "3 log probabilities are not finite: ' Paris. It lies'"),
        ({"error": "no token for 120 s"}, "FAIL", "no token for 120 s: ' Paris. It lies'"),
        ({"found": False, "got": "Lyon"}, "WARN", "'Paris' is not in 'Lyon'"),
    ],
)
def test_known_answers(change: dict[str, Any], verdict: str, message: str) -> None:
    found = judge("answers", load={"answers": [ANSWER, ANSWER, {**ANSWER, **change}]})
    assert [(str(one.verdict), one.message) for one in found] == [(verdict, message)]


def test_wrong_content_in_most_answers_fails() -> None:
    wrong = {**ANSWER, "found": False, "got": "Lyon"}
    assert verdicts(judge("answers", load={"answers": [ANSWER, wrong, wrong]})) == ["WARN", "WARN", "FAIL"]


def test_made_up_weights_have_no_answers_and_no_power() -> None:
    for name in ("answers", "power"):
        (found,) = judge(name, weights=False)
        assert (found.verdict, found.required) == (Verdict.NOT_RUN, False)


def limited(floor: float) -> topologies.Topology:
    return ANY.model_copy(update={"server": ANY.server.model_copy(update={"floors": {"tiny": floor}})})


@pytest.mark.parametrize(("floor", "verdict"), [(1500.0, "PASS"), (1501.0, "FAIL")])
def test_the_throughput_is_held_against_the_floor_of_the_preset(floor: float, verdict: str) -> None:
    (found,) = judge("throughput", topology=limited(floor))
    assert (str(found.verdict), found.numbers["tok_s"], found.numbers["power_w"]) == (verdict, 1500.0, 300.0)


def test_without_a_floor_the_numbers_are_told() -> None:
    (found,) = judge("throughput")
    assert found.message == "1500 tokens/s; no limit for preset tiny in this topology"
    assert verdicts(judge("throughput", load={"rounds": []})) == ["NOT_RUN"]


LOST = {"source": "nvml", "error": "Unknown Error"}


@pytest.mark.parametrize(
    ("nvml", "cuda", "fault", "found"),
    [
        (None, 8, LOST, ["nvidia-smi (NVML) starts no more: Unknown Error"]),
        (3, 8, {**LOST, "error": "GPU 3: Unknown"}, ["nvidia-smi (NVML) reaches 3 GPUs: GPU 3: Unknown"]),
        (8, None, {"source": "CUDA driver", "error": "cuInit: 999"}, ["CUDA starts no more: cuInit: 999"]),
        (7, 7, None, ["nvidia-smi (NVML) reaches 7 GPUs: the node has 8", "CUDA reaches 7 GPUs: the node has 8"]),
    ],
)
def test_a_container_that_lost_gpus_while_it_ran_fails(
    nvml: int | None, cuda: int | None, fault: dict[str, str] | None, found: list[str]
) -> None:
    reach = {"nvml": nvml, "cuda": cuda, "faults": [fault] if fault else []}
    value = {"preset": "tiny", "wanted": {}, "weights": True, "start": START, "reach": reach}
    server = ServerFacts.model_validate(value)
    told = CHECKS["server/reach"].run(Facts(server=server, node=madenodes.rtx8()), ANY)
    assert [one.message for one in told] == [f"after the load {words}" for words in found]
    assert all(one.verdict is Verdict.FAIL and "daemon-reload" in one.cause and "CDI" in one.cure for one in told)


def test_what_was_not_asked_is_not_run() -> None:
    assert verdicts(judge("reach", reach=None)) == ["NOT_RUN"]


def test_every_server_check_has_a_cause_and_a_cure_where_it_blames(tmp_path: Path) -> None:
    bad = [*judge("ready", start=dead(), load=None), *judge("requests", load={"rounds": [{**ROUND, "not_finite": 1}]})]
    assert all(one.cause and one.cure for one in bad)
