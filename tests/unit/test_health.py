"""kiln-health on real processes: a server with SGLang's process titles and answers is stopped, killed and replaced."""

from __future__ import annotations

import http.server
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from kiln.probe import health
from kiln.probe.health import CLOSED, DEAD, FOREIGN, OURS, READY, STARTING, STUCK, WARMING, Limits, Look, Memory, Watch
from kiln.settings import ROOT
from tests.processes import gone

pytestmark = pytest.mark.unit

SERVERS = ROOT / "tests/data/server"
PROGRAM = ROOT / "kiln/probe/health.py"
# The server gives up after 0.8 s, as SGLang's does after 20; what comes within a third of this came at once.
TIMEOUT_S = 2.1


class Server:
    """One server, and the memory of the looks at it."""

    def __init__(self, folder: Path, *words: str, orphans: bool = False, control: str = "") -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.control = folder / "control"
        self.say(control)
        env = {**os.environ, "PYTHONPATH": str(SERVERS), "FAKE_CONTROL": str(self.control),
               "FAKE_ORPHANS": "yes" if orphans else "no"}  # fmt: skip
        argv = [sys.executable, "-m", "sglang.launch_server", "--port", str(self.port), *words]
        self.process = subprocess.Popen(argv, env=env, start_new_session=True, stderr=subprocess.DEVNULL)
        self.memory, self.reason, self.seen = Memory(), "", Look()
        self.more: Callable[[], dict[str, int]] = dict
        self.children: dict[str, int] = {}

    def say(self, words: str) -> None:
        self.control.write_text(words)

    def state(self, limits: Limits | None = None) -> str:
        """Look once more."""
        self.seen = Watch(self.port, more=self.more).look()
        self.memory, (state, self.reason) = health.step(self.memory, self.seen, limits or Limits(30.0, 120.0, 600.0))
        self.children |= {role: int(pid) for role, _, pid in (one.partition(":") for one in self.seen.alive)}
        return state

    def until(self, state: str, seconds: float = 120.0) -> None:
        end = time.monotonic() + seconds
        while (found := self.state()) != state:
            assert time.monotonic() < end, f"{found} {self.reason}"
            time.sleep(0.1)

    def signal(self, role: str, number: int) -> None:
        os.kill(self.process.pid if role == "server" else self.children[role], number)

    def end(self) -> None:
        found = health.processes()
        for pid in [*(one.pid for one in health.tree(found, self.process.pid)), *self.children.values()]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()


Start = Callable[..., Server]


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "TIMEOUT_S", TIMEOUT_S)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    servers: list[Server] = []

    def one(*words: str, orphans: bool = False, control: str = "") -> Server:
        folder = tmp_path / str(len(servers))
        folder.mkdir()
        servers.append(Server(folder, *words, orphans=orphans, control=control))
        return servers[-1]

    yield one
    for server in servers:
        server.end()


def test_a_boot_goes_through_its_states(start: Start) -> None:
    server = start("--tp", "2", control="closed starting")
    server.until(STARTING)
    assert server.seen.port == CLOSED
    server.say("starting")
    server.until(WARMING)
    assert (server.seen.port, server.seen.health) == (OURS, 503)
    server.say("")
    server.until(READY)
    assert [one.partition(":")[0] for one in server.seen.alive] == ["detokenizer", "scheduler_TP0", "scheduler_TP1"]
    assert server.seen.missing == []


def test_a_stopped_scheduler_is_stuck_after_two_looks_and_ready_again_after(start: Start) -> None:
    server = start("--tp", "2")
    server.until(READY)
    server.signal("scheduler_TP1", signal.SIGSTOP)
    assert server.state() == WARMING
    time.sleep(1)
    assert server.state() == STUCK
    assert server.reason.startswith("stopped by a signal: scheduler_TP1:")
    server.signal("scheduler_TP1", signal.SIGCONT)
    server.until(READY)


def test_a_log_that_tells_of_nothing_but_our_questions_is_no_excuse(start: Start) -> None:
    server, lines = start(), iter(range(100))
    server.until(READY)
    server.more = lambda: {"log": next(lines)}
    server.say("mute")
    assert [server.state() for _ in range(2)] == [WARMING, STUCK]
    assert (next(lines), server.reason.startswith("health: 503 after 1 s, 2 looks in ")) == (0, True)


