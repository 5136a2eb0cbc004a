"""The probes `serve` and `load` on a server of real processes: timeline, stacks, streams, stalls, answers."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kiln.facts.server import LoadFacts, StartFacts
from kiln.probe import answers, compiling, health, load, serve, stream
from kiln.probe.health import DEAD, READY, STARTING, STUCK, WARMING, Process
from tests.unit.test_health import TIMEOUT_S, Server

pytestmark = pytest.mark.unit

Start = Callable[..., Server]


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "TIMEOUT_S", TIMEOUT_S)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    servers: list[Server] = []

    def one(*words: str, control: str = "") -> Server:
        servers.append(Server(tmp_path, *words, control=control))
        return servers[-1]

    yield one
    for server in servers:
        server.end()


def served(server: Server, *words: str) -> StartFacts:
    faults: list[dict[str, str]] = []
    found = serve.facts(["--port", str(server.port), *words], faults)
    return StartFacts.model_validate_json(json.dumps({**found, "faults": faults}))


def loaded(server: Server, *words: str) -> LoadFacts:
    faults: list[dict[str, str]] = []
    found = load.facts(["--port", str(server.port), *words], faults)
    return LoadFacts.model_validate_json(json.dumps({**found, "faults": faults}))


def argv(server: Server) -> list[str]:
    return ["python", "-m", "sglang.launch_server", "--port", str(server.port)]


def test_a_boot_is_followed_to_ready_with_its_compilers(start: Start) -> None:
    server = start("--tp", "2", control="closed starting compiling")
    threading.Timer(2.0, server.say, ["starting"]).start()
    threading.Timer(4.0, server.say, [""]).start()
    found = served(server, "--deadline", "200")
    states = [one.state for one in found.timeline]
    assert (states[-1], found.state, found.timed_out) == (READY, READY, False)
    assert set(states[:-1]) <= {STARTING, WARMING}
    assert [(one.program, one.module, one.count) for one in found.compiled] == [("cicc", "norm", 1)]
    assert found.expected == {"scheduler": 2, "detokenizer": 1}
    assert [(one.process, one.libraries) for one in found.nccl] == [("scheduler_TP0", ()), ("scheduler_TP1", ())]


def test_a_stuck_server_s_stacks_are_asked_for(start: Start) -> None:
    server = start(control="short")
    server.until(WARMING)
    found = served(server, "--deadline", "60")
    assert (found.state, found.why.partition(",")[0]) == (STUCK, "our generation: 7 tokens and 7 logprobs instead of 8")
    assert [one.process.partition(":")[0] for one in found.stacks] == ["server", "scheduler", "detokenizer"]
    told = {fault.source for fault in found.faults}
    assert all(one.text is not None or f"stack {one.process.partition(':')[0]}" in told for one in found.stacks)


def test_a_deadline_is_not_a_state(start: Start) -> None:
    found = served(start(control="closed"), "--deadline", "2")
    assert (found.state, found.timed_out) == (STARTING, True)


def test_a_server_that_is_not_there_is_dead(tmp_path: Path) -> None:
    found = serve.facts(["--port", "1", "--grace", "0", "--deadline", "5"], [])
    assert (found["state"], found["expected"], found["nccl"]) == (DEAD, None, [])


def test_a_load_counts_tokens_and_tells_the_settings_but_no_secret(start: Start) -> None:
    server = start()
    server.until(READY)
    found = loaded(server, "--rounds", "2", "--requests", "8", "--stall", "60")
    assert [(one.requests, one.completed, one.stalled, one.errors) for one in found.rounds] == [(8, 8, 0, ())] * 2
    assert all(one.output_tokens and one.input_tokens and one.tok_s for one in found.rounds)
    assert found.same is not None
    assert (found.same.agree, found.same.tokens) == (64, 64)
    assert found.resolved is not None
    assert found.resolved["attention_backend"] == "flashinfer"
    assert "secret" not in str(found.resolved)
    assert (found.answers, found.compiled) == (None, ())


def test_the_same_load_is_sent_every_time() -> None:
    plans = [load._plan(number, 64, 1024) for number in (0, 0, 1)]
    assert plans[0] == plans[1] != plans[2]
    assert {len(prompt) for prompt, _ in plans[0]} > {1, 1024}
    assert max(len(prompt) for prompt, _ in load._plan(0, 64, 100)) == 100


@pytest.mark.parametrize(
    ("control", "stalled", "error", "not_finite"),
    [
        ("short", 0, "tokens instead of", 0),
        ("stalling", 4, "no token for 2 s", 0),
        ("nan", 0, "", 1),
    ],
)
def test_what_goes_wrong_under_load_is_counted(
    start: Start, control: str, stalled: int, error: str, not_finite: int
) -> None:
    server = start()
    server.until(READY)
    server.say(control)
    (one,) = loaded(server, "--rounds", "1", "--requests", "4", "--stall", "2").rounds
    assert one.stalled == stalled
    assert (one.not_finite or 0) >= not_finite
    assert any(error in text for text in one.errors) or not error


def test_no_round_begins_after_the_deadline(start: Start) -> None:
    server = start()
    server.until(READY)
    found = loaded(server, "--rounds", "2", "--deadline", "0")
    assert [one.error for one in found.rounds] == ["the deadline had passed"] * 2
    assert found.tok_s is None


def test_without_a_server_there_is_no_load(tmp_path: Path) -> None:
    found = load.facts(["--port", "1"], [])
    assert (found["rounds"], found["resolved"], found["same"], found["answers"]) == ([], None, None, None)


def test_known_answers_are_asked_of_real_weights(start: Start) -> None:
    server = start()
    server.until(READY)
    found = loaded(server, "--rounds", "0", "--real").answers
    assert found is not None
    assert [one.found for one in found] == [True] * len(answers.KNOWN)
    assert {one.error for one in found} == {None}
    server.say("garbage")
    broken = loaded(server, "--rounds", "0", "--real").answers
    assert broken is not None
    assert {(one.found, one.repetition) for one in broken} == {(False, 1.0)}


@pytest.mark.parametrize(("room", "asked"), [(None, 6), (30000, 6), (131072, 7)])
def test_a_long_context_is_asked_where_there_is_room(room: int | None, asked: int) -> None:
    questions = [*answers.KNOWN, *answers._long({"max_req_input_len": room})]
    assert len(questions) == asked
    if asked == 7:
        assert len(questions[-1][0].split()) > 25000


@pytest.mark.parametrize(
    ("tokens", "text", "repetition", "strange"),
    [([], "", None, None), ([7] * 10, "!" * 10, 1.0, 0.0), ([1, 2, 3, 4], "a\nb", 0.25, 0.0),
     ([1, 1, 2], "\ufffd\ufffdab", 0.667, 0.5)],
)  # fmt: skip
def test_repetition_and_strange_characters_are_shares(
    tokens: list[int], text: str, repetition: float | None, strange: float | None
) -> None:
    assert (answers.repetition(tokens), answers.strange(text)) == (repetition, strange)


def test_a_stream_that_nobody_serves_is_an_error() -> None:
    found = stream.generate(["python", "-m", "sglang.launch_server", "--port", "1"], [5], 8, 1.0)
    assert (found.count, found.stalled, found.error.partition(":")[0]) == (0, False, "ConnectionRefusedError")


def test_compilers_are_counted_once_each(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Process(1, 0, "S", 1, 0, 0, ["python", "-m", "sglang.launch_server"])
    works = [Process(pid, 1, "R", pid, 0, 0, ["/x/cicc", "/c/cached_ops/norm/a.cu"]) for pid in (5, 6, 6)]
    other = Process(9, 0, "R", 9, 0, 0, ["/x/cicc", "/c/cached_ops/foreign/a.cu"])
    monkeypatch.setattr(health, "processes", lambda: {one.pid: one for one in (server, *works, other)})
    seen = compiling.Seen()
    for _ in range(3):
        seen.look(None)
    assert seen.counted() == [{"program": "cicc", "module": "norm", "count": 2}]
