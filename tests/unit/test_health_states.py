"""kiln-health's state machine over histories of looks: exact states, and the reason that decided."""

from __future__ import annotations

from typing import Any

import pytest

from kiln.probe import health
from kiln.probe.health import DEAD, FOREIGN, OK, OURS, READY, SLOW, STARTING, STUCK, WARMING, Limits, Look, Memory

pytestmark = pytest.mark.unit

LIMITS = Limits(grace_s=10.0, stall_s=120.0, busy_s=600.0)
ALL = ["detokenizer:12", "scheduler_TP0:10", "scheduler_TP1:11"]
MARKS = {"cpu": 0, "written": 0, "rss_kib": 0, "processes": 0, "compilers": 0}


def look(at_s: float, **facts: Any) -> Look:
    """A look at a server of two ranks that has no port yet; it takes a second."""
    marks = {**MARKS, **facts.pop("marks", {})}
    return Look(began_s=at_s, ended_s=at_s + 1, **{"server": "9/77", "alive": ALL, "marks": marks, **facts})


def loading(at_s: float, **marks: int) -> Look:
    return look(at_s, alive=[], missing=["0 of 2 schedulers", "0 of 1 detokenizers"], marks=marks)


def serving(at_s: float, **facts: Any) -> Look:
    return look(at_s, **{"port": OURS, "health": 200, "health_s": 1.0, "generation": OK, "generation_s": 0.2, **facts})


def mute(at_s: float, **facts: Any) -> Look:
    """A look that waited 20 s for a 503; it ends when they are over."""
    found = serving(at_s, **{"health": 503, "health_s": 20.0, "generation": "", **facts})
    return found._replace(ended_s=at_s + 20)


def refusing(at_s: float, **facts: Any) -> Look:
    return serving(at_s, health=503, health_s=0.01, generation="", **facts)


def nothing(at_s: float, **facts: Any) -> Look:
    return look(at_s, server="", alive=[], marks={}, **facts)


def states(looks: list[Look], limits: Limits = LIMITS) -> tuple[list[str], str]:
    """Return the state after each look, and the last reason."""
    memory, found, reason = Memory(), [], ""
    for one in looks:
        memory, (state, reason) = health.step(memory, one, limits)
        found.append(state)
    return found, reason


def compiling(at_s: float, number: int) -> Look:
    return mute(at_s, compilers=["cicc:fused_moe_120"], marks={"compilers": number})