def test_a_stopped_launcher_is_stuck(start: Start) -> None:
    server = start()
    server.until(READY)
    server.signal("server", signal.SIGSTOP)
    assert server.state() == WARMING
    time.sleep(1)
    assert server.state() == STUCK
    assert (server.seen.health, server.seen.stopped) == (0, [f"server:{server.process.pid}"])
    server.signal("server", signal.SIGCONT)
    server.until(READY)


@pytest.mark.parametrize("role", ["scheduler_TP0", "scheduler_TP1", "detokenizer"])
def test_a_killed_worker_is_dead_although_the_launcher_lives_and_leaves_it_a_zombie(start: Start, role: str) -> None:
    server = start("--tp", "2")
    server.until(READY)
    pid = server.children[role]
    server.signal(role, signal.SIGKILL)
    assert server.state() == DEAD
    assert server.reason == f"died: {role}:{pid}"
    assert Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    assert health.processes()[pid].role == f"sglang::{role}"[:15].removeprefix("sglang::")


def test_a_first_look_finds_the_zombie_too(start: Start) -> None:
    server = start("--tp", "2")
    server.until(READY)
    server.signal("scheduler_TP1", signal.SIGKILL)
    server.memory = Memory()
    assert server.state(Limits()) == DEAD
    assert server.reason == f"died: schedul:{server.children['scheduler_TP1']}"


def test_a_killed_worker_that_was_reaped_is_dead(start: Start) -> None:
    server = start(control="reaping")
    server.until(READY)
    server.signal("scheduler", signal.SIGKILL)
    assert gone(server.children["scheduler"], reaped=True)
    server.memory = Memory()
    assert server.state(Limits()) == DEAD
    assert server.reason == "the port is open with 0 of 1 schedulers alive"


def test_a_killed_launcher_leaves_orphans_and_is_dead(start: Start) -> None:
    server = start("--tp", "2", orphans=True)
    server.until(READY)
    server.signal("server", signal.SIGSTOP)  # or its children end with their channel
    orphans = [f"{role}:{pid}" for role, pid in sorted(server.children.items())]
    os.kill(server.children["detokenizer"], signal.SIGSTOP)
    for role in ("scheduler_TP0", "scheduler_TP1"):
        os.kill(server.children[role], signal.SIGSTOP)
    server.signal("server", signal.SIGKILL)
    server.process.wait()
    assert server.state() == DEAD
    mine = [one for one in server.seen.orphans if one in orphans]
    assert mine == orphans
    assert server.reason.startswith(f"the server, process {server.process.pid}, is gone; left behind: ")


