"""kiln-health against real SGLang servers, in containers of the built image: booted on CPUs, stopped, killed, deceived.

Without an image of the stack in the engine they are NOT_RUN; `--kiln-image REF` names another one. What makes the CUDA
build of SGLang start without a GPU is in tests/data/cpu-boot: a libcuda whose calls all fail, and an empty vllm.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from kiln import bundle
from kiln.errors import KilnError
from kiln.facts import reading
from kiln.facts.server import LoadFacts, StartFacts
from kiln.probe.health import DEAD, FOREIGN, OURS, READY, STARTING, STUCK, WARMING
from kiln.run import Completed, run
from kiln.settings import ROOT
from tests import storedimages

pytestmark = [pytest.mark.engine, pytest.mark.slow]

KIT = ROOT / "tests/data/cpu-boot"
WORDS = (
    "--model-path", "/model", "--load-format", "dummy", "--device", "cpu", "--attention-backend", "torch_native",
    "--sampling-backend", "pytorch", "--disable-overlap-schedule", "--mem-fraction-static", "0.3",
    "--max-total-tokens", "8192", "--host", "127.0.0.1",
)  # fmt: skip
TWO_RANKS = ("--tp-size", "2")
MODEL_INFO = "import urllib.request as u; print(u.urlopen('http' + '://127.0.0.1:30000/model_info').status)"
# `sglang serve` of 0.5.9 imports its part for image models first, which needs packages of an extra.
LAUNCHERS = {"current": "sglang serve", "story": "python -m sglang.launch_server"}
BOOT_S = 480
STOP, CONT, KILL, TERM = "STOP", "CONT", "KILL", "TERM"
DECEIVER = """
import http.server, json
class Handler(http.server.BaseHTTPRequestHandler):
    def answer(self):
        self.send_response(200)
        self.end_headers()
        rows = [[-1.0, 5, None]] * 8
        self.wfile.write(json.dumps({"meta_info": {"completion_tokens": 8, "output_token_logprobs": rows}}).encode())
    do_GET = do_POST = answer