SCENARIOS: dict[str, tuple[list[Look], list[str], str]] = {
    "a boot with everything as it should be": (
        [nothing(0), loading(2, cpu=300), look(40, marks={"cpu": 900, "rss_kib": 10**6}),
         refusing(60, marks={"cpu": 950}), serving(70)],
        [STARTING, STARTING, STARTING, WARMING, READY], "health 200 in 1.0 s, 8 tokens in 0.2 s"),
    "a cold import that prints nothing for minutes": (
        [loading(60 * n, cpu=5000 * n, rss_kib=4000 * n) for n in range(12)], [STARTING] * 12,
        "0 processes below the launcher have their names"),
    "the port is open, the generation is good, but a rank died unseen": (
        [serving(0, alive=ALL[:2], missing=["1 of 2 schedulers"])], [DEAD],
        "the port is open with 1 of 2 schedulers alive"),
    "SGLang 0.5.9 after kill -9: the port is open, the parent lives, the scheduler is a zombie": (
        [mute(0, alive=ALL[:2], zombies=["schedul:11"], missing=["1 of 2 schedulers"])], [DEAD], "died: schedul:11"),
    "a rank that was seen is gone": (
        [serving(0), serving(30, alive=ALL[:2])], [READY, DEAD], "died: scheduler_TP1:11"),
    "a rank that was seen while it loaded is gone, and its title too": (
        [look(0), look(5, alive=ALL[1:], missing=["0 of 1 detokenizers"])], [STARTING, DEAD], "died: detokenizer:12"),
    "another scheduler in the place of one that died is no repair": (
        [serving(0), serving(30, alive=[*ALL[:2], "scheduler_TP1:99"])], [READY, DEAD], "died: scheduler_TP1:11"),
    "the launcher was killed and its schedulers keep the GPUs": (
        [serving(0), nothing(30, orphans=["scheduler_TP0:10"])], [READY, DEAD],
        "the server, process 9, is gone; left behind: scheduler_TP0:10"),
    "the launcher is gone, and somebody else has its port": (
        [serving(0), nothing(30, port=FOREIGN)], [READY, DEAD],
        "the server, process 9, is gone; another process answers on the port"),
    "it ended before the first look at it": (
        [nothing(0), nothing(5), nothing(11)], [STARTING, STARTING, DEAD], "there is no server process"),
    "a config that cannot be loaded": (
        [loading(0, cpu=100), loading(2, cpu=200), nothing(4)], [STARTING, STARTING, DEAD],
        "the server, process 9, is gone"),
    "a scheduler stopped while it serves, and continued": (
        [serving(0), mute(30), mute(60), serving(90)], [READY, WARMING, STUCK, READY],
        "health 200 in 1.0 s, 8 tokens in 0.2 s"),
    "a scheduler that is seen to be stopped": (
        [serving(0), mute(30, stopped=["scheduler_TP0:10"]), mute(60, stopped=["scheduler_TP0:10"])],
        [READY, WARMING, STUCK], "stopped by a signal: scheduler_TP0:10, 2 looks in 30 s, all processes alive"),
    "a scheduler stopped before there is a port": (
        [look(0), look(2, stopped=["scheduler_TP0:10"]), look(4, stopped=["scheduler_TP0:10"]),
         look(9, stopped=["scheduler_TP0:10"])],
        [STARTING, WARMING, WARMING, STUCK],
        "stopped by a signal: scheduler_TP0:10, 3 looks in 7 s, all processes alive"),
    "a detokenizer that is stopped, and that this server's requests do not pass": (
        [serving(0), *(serving(30 * n, stopped=["detokenizer:12"]) for n in (1, 2))], [READY, WARMING, STUCK],
        "stopped by a signal: detokenizer:12, 2 looks in 30 s, all processes alive"),
    "one look without an answer is not enough": (
        [serving(0), mute(30)], [READY, WARMING], "health: 503 after 20 s; another look decides"),
    "nor are two at the same time": (
        [serving(0), mute(30), mute(31)], [READY, WARMING, WARMING], "health: 503 after 20 s; another look decides"),
    "no answer at all, as the launcher itself is stopped": (
        [serving(0), mute(30, health=0), mute(60, health=0)], [READY, WARMING, STUCK],
        "health: no answer in time after 20 s, 2 looks in 30 s, all processes alive"),
    "compilers at work excuse a server that does not answer": (
        [serving(0), *(compiling(30 * n, n) for n in range(1, 9))], [READY, *[WARMING] * 8],
        "health: 503 after 20 s; compiling cicc:fused_moe_120"),
    "compilers at work before there is a port": (
        [loading(0), look(30, compilers=["nvcc:norm", "ptxas:triton"], marks={"compilers": 5})], [STARTING, WARMING],
        "compiling nvcc:norm, ptxas:triton"),
    "a long prefill: schedulers log, tokens do not come": (
        [serving(0), *(mute(30 * n, marks={"written": 400 * n, "cpu": 2000 * n}) for n in range(1, 9))],
        [READY, *[WARMING] * 8], "health: 503 after 20 s; but its processes work"),
    "a collective that hangs: ranks spin, and nothing is logged": (
        [serving(0), *(mute(30 * n, marks={"written": 16 * n, "cpu": 4000 * n}) for n in range(1, 4))],
        [READY, WARMING, STUCK, STUCK], "health: 503 after 20 s, 3 looks in 60 s, all processes alive"),
    "work is an excuse for a while only": (
        [serving(0), *(mute(60 * n, marks={"written": 400 * n}) for n in range(1, 13))],
        [READY, *[WARMING] * 10, STUCK, STUCK], "health: 503 after 20 s, 12 looks in 660 s, all processes alive"),
    "a full server: tokens move, our own request waits": (
        [serving(0), serving(60, generation=SLOW, marks={"cpu": 3000})], [READY, READY],
        "full: tokens move, our own request waits its turn"),
    "health 200 for ever, and nobody's tokens come": (
        [serving(0), serving(60, generation=SLOW), serving(90, generation=SLOW)], [READY, WARMING, STUCK],
        "our generation: no answer in time, 2 looks in 30 s, all processes alive"),
    "health 200 and no generation since the start": (
        [look(0), serving(30, generation=SLOW), serving(60, generation=SLOW)], [STARTING, WARMING, STUCK],
        "our generation: no answer in time, 2 looks in 30 s, all processes alive"),
    "generations without numbers, however busy it is": (
        [look(0), *(serving(30 * n, generation="8 of 8 logprobs are not finite", marks={"written": 900 * n})
                    for n in (1, 2))],
        [STARTING, WARMING, STUCK],
        "our generation: 8 of 8 logprobs are not finite, 2 looks in 30 s, all processes alive"),
    "the warm-up request takes minutes": (
        [look(0), *(refusing(30 * n, marks={"cpu": 900 * n, "written": 200 * n}) for n in range(1, 30))],
        [STARTING, *[WARMING] * 29], "the port is open, the warm-up request runs"),
    "the warm-up request hangs in a collective": (
        [look(0), *(refusing(60 * n, marks={"cpu": 6000 * n}) for n in range(1, 12))],
        [STARTING, *[WARMING] * 9, STUCK, STUCK], "only CPU time moved for 660 s, all processes alive"),
    "loading stands still": (
        [loading(0, rss_kib=0), loading(60, rss_kib=10**7), *(loading(60 + 30 * n, rss_kib=10**7) for n in (1, 2, 4))],
        [STARTING, STARTING, STARTING, STARTING, STUCK], "nothing moved for 120 s, all processes alive"),
    "--skip-server-warmup: the port is open, the first generation is ours": (
        [look(0), mute(30, marks={"rss_kib": 10**6}), mute(60, marks={"rss_kib": 2 * 10**6}), serving(90)],
        [STARTING, WARMING, WARMING, READY], "health 200 in 1.0 s, 8 tokens in 0.2 s"),
    "SIGTERM: it refuses, then closes the port, then it is gone": (
        [serving(0), refusing(2), look(4), nothing(6)], [READY, WARMING, STUCK, DEAD],
        "the server, process 9, is gone"),
    "the port belongs to another process, which answers": (
        [look(0), look(30, port=FOREIGN, marks={"cpu": 900}), nothing(60, port=FOREIGN)], [STARTING, STARTING, DEAD],
        "the server, process 9, is gone; another process answers on the port"),
    "a new server in the place of one that died starts anew": (
        [serving(0), nothing(5), loading(10)._replace(server="30/99"), serving(50)._replace(server="30/99")],
        [READY, DEAD, STARTING, READY], "health 200 in 1.0 s, 8 tokens in 0.2 s"),
    "a log that grows is progress": (
        [loading(100 * n)._replace(marks={**MARKS, "log": n}) for n in range(5)], [STARTING] * 5,
        "0 processes below the launcher have their names"),
    "memory of the GPUs that fills is progress": (
        [loading(100 * n)._replace(marks={**MARKS, "vram_mib": 900 * n}) for n in range(5)], [STARTING] * 5,
        "0 processes below the launcher have their names"),
}  # fmt: skip


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_history_has_these_states(name: str) -> None:
    looks, expected, reason = SCENARIOS[name]
    assert states(looks) == (expected, reason)