def test_a_zombie_launcher_is_dead(start: Start) -> None:
    server = start()
    server.until(READY)
    server.signal("server", signal.SIGKILL)
    time.sleep(0.2)
    assert Path(f"/proc/{server.process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    assert server.state() == DEAD


def test_sigterm_ends_in_dead(start: Start) -> None:
    server = start()
    server.until(READY)
    server.signal("server", signal.SIGTERM)
    server.until(DEAD, 5)


@pytest.mark.parametrize(
    ("control", "why"),
    [
        ("short", "our generation: 7 tokens and 7 logprobs instead of 8"),
        ("nan", "our generation: 8 of 8 logprobs are not finite"),
    ],
)
def test_health_200_with_a_bad_generation_is_never_ready(start: Start, control: str, why: str) -> None:
    server = start(control=control)
    server.until(WARMING)
    while server.seen.health != 200:
        server.until(WARMING)
    assert (server.seen.port, server.reason) == (OURS, f"{why}; another look decides")
    assert server.state() == STUCK


def test_a_port_that_another_process_answers_on_is_not_ours(start: Start) -> None:
    server, other = start(control="closed"), start()
    other.until(READY)
    server.until(STARTING)

    class Deceiver(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", server.port), Deceiver) as deceiver:
        threading.Thread(target=deceiver.serve_forever, daemon=True).start()
        assert server.state() == STARTING
        assert (server.seen.port, server.seen.health) == (FOREIGN, None)
        server.say("")
        server.process.wait(10)
        assert server.state() == DEAD
        assert server.reason.endswith("; another process answers on the port")
        deceiver.shutdown()
    assert other.state() == READY


def test_compilers_below_a_server_excuse_it_and_tell_their_module(start: Start) -> None:
    server = start(control="compiling")
    server.until(READY)
    assert server.seen.compilers == ["cicc:norm"]
    server.signal("scheduler", signal.SIGSTOP)
    assert [server.state() for _ in range(2)] == [WARMING] * 2
    assert server.reason.endswith("; compiling cicc:norm")


def test_a_compiler_elsewhere_is_nothing_of_the_server_s(start: Start) -> None:
    server = start()
    outside = subprocess.Popen(["/x/bin/ptxas", "-c", "import time; time.sleep(60)"], executable=sys.executable)
    server.until(READY)
    assert server.seen.compilers == []
    outside.kill()
    outside.wait()


def test_a_shell_or_a_search_with_the_launcher_s_words_is_no_server(start: Start) -> None:
    shell = subprocess.Popen(["bash", "-c", "sleep 60 # python -m sglang.launch_server --port 1"])
    try:
        assert health.find_server(health.processes(), 1) is None
    finally:
        shell.kill()
        shell.wait()


def pythons() -> list[str]:
    """The oldest Python that the file is for, where it is installed, and ours."""
    old = Path.home() / ".pyenv/versions"
    return [sys.executable, *(str(one) for one in sorted(old.glob("3.8.*/bin/python3.8")))]


def call(python: str, *words: str, tmp: Path) -> tuple[int, str]:
    done = subprocess.run([python, PROGRAM, *words], env={"TMPDIR": str(tmp), "PATH": os.environ["PATH"]},
                          capture_output=True, text=True, timeout=90, check=False)  # fmt: skip
    assert done.stderr == ""
    return done.returncode, done.stdout


@pytest.mark.parametrize("python", pythons(), ids=lambda path: Path(path).name)
def test_the_program_alone_tells_ready_and_dead(start: Start, tmp_path: Path, python: str) -> None:
    server = start()
    server.until(READY)
    code, text = call(python, "--port", str(server.port), tmp=tmp_path)
    assert (code, text.split()[0]) == (0, READY)
    code, text = call(python, "--port", str(server.port), "--json", tmp=tmp_path)
    found = json.loads(text)
    assert (code, found["state"], found["health"], found["generation"]) == (0, READY, 200, "ok")
    server.signal("scheduler", signal.SIGKILL)
    code, text = call(python, "--port", str(server.port), tmp=tmp_path)
    assert (code, text) == (1, f"DEAD died: scheduler:{server.children['scheduler']}\n")


def test_single_calls_tell_stuck_at_the_second_look(start: Start, tmp_path: Path) -> None:
    server = start(control="short")
    server.until(WARMING)
    port = str(server.port)
    assert [call(sys.executable, "--port", port, tmp=tmp_path)[1].split()[0] for _ in range(2)] == [WARMING, STUCK]
    server.say("")
    assert call(sys.executable, "--port", port, tmp=tmp_path)[0] == 0


def test_calls_without_a_place_for_notes_still_answer(start: Start, tmp_path: Path) -> None:
    server = start(control="short")
    server.until(WARMING)
    nowhere, port = tmp_path / "nowhere", str(server.port)
    assert [call(sys.executable, "--port", port, tmp=nowhere)[1].split()[0] for _ in range(2)] == [WARMING, WARMING]


@pytest.mark.parametrize("notes", ["", "{", "[]", '{"server": 1}', '{"seen": ["a:1"], "looked_s": 1e12}', '{"x": 1}'])
def test_damaged_or_foreign_notes_are_ignored(tmp_path: Path, notes: str) -> None:
    file = tmp_path / "notes.json"
    file.write_text(notes)
    assert health.recall(file) == health.recall(tmp_path / "none") == Memory()


def test_following_ends_with_the_first_final_state(start: Start, tmp_path: Path) -> None:
    server = start(control="closed")
    threading.Timer(3.0, server.say, [""]).start()
    code, text = call(sys.executable, "--port", str(server.port), "--follow", "--deadline", "60", tmp=tmp_path)
    found = [line.split()[0] for line in text.splitlines()]
    assert (code, found[0], found[-1], READY in found[:-1]) == (0, STARTING, READY, False)


def test_following_ends_at_its_deadline(start: Start, tmp_path: Path) -> None:
    server = start(control="closed")
    began = time.monotonic()
    code, text = call(sys.executable, "--port", str(server.port), "--follow", "--deadline", "3", tmp=tmp_path)
    assert (code, text.splitlines()[-1].split()[0]) == (1, STARTING)
    assert time.monotonic() - began < 15


def test_words_that_mean_nothing_are_refused(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, PROGRAM, "--expect", "eight"], capture_output=True, text=True, check=False)
    assert (done.returncode, "argument --expect: invalid sizes value: 'eight'" in done.stderr) == (2, True)