http.server.ThreadingHTTPServer(("127.0.0.1", 30000), Handler).serve_forever()
"""
BUSY = """
import json, threading, urllib.request
def one(number):
    sampling = {"max_new_tokens": 3000, "temperature": 0, "ignore_eos": True}
    body = {"input_ids": [5, 6, number], "sampling_params": sampling}
    request = urllib.request.Request("http" + "://127.0.0.1:30000/generate", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    urllib.request.urlopen(request, timeout=600).read()
threads = [threading.Thread(target=one, args=(number,)) for number in range(5, 13)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
"""


def docker(*words: str, check: bool = True, timeout_s: float = 300) -> Completed:
    return run(["docker", *words], check=check, timeout_s=timeout_s)


@dataclass
class Box:
    """A container in which servers are started; `looks` are the answers of kiln-health so far."""

    name: str
    looks: list[dict[str, Any]] = field(default_factory=list)

    def call(self, *words: str, check: bool = True, timeout_s: float = 300) -> Completed:
        return docker("exec", self.name, *words, check=check, timeout_s=timeout_s)

    def shell(self, text: str, check: bool = True) -> str:
        return self.call("bash", "-c", text, check=check).stdout

    def serve(self, *words: str, launcher: str = "python -m sglang.launch_server", model: str = "") -> None:
        """Start a server in the background; its log is /tmp/server.log."""
        given = [*WORDS, *(("--model-path", model) if model else ()), *words]
        boot = "LD_LIBRARY_PATH=/tmp/cuda PYTHONPATH=/kit SGLANG_NCCL_SO_PATH=/none SGLANG_CPU_OMP_THREADS_BIND='0|1'"
        line = f"{boot if '--tp-size' in words else boot.rpartition(' ')[0]} exec {launcher} {' '.join(given)}"
        docker("exec", "--detach", self.name, "bash", "-c", f"{line} > /tmp/server.log 2>&1")

    def look(self, *words: str) -> str:
        """Call kiln-health once; returns the state, which its exit status must fit."""
        done = self.call("kiln-health", "--json", *words, check=False)
        found = json.loads(done.stdout)
        self.looks.append(found)
        assert done.returncode == (0 if found["state"] == READY else 1)
        return str(found["state"])

    @property
    def last(self) -> dict[str, Any]:
        return self.looks[-1]

    def follow(self, deadline_s: float = BOOT_S) -> list[str]:
        """Follow a server with kiln-health to its verdict; returns the states, each once."""
        words = ("kiln-health", "--json", "--follow", "--deadline", str(int(deadline_s)))
        done = self.call(*words, check=False, timeout_s=deadline_s + 90)
        found = [json.loads(line) for line in done.stdout.splitlines()]
        self.looks += found
        states = [one["state"] for one in found]
        assert done.returncode == (0 if states[-1] == READY else 1)
        return [state for index, state in enumerate(states) if state not in states[index - 1 : index]]

    def until(self, state: str, seconds: float = BOOT_S, within: Sequence[str] = (STARTING, WARMING, STUCK)) -> None:
        """Look until a state; only those `within` may come before."""
        end = time.monotonic() + seconds
        while self.look() != state:
            assert self.last["state"] in within, self.last
            assert time.monotonic() < end, self.last
            time.sleep(1)

    def pid(self, role: str) -> int:
        """Return the process of a role, as kiln-health named it last."""
        if role == "server":
            return int(self.last["server"].partition("/")[0])
        return next(int(one.partition(":")[2]) for one in self.last["alive"] if one.startswith(f"{role}:"))

    def signal(self, role: str, name: str) -> None:
        self.shell(f"kill -{name} {self.pid(role)}")

    def log(self) -> str:
        return self.shell("cat /tmp/server.log")

    def probe(self, name: str, *words: str, timeout_s: float = 600) -> str:
        return self.call("/opt/kiln/bin/python", "/kit-probe.pyz", name, *words, timeout_s=timeout_s).stdout

    def end(self) -> None:
        """End the server, so that the next finds its port and its memory free."""
        self.shell("kill -9 $(grep -ls 'sgl[a]ng' /proc/[0-9]*/cmdline | cut -d/ -f3) 2> /tmp/kill.log", check=False)
        end = time.monotonic() + 30
        while self.look() != DEAD or self.last["orphans"]:
            assert time.monotonic() < end, self.last
        self.shell("rm -f $TMPDIR/kiln-health-*", check=False)


@pytest.fixture(scope="module", params=["current", "story"])
def stack(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def image(request: pytest.FixtureRequest, stack: str) -> str:
    """The image of a stack in the engine."""
    given = str(request.config.getoption("--kiln-image"))
    return storedimages.ref_of(stack, given if stack == "current" else "")


def options(probe: Path) -> list[str]:
    """The options of every container: no network, this checkout's kiln-health, and what boots without a GPU."""
    mounts = {KIT: "/kit", ROOT / "models/tiny": "/model", ROOT / "kiln/probe/health.py": "/opt/kiln/bin/kiln-health",
              probe: "/kit-probe.pyz"}  # fmt: skip
    return ["--network=none", "--cap-add=SYS_PTRACE", "--shm-size=1g",
            *(f"--volume={source}:{target}:ro" for source, target in mounts.items())]  # fmt: skip


@pytest.fixture(scope="module")
def probe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("probe") / "probe.pyz"
    file.write_bytes(bundle.build())
    return file


@pytest.fixture(scope="module")
def box(image: str, probe: Path) -> Iterator[Box]:
    name = f"kiln-states-{uuid.uuid4().hex[:8]}"
    docker(
        "run", "--detach", f"--name={name}", *options(probe), "--entrypoint=/usr/bin/tini", image, "sleep", "infinity"
    )
    try:
        found = Box(name)
        library = "gcc -shared -fPIC -Wl,-soname,libcuda.so.1 -o /tmp/cuda/libcuda.so.1 /kit/libcuda.c"
        found.shell(f"mkdir -p /tmp/cuda /tmp/bare && {library} && cp /model/config.json /tmp/bare/")
        yield found
    finally:
        docker("rm", "--force", name)


@pytest.fixture
def room(box: Box) -> Iterator[Box]:
    """A container without a server, before and after."""
    yield box
    box.end()


@pytest.fixture(scope="class")
def server(box: Box) -> Iterator[Box]:
    box.serve("--max-running-requests", "2", "--skip-tokenizer-init")
    assert box.follow()[-1] == READY, box.log()[-3000:]
    yield box
    box.end()


class TestOneServer:
    """What one server lives through, and is READY after: it takes two requests at a time."""

    def test_a_boot_ends_in_ready_and_says_nothing_wrong_before(self, server: Box) -> None:
        assert {one["state"] for one in server.looks[:-1]} <= {STARTING, WARMING}
        assert (server.last["port"], server.last["health"], server.last["generation"]) == (OURS, 200, "ok")
        assert [one.partition(":")[0] for one in server.last["alive"]] == ["detokenizer", "scheduler"]

    def test_a_single_look_at_a_ready_server_takes_seconds(self, server: Box) -> None:
        began = time.monotonic()
        assert server.look() == READY
        assert time.monotonic() - began < 15

    def test_more_ranks_wanted_than_there_are_is_not_ready(self, server: Box) -> None:
        assert server.look("--expect", "tp=8") == DEAD
        assert server.last["reason"] == "the port is open with 1 of 8 schedulers alive"
        assert server.look() == READY

    @pytest.mark.parametrize("role", ["scheduler", "detokenizer", "server"])
    def test_a_stopped_process_is_stuck_and_ready_again_when_it_goes_on(self, server: Box, role: str) -> None:
        assert server.look() == READY
        server.signal(role, STOP)
        try:
            assert server.look() == WARMING
            server.until(STUCK, 120, within=(WARMING,))
            assert server.last["reason"].startswith(f"stopped by a signal: {role}:{server.pid(role)}")
            if role != "server":
                assert server.call("python", "-c", MODEL_INFO).stdout == "200\n"  # which is why it is not asked
        finally:
            server.signal(role, CONT)
        server.until(READY, 60)

    def test_a_full_server_is_ready_although_our_request_waits(self, server: Box) -> None:
        assert server.look() == READY
        docker("exec", "--detach", server.name, "python", "-c", BUSY)
        time.sleep(5)
        found = [server.look() for _ in range(2)]
        assert found == [READY, READY], server.last
        assert server.last["reason"].startswith("full: "), server.last
        while server.last["generation"] != "ok":
            assert server.look() == READY, server.last

    def test_the_load_is_answered_and_counted(self, server: Box) -> None:
        words = ("--port", "30000", "--rounds", "1", "--requests", "12", "--longest", "64", "--stall", "240")
        found = reading.read(server.probe("load", *words), LoadFacts)
        (one,) = found.rounds
        assert (one.requests, one.completed, one.stalled, one.not_finite, one.errors) == (12, 12, 0, 0, ())
        assert found.same is not None
        assert (found.same.agree, found.same.error) == (64, "")
        assert found.tok_s is not None
        assert found.tok_s > 1
        assert found.resolved is not None
        assert (found.resolved["attention_backend"], found.resolved["sampling_backend"]) == ("torch_native", "pytorch")
        assert found.compiled == ()

    def test_the_verdict_with_stacks_where_it_is_stuck(self, server: Box) -> None:
        assert server.look() == READY
        server.signal("scheduler", STOP)
        try:
            found = reading.read(server.probe("serve", "--port", "30000", "--deadline", "120"), StartFacts)
        finally:
            server.signal("scheduler", CONT)
        assert [step.state for step in found.timeline] == [WARMING, STUCK]
        stacks = {one.process.partition(":")[0]: one.text for one in found.stacks}
        assert "event_loop" in (stacks["scheduler"] or ""), found
        server.until(READY, 60)

    def test_the_verdict_when_all_is_well(self, server: Box) -> None:
        found = reading.read(
            server.probe("serve", "--port", "30000", "--expect", "TP=1", "--deadline", "60"), StartFacts
        )
        assert (found.state, found.timed_out, found.missing, found.compiled) == (READY, False, (), ())
        assert [one.process for one in found.nccl] == ["scheduler"]
        assert found.nccl[0].libraries is not None
        assert len(found.nccl[0].libraries) == 1

    def test_a_second_server_on_the_port_dies_alone(self, server: Box) -> None:
        assert server.look() == READY
        mine = server.last["server"]
        docker("exec", "--detach", server.name, "bash", "-c",
               f"LD_LIBRARY_PATH=/tmp/cuda PYTHONPATH=/kit python -m sglang.launch_server {' '.join(WORDS)} "
               "> /tmp/second.log 2>&1; echo ended >> /tmp/second.log")  # fmt: skip
        end = time.monotonic() + BOOT_S
        while "ended" not in server.shell("tail -n 1 /tmp/second.log", check=False):
            assert (server.look(), server.last["server"]) == (READY, mine)
            assert time.monotonic() < end
            time.sleep(10)
        assert server.look() == READY


@pytest.mark.parametrize(("role", "words"), [("scheduler", ("--skip-server-warmup",)), ("detokenizer", ())])
def test_a_killed_worker_is_dead_at_the_next_look(room: Box, role: str, words: Sequence[str]) -> None:
    room.serve(*words)
    assert room.follow()[-1] == READY
    assert room.look() == READY
    pid, server = room.pid(role), room.pid("server")
    room.signal(role, KILL)
    assert room.look() == DEAD
    assert f"{role}:{pid}" in room.last["reason"] or f"process {server}, is gone" in room.last["reason"]


def test_a_killed_rank_of_two_is_dead_at_the_next_look(room: Box) -> None:
    room.serve(*TWO_RANKS)
    assert room.follow()[-1] == READY
    assert [one.partition(":")[0] for one in room.last["alive"]] == ["detokenizer", "scheduler_TP0", "scheduler_TP1"]
    room.signal("scheduler_TP1", KILL)
    assert room.look() == DEAD


def test_a_killed_launcher_is_dead(room: Box, stack: str) -> None:
    room.serve("--api-key", "secret", launcher=LAUNCHERS[stack])
    assert room.follow()[-1] == READY
    assert room.look() == READY
    room.signal("server", KILL)
    assert room.look() == DEAD
    assert "is gone" in room.last["reason"]


def test_a_scheduler_stopped_before_there_is_a_port_is_stuck_and_sigterm_ends_in_dead(room: Box) -> None:
    room.serve()
    end = time.monotonic() + BOOT_S
    while room.look() in (STARTING, WARMING) and not any(one.startswith("scheduler") for one in room.last["alive"]):
        assert time.monotonic() < end
    assert room.last["state"] == STARTING
    room.signal("scheduler", STOP)
    assert room.follow(120)[-1] == STUCK
    assert room.last["port"] != OURS
    room.signal("scheduler", CONT)
    room.until(READY)
    room.signal("server", TERM)
    end = time.monotonic() + 60
    while room.look() != DEAD:
        assert room.last["state"] != READY or room.last["health"] == 200
        assert time.monotonic() < end


def test_a_port_that_something_else_answers_on_is_never_ready(room: Box) -> None:
    docker("exec", "--detach", room.name, "python", "-c", DECEIVER)
    before = len(room.looks)
    try:
        room.serve()
        assert room.follow()[-1] == DEAD
        assert FOREIGN in [one["port"] for one in room.looks[before:]]
        assert READY not in [one["state"] for one in room.looks[before:]]
        assert {one["health"] for one in room.looks[before:]} == {None}
        assert "address already in use" in room.log()
        room.until(DEAD, 60, within=(STARTING,))  # a launcher without workers, as at its start, for seconds
    finally:
        room.shell("kill $(grep -ls 'Threading[H]TTPServer' /proc/[0-9]*/cmdline | cut -d/ -f3)", check=False)


@pytest.mark.parametrize(
    ("words", "model", "said"),
    [((), "/tmp/nothing", "/tmp/nothing"), (("--no-such-argument",), "", "unrecognized arguments")],
)
def test_a_server_that_cannot_start_is_dead(room: Box, words: Sequence[str], model: str, said: str) -> None:
    room.serve(*words, model=model)
    assert room.follow()[-1] == DEAD
    assert said in room.log()


def after_the_crash(box: Box, seconds: float = 60) -> str:
    """Wait for the container to end: with what status, or what a server that stays answers (0.5.9 never notices)."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        status, code = docker("inspect", "--format={{.State.Status}} {{.State.ExitCode}}", box.name).stdout.split()
        if status == "exited":
            return f"exited {code}"
        time.sleep(1)
    assert box.look() == DEAD
    return f"model_info {box.call('python', '-c', MODEL_INFO).stdout.strip()}"


def test_as_the_first_process_a_crashed_server_is_dead_whatever_the_exit_status(image: str, probe: Path) -> None:
    name = f"kiln-states-{uuid.uuid4().hex[:8]}"
    cuda = "mkdir -p /tmp/cuda && gcc -shared -fPIC -Wl,-soname,libcuda.so.1 -o /tmp/cuda/libcuda.so.1 /kit/libcuda.c"
    boot = f"{cuda} && LD_LIBRARY_PATH=/tmp/cuda PYTHONPATH=/kit exec python -m sglang.launch_server {' '.join(WORDS)}"
    docker("run", "--detach", f"--name={name}", *options(probe), "--entrypoint=bash", image, "-c", boot)
    try:
        box = Box(name)
        assert box.follow()[-1] == READY
        assert (box.look(), box.pid("server")) == (READY, 1)
        box.signal("scheduler", KILL)
        assert box.look() == DEAD
        assert "died: " in box.last["reason"]
        assert after_the_crash(box) in ("exited 0", "exited 137", "model_info 200")  # none of which says anything
        assert box.last["state"] == DEAD
    finally:
        docker("rm", "--force", name)


def test_the_engine_s_own_health_check_says_the_same(image: str, probe: Path) -> None:
    name = f"kiln-states-{uuid.uuid4().hex[:8]}"
    checks = ["--health-cmd=kiln-health", "--health-interval=3s", "--health-timeout=60s", "--health-start-period=600s",
              "--health-retries=2", "--env=PYTHONPATH=/kit", "--env=LD_LIBRARY_PATH=/tmp/cuda"]  # fmt: skip
    script = ("gcc -shared -fPIC -Wl,-soname,libcuda.so.1 -o /tmp/cuda/libcuda.so.1 /kit/libcuda.c; "
              'exec kiln-serve "$@"')  # fmt: skip
    docker("run", "--detach", f"--name={name}", *options(probe), *checks, "--tmpfs=/tmp/cuda:mode=1777,exec",
           "--entrypoint=/usr/bin/tini", image, "-g", "--", "bash", "-c", script, "kiln-serve", *WORDS)  # fmt: skip

    def until(state: str, seconds: float) -> None:
        end = time.monotonic() + seconds
        while docker("inspect", "--format={{.State.Health.Status}}", name).stdout.strip() != state:
            assert time.monotonic() < end, docker("logs", "--tail=20", name, check=False).stdout
            time.sleep(1)

    try:
        until("healthy", BOOT_S)
        box = Box(name)
        assert box.look() == READY
        box.signal("scheduler", STOP)
        until("unhealthy", 180)
        box.signal("scheduler", CONT)
        until("healthy", 120)
        docker("stop", "--time=60", name, timeout_s=120)
        assert docker("inspect", "--format={{.State.Status}} {{.State.ExitCode}}", name).stdout.split()[0] == "exited"
        with pytest.raises(KilnError):
            box.call("kiln-health")
    finally:
        docker("rm", "--force", name)