def test_there_are_enough_histories() -> None:
    assert len(SCENARIOS) >= 20


def test_a_call_without_patience_says_dead_where_nothing_was_started() -> None:
    assert states([nothing(0)], Limits()) == ([DEAD], "there is no server process")


def answer(count: int, logprobs: list[object]) -> bytes:
    rows = ", ".join(f"[{one}, 7, null]" for one in logprobs)
    return f'{{"meta_info": {{"completion_tokens": {count}, "output_token_logprobs": [{rows}]}}}}'.encode()


@pytest.mark.parametrize(
    ("status", "text", "expected"),
    [
        (200, answer(8, [-1.5] * 8), ""),
        (200, answer(8, [-1.5] * 7 + ["null"]), "1 of 8 logprobs are not finite"),
        (200, answer(8, ["NaN"] * 8), "8 of 8 logprobs are not finite"),
        (200, answer(8, ["-Infinity"] * 8), "8 of 8 logprobs are not finite"),
        (200, answer(1, [-1.5]), "1 tokens and 1 logprobs instead of 8"),
        (200, answer(8, [-1.5]), "8 tokens and 1 logprobs instead of 8"),
        (200, b"<html>", "not an answer of SGLang (JSONDecodeError)"),
        (200, b'{"text": "hello"}', "not an answer of SGLang (KeyError)"),
        (200, b"[]", "not an answer of SGLang (TypeError)"),
        (400, b'{"error": "no logprobs here"}', 'status 400: {"error": "no logprobs here"}'),
    ],
)
def test_an_answer_must_have_the_tokens_and_finite_numbers(status: int, text: bytes, expected: str) -> None:
    assert health.fault_of(status, text) == expected


@pytest.mark.parametrize(
    ("words", "told", "expected"),
    [
        ("", {}, (1, 1)),
        ("--tp 8", {}, (8, 1)),
        ("--tp-size=4 --pp-size 2", {}, (8, 1)),
        ("--tensor-parallel-size 2 --dp-size 4", {}, (8, 1)),
        ("--tp 8 --dp 8 --enable-dp-attention", {}, (8, 1)),
        ("--tp 16 --nnodes 2 --node-rank 0", {}, (8, 1)),
        ("--tp 16 --nnodes 2 --node-rank 1", {}, (8, 0)),
        ("--detokenizer-worker-num 3", {}, (1, 3)),
        ("--config /x.yaml", {"tp": 8}, (8, 1)),
    ],
)
def test_the_launcher_s_words_say_what_must_be_alive(
    words: str, told: dict[str, int], expected: tuple[int, int]
) -> None:
    found = health.expected(["python", "-m", "sglang.launch_server", *words.split()], told)
    assert (found["scheduler"], found["detokenizer"]) == expected


@pytest.mark.parametrize(
    ("words", "role"),
    [
        ("python -m sglang.launch_server --port 1", "server"),
        ("/opt/kiln/bin/python3.11 -u -m sglang.launch_server", "server"),
        ("/opt/kiln/bin/python /opt/kiln/bin/sglang serve --model-path /m", "server"),
        ("/usr/bin/tini -g -- kiln-serve --model-path /m", ""),
        ("bash -c python -m sglang.launch_server", ""),
        ("timeout 540 python -m sglang.launch_server", ""),
        ("grep -r sglang.launch_server /x", ""),
        ("sglang::scheduler_TP0", "scheduler_TP0"),
        ("sglang::scheduler_DP1_TP3_EP3  ", "scheduler_DP1_TP3_EP3"),
        ("sglang::schedul", "schedul"),
        ("python -c from multiprocessing.spawn import spawn_main", ""),
    ],
)
def test_a_process_is_known_by_its_words(words: str, role: str) -> None:
    argv = [words] if words.startswith("sglang::") else words.split()
    assert health.Process(1, 0, "S", 0, 0, 0, argv).role == role


@pytest.mark.parametrize(
    ("words", "module"),
    [
        ("ninja -v -C /cache/flashinfer/0.7.2/120f/cached_ops/fused_moe_120 -f build.ninja", "fused_moe_120"),
        ("nvcc -c /cache/flashinfer/0.7.2/120f/generated/batch_decode_q_bf16/x.cu -o x.cuda.o", "batch_decode_q_bf16"),
        ("cicc --c++17 -o /tmp/tmpxft_1 /cache/tvm-ffi/sgl_norm_1a2b/cuda.cu", "sgl_norm_1a2b"),
        ("cc1plus /cache/torch_extensions/py311_cu130/qserve/main.cpp", "qserve"),
        ("ptxas -v --gpu-name=sm_120a /tmp/tmpl8q1.ptx -o /tmp/tmpl8q1.ptx.o", "triton"),
        ("nvcc -c topk.cu", "topk"),
        ("nvcc --version", "?"),
    ],
)
def test_a_compiler_tells_what_it_makes(words: str, module: str) -> None:
    assert health.module_of(words.split()) == module
