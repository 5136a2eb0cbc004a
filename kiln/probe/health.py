#!/opt/kiln/bin/python
"""Say whether an SGLang server serves: STARTING, WARMING, READY, STUCK or DEAD, from its processes and from HTTP.

One file for Python 3.8 without any package: it is the image's HEALTHCHECK, too. What decides is in docs/health.md.
"""

from __future__ import annotations

import argparse
import http.client
import json
import math
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

STARTING, WARMING, READY, STUCK, DEAD = "STARTING", "WARMING", "READY", "STUCK", "DEAD"
CLOSED, OURS, FOREIGN, OK, SLOW = "closed", "ours", "foreign", "ok", "no answer in time"
COMPILERS = ("cicc", "ptxas", "nvcc", "ninja", "cudafe++", "cc1plus")
# /health_generate gives up after 20 s: who waits less never hears it. Both waits stay below the HEALTHCHECK's 60 s.
TIMEOUT_S, TOKENS = 25.0, 8
# The least change that is progress. One line of a log; waking a thread through eventfd(2) writes 8 bytes, though.
THRESHOLDS = {"written": 128, "rss_kib": 1024, "processes": 1, "compilers": 1, "log": 1, "vram_mib": 1}
_MODULE = re.compile(r"(?:/|\b)(?:cached_ops|generated|aot|tvm-ffi|torch_extensions/[^/\s]+)/([\w.+=-]+)")


class Limits(NamedTuple):
    """Patience in seconds: with no server at all, when nothing moves, when only CPU time moves."""

    grace_s: float = 0.0
    stall_s: float = 120.0
    busy_s: float = 600.0


class Look(NamedTuple):
    """One observation. Times are of the monotonic clock, processes "role:pid", `server` "pid/start" or empty.

    `health`: HTTP status; 0: no answer, None: not asked. `generation`: OK, SLOW, what is wrong, or empty: not asked.
    `marks` are numbers that change with work, and "cpu", which a rank burns also while it waits for the others.
    """

    began_s: float = 0.0
    ended_s: float = 0.0
    server: str = ""
    alive: Sequence[str] = ()
    zombies: Sequence[str] = ()
    stopped: Sequence[str] = ()
    orphans: Sequence[str] = ()
    missing: Sequence[str] = ()
    compilers: Sequence[str] = ()
    port: str = CLOSED
    health: int | None = None
    health_s: float = 0.0
    generation: str = ""
    generation_s: float = 0.0
    marks: Mapping[str, int] = {}


class Memory(NamedTuple):
    """What the looks at one server taught: all that a history comes to. `failures`: in a row, where it should serve."""

    server: str = ""
    since_s: float = -1.0
    looked_s: float = -1.0
    seen: Sequence[str] = ()
    opened: bool = False
    ready: bool = False
    failures: int = 0
    failing_s: float = 0.0
    moved_s: float = 0.0
    busy_s: float = 0.0
    marks: Mapping[str, int] = {}


def step(memory: Memory, look: Look, limits: Limits) -> tuple[Memory, tuple[str, str]]:
    """Take one more look into account; returns the state and the fact that decided. A history is a fold of this."""
    if look.server and look.server != memory.server:
        memory = Memory(look.server)
    if memory.since_s < 0:
        memory = memory._replace(since_s=look.began_s, looked_s=look.began_s, moved_s=look.ended_s,
                                 busy_s=look.ended_s, marks=look.marks)  # fmt: skip
    verdict = _dead(memory, look, limits)
    least = {**THRESHOLDS, "cpu": max(1.0, 2 * (look.ended_s - memory.looked_s))}  # 2 % of a core
    changed = {name for name, now in look.marks.items() if abs(now - memory.marks.get(name, now)) >= least[name]}
    moved_s = look.ended_s if changed - {"cpu"} else memory.moved_s
    busy_s = look.ended_s if changed else memory.busy_s
    memory = memory._replace(marks={**memory.marks, **look.marks}, moved_s=moved_s, busy_s=busy_s)
    if verdict is None:
        memory, verdict = _serving(memory, look, limits)
    seen, opened = sorted({*memory.seen, *look.alive}), memory.opened or look.port == OURS
    return memory._replace(seen=seen, opened=opened, looked_s=look.ended_s), verdict


def _dead(memory: Memory, look: Look, limits: Limits) -> tuple[str, str] | None:
    """Judge the processes alone; None: all that should be there are."""
    if not look.server:
        after = f"; left behind: {', '.join(look.orphans)}" if look.orphans else ""
        after += "; another process answers on the port" if look.port == FOREIGN else ""
        if memory.server:
            return DEAD, f"the server, process {memory.server.partition('/')[0]}, is gone{after}"
        state = STARTING if look.ended_s - memory.since_s < limits.grace_s else DEAD
        return state, f"there is no server process{after}"
    gone = {one for one in memory.seen if one not in look.alive}
    if look.zombies or gone:
        return DEAD, f"died: {', '.join(sorted(gone or look.zombies))}"
    if look.missing and look.port == OURS:
        return DEAD, f"the port is open with {', '.join(look.missing)} alive"
    return None


def _serving(memory: Memory, look: Look, limits: Limits) -> tuple[Memory, tuple[str, str]]:
    """Judge a server whose processes are all alive. If it should serve and does not, two looks make it STUCK, unless
    compilers or, for a while, the processes below the launcher show work."""
    if look.health == 200 and look.generation == OK and not look.stopped:
        reason = f"health 200 in {look.health_s:.1f} s, {TOKENS} tokens in {look.generation_s:.1f} s"
        return memory._replace(ready=True, failures=0), (READY, reason)
    if look.health == 200 and look.generation == SLOW and memory.ready and memory.busy_s == look.ended_s:
        # /health_generate passes while anybody's tokens come; our own request waits behind those that fill the batch.
        return memory._replace(failures=0), (READY, "full: tokens move, our own request waits its turn")
    if not (trouble := _trouble(memory, look)):
        return memory._replace(failures=0), _waiting(memory, look, limits)
    if memory.failures == 0 or look.began_s >= memory.looked_s:
        since_s = memory.failing_s if memory.failures else look.ended_s
        memory = memory._replace(failures=memory.failures + 1, failing_s=since_s)
    lasted = look.ended_s - memory.failing_s
    works = memory.moved_s == look.ended_s and lasted < limits.busy_s and not look.stopped
    if look.compilers:
        return memory, (WARMING, f"{trouble}; compiling {', '.join(look.compilers)}")
    if memory.failures < 2 or (look.stopped and lasted < TIMEOUT_S / 5):
        return memory, (WARMING, f"{trouble}; another look decides")
    if works and look.generation in ("", SLOW):
        return memory, (WARMING, f"{trouble}; but its processes work")
    return memory, (STUCK, f"{trouble}, {memory.failures} looks in {lasted:.0f} s, all processes alive")


def _trouble(memory: Memory, look: Look) -> str:
    """Say what is wrong at a server that should serve by now; empty: it may still be on its way."""
    if look.stopped:  # one that is not in the way of our request may be in the way of others
        return f"stopped by a signal: {', '.join(look.stopped)}"
    if look.health is None:
        return "the port is closed again" if look.port == CLOSED and memory.opened else ""
    if look.health == 200:
        return f"our generation: {look.generation}"
    if look.health == 503 and look.health_s < TIMEOUT_S / 3:
        return "it refuses at once, as it does when it shuts down" if memory.ready else ""
    return f"health: {look.health or SLOW} after {look.health_s:.0f} s"


def _waiting(memory: Memory, look: Look, limits: Limits) -> tuple[str, str]:
    """Judge a server that does not serve yet: it may take its time as long as something moves."""
    quiet, idle = look.ended_s - memory.moved_s, look.ended_s - memory.busy_s
    if idle >= limits.stall_s or quiet >= limits.busy_s:
        what = f"nothing moved for {idle:.0f} s" if idle >= limits.stall_s else f"only CPU time moved for {quiet:.0f} s"
        return STUCK, f"{what}, all processes alive"
    if look.compilers:
        return WARMING, f"compiling {', '.join(look.compilers)}"
    if look.port == OURS:
        return WARMING, "the port is open, the warm-up request runs"
    foreign = "another process holds the port; " if look.port == FOREIGN else ""
    return STARTING, f"{foreign}{len(look.alive)} processes below the launcher have their names"


class Process(NamedTuple):
    """One process of /proc; `state` is proc(5)'s letter. A zombie has for argv its name, cut to 15 bytes."""

    pid: int
    parent: int
    state: str
    started: int
    cpu_ticks: int
    rss_kib: int
    argv: Sequence[str]

    @property
    def role(self) -> str:
        """Return "server" for SGLang's launcher itself, not a shell or an init with its words; "scheduler_TP0" …"""
        words = self.argv[1:6] if Path(self.argv[0]).name.startswith("python") else ()
        if "sglang.launch_server" in words[1:] or [Path(one).name for one in words[:2]] == ["sglang", "serve"]:
            return "server"
        return self.argv[0][8:].strip() if self.argv[0].startswith("sglang::") else ""


def processes() -> dict[int, Process]:
    """Read every process, by its id."""
    found = {}
    for path in (one for one in Path("/proc").iterdir() if one.name.isdigit()):
        with suppress(OSError):  # it ended meanwhile
            head, _, tail = (path / "stat").read_text(errors="replace").rpartition(")")
            words = (path / "cmdline").read_bytes().decode(errors="replace").rstrip("\0 ") or head.partition("(")[2]
            rest = tail.split()
            ticks, rss_kib = int(rest[11]) + int(rest[12]), int(rest[21]) * os.sysconf("SC_PAGE_SIZE") // 1024
            one = Process(int(path.name), int(rest[1]), rest[0], int(rest[19]), ticks, rss_kib, words.split("\0"))
            found[one.pid] = one
    return found


def tree(found: Mapping[int, Process], top: int) -> list[Process]:
    """Return a process and all below it."""
    members = {top}
    while more := {pid for pid, one in found.items() if one.parent in members} - members:
        members |= more
    return [found[pid] for pid in sorted(members & set(found))]


def option(argv: Sequence[str], default: str, *names: str) -> str:
    """Return the last value of an argument, given as `--x v` or `--x=v`."""
    value = default
    for index, word in enumerate(argv):
        flag, equals, given = word.partition("=")
        if flag in names:
            value = given if equals else "".join(argv[index + 1 : index + 2])
    return value


def port_of(argv: Sequence[str]) -> int:
    """Return the port that a launcher with these words opens."""
    return int(option(argv, "30000", "--port"))


def expected(argv: Sequence[str], told: Mapping[str, int]) -> dict[str, int]:
    """Return how many schedulers and detokenizers a launcher with these words runs on this node; `told` wins."""
    size = {one: told.get(one) or int(option(argv, "1", f"--{one}", f"--{one}-size", f"--{word}-parallel-size"))
            for one, word in (("tp", "tensor"), ("pp", "pipeline"), ("dp", "data"))}  # fmt: skip
    ranks = size["tp"] * size["pp"] * (1 if "--enable-dp-attention" in argv else size["dp"])
    detokenizers = 0 if int(option(argv, "0", "--node-rank")) else int(option(argv, "1", "--detokenizer-worker-num"))
    return {"scheduler": ranks // int(option(argv, "1", "--nnodes")), "detokenizer": detokenizers}


def find_server(found: Mapping[int, Process], port: int | None) -> Process | None:
    """Return the launcher of a port, of none given the oldest; a process that a launcher forked is not one."""
    servers = {one.pid: one for one in found.values() if one.role == "server" and one.state not in "ZX"}
    heads = (one for one in servers.values() if one.parent not in servers and port in (None, port_of(one.argv)))
    return min(heads, key=lambda one: one.started, default=None)


def holder(members: Iterable[Process], pid: int | str, port: int) -> str:
    """Say who listens on a port where process `pid` lives: one of `members`, another process, or nobody."""
    files = [Path(f"/proc/{pid}/net/{name}") for name in ("tcp", "tcp6")]
    rows = [line.split() for file in files if file.exists() for line in file.read_text().splitlines()]
    sockets = {int(row[9]) for row in rows if row[3] == "0A" and row[1].endswith(f":{port:04X}")}
    for fd in (fd for one in members if sockets for fd in Path(f"/proc/{one.pid}/fd").glob("*")):
        with suppress(OSError):  # closed meanwhile, or of another user
            if fd.is_socket() and fd.stat().st_ino in sockets:
                return OURS
    return FOREIGN if sockets else CLOSED


def module_of(argv: Sequence[str]) -> str:
    """Guess what a compiler makes: a folder of a cache in its words, else its source file; Triton's have no name."""
    if match := _MODULE.search(" ".join(argv)):
        return match.group(1)
    source = next((Path(word) for word in argv if word.endswith((".cu", ".cpp", ".cc", ".ptx"))), Path("?"))
    return "triton" if source.suffix == ".ptx" else source.stem


def ask(argv: Sequence[str], method: str, path: str, body: object, seconds: float) -> tuple[int, bytes, float]:
    """Send a request to the launcher with these words: status (0: no answer), body and duration in seconds."""
    began = time.monotonic()  # to connect to 0.0.0.0 or :: is to connect to this host
    connection = http.client.HTTPConnection(option(argv, "127.0.0.1", "--host"), port_of(argv), timeout=seconds)
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {option(argv, '', '--api-key')}"}
    try:
        connection.request(method, path, json.dumps(body) if body else None, headers)
        answer = connection.getresponse()
        return answer.status, answer.read(), time.monotonic() - began
    except (OSError, http.client.HTTPException):
        return 0, b"", time.monotonic() - began
    finally:
        connection.close()


def generate(argv: Sequence[str], seconds: float) -> tuple[str, float]:
    """Ask for a few tokens; returns OK, SLOW or what is wrong with the answer, and the duration in seconds."""
    sampling = {"max_new_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
    body = {"input_ids": [5, 6, 7, 8], "return_logprob": True, "sampling_params": sampling}
    status, text, took = ask(argv, "POST", "/generate", body, seconds)
    return (fault_of(status, text) or OK if status else SLOW), took


def fault_of(status: int, text: bytes) -> str:
    """Say what is wrong with an answer of /generate; empty if it is good."""
    if status != 200:
        return f"status {status}: {text[:120].decode(errors='replace')}"
    try:
        meta = json.loads(text)["meta_info"]
        count, logprobs = meta["completion_tokens"], [one[0] for one in meta["output_token_logprobs"]]
    except (ValueError, TypeError, LookupError) as error:
        return f"not an answer of SGLang ({type(error).__name__})"
    if count != TOKENS or len(logprobs) != TOKENS:
        return f"{count} tokens and {len(logprobs)} logprobs instead of {TOKENS}"
    bad = sum(1 for one in logprobs if not isinstance(one, (int, float)) or not math.isfinite(one))
    return f"{bad} of {TOKENS} logprobs are not finite" if bad else ""


class Watch(NamedTuple):
    """How to look at a server. `told`: sizes that are not in its words; `more`: marks while its port is closed."""

    port: int | None = None
    told: Mapping[str, int] = {}
    more: Callable[[], dict[str, int]] = dict

    def look(self) -> Look:
        """Look once: processes, HTTP, and the processes again, as they may die while HTTP waits."""
        began, found = time.monotonic(), processes()
        before = find_server(found, self.port)
        web = Look(port=holder(tree(found, before.pid), before.pid, port_of(before.argv)) if before else CLOSED)
        if before and web.port == OURS:
            health, _, took = ask(before.argv, "GET", "/health_generate", None, TIMEOUT_S)
            generation, seconds = generate(before.argv, TIMEOUT_S) if health == 200 else ("", 0.0)
            web = web._replace(health=health, health_s=took, generation=generation, generation_s=seconds)
        server = find_server(found := processes(), self.port)
        if not before or not server or (server.pid, server.started) != (before.pid, before.started):
            orphans = sorted(f"{one.role}:{one.pid}" for one in found.values() if one.role and one.state not in "ZX")
            return Look(began, time.monotonic(), orphans=orphans, port=holder((), "self", self.port or 30000))
        return self._below(server, tree(found, server.pid), web._replace(began_s=began, ended_s=time.monotonic()))

    def _below(self, server: Process, members: Sequence[Process], web: Look) -> Look:
        """Add what the processes tell. The launcher of an open port also works to answer and log our questions."""
        named = {f"{one.role}:{one.pid}": one.state for one in members if one.role}
        below = {label: state for label, state in named.items() if not label.startswith("server:")}
        alive = sorted(label for label, state in below.items() if state not in "ZX")
        workers = [one for one in members if web.port != OURS or one is not server]
        busy = [one for one in members if Path(one.argv[0]).name in COMPILERS and one.state not in "ZXT"]
        missing = [f"{there} of {least} {role}s" for role, least in expected(server.argv, self.told).items()
                   if (there := sum(bool(re.match(rf"{role}(?!_router)", one)) for one in alive)) < least]  # fmt: skip
        marks = {"cpu": sum(one.cpu_ticks for one in workers), "rss_kib": sum(one.rss_kib for one in workers),
                 "written": sum(written(one.pid) for one in workers), "processes": sum(one.pid for one in workers),
                 "compilers": sum(one.pid + one.cpu_ticks for one in busy)}  # fmt: skip
        return web._replace(
            server=f"{server.pid}/{server.started}", alive=alive, missing=missing,
            zombies=sorted(set(below) - set(alive)), marks=marks if web.port == OURS else {**marks, **self.more()},
            stopped=sorted(label for label, state in named.items() if state == "T"),
            compilers=sorted({f"{Path(one.argv[0]).name}:{module_of(one.argv)}" for one in busy}),
        )  # fmt: skip


def written(pid: int) -> int:
    """Return the bytes that a process gave to write(2); 0 where that cannot be read."""
    with suppress(OSError):
        return int(Path(f"/proc/{pid}/io").read_text().split()[3])
    return 0


def recall(file: Path) -> Memory:
    """Return what the last call left, unless it is older than five minutes, of another boot or another user."""
    with suppress(OSError, ValueError, TypeError):
        memory = Memory(**json.loads(file.read_text()))
        if file.lstat().st_uid == os.getuid() and 0 <= time.monotonic() - memory.looked_s <= 300:
            return memory
    return Memory()


def follow(watch: Watch, deadline_s: float, tell: Callable[[Look, str, str], object], limits: Limits) -> str:
    """Look until READY, STUCK or DEAD, or until time is over; returns the state, `tell` gets every look and why."""
    memory, end = Memory(), time.monotonic() + deadline_s
    while True:
        memory, (state, reason) = step(memory, look := watch.look(), limits)
        tell(look, state, reason)
        if state in (READY, STUCK, DEAD) or time.monotonic() >= end:
            return state
        time.sleep(2.0)


def sizes(text: str) -> dict[str, int]:
    """Read `tp=8,dp=1`. Raises ValueError."""
    return {name.lower(): int(value) for name, _, value in (one.partition("=") for one in text.split(","))}


def main(argv: Sequence[str] | None = None) -> int:
    """Print the state; 0 is READY, 1 anything else. What one call learns it leaves in a file for the next."""
    parser = argparse.ArgumentParser(prog="kiln-health", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--port", type=int, help="port of the server (default: that of the oldest)")
    parser.add_argument("--expect", type=sizes, default={}, help="sizes that are not in its words: tp=8,dp=1,pp=1")
    parser.add_argument("--json", action="store_true", help="print JSON, one line a look")
    parser.add_argument("--follow", action="store_true", help="look until READY, STUCK or DEAD")
    parser.add_argument("--deadline", type=float, default=1800.0, help="end of --follow, in seconds")
    args = parser.parse_args(argv)
    watch = Watch(args.port, args.expect)

    def tell(look: Look, state: str, reason: str) -> None:
        whole = json.dumps({"state": state, "reason": reason, **look._asdict()})
        os.write(1, f"{whole if args.json else f'{state} {reason}'}\n".encode())

    if args.follow:
        return int(follow(watch, args.deadline, tell, Limits(grace_s=30.0)) != READY)
    space = Path("/proc/self/ns/pid").stat().st_ino
    file = Path(os.environ.get("TMPDIR", "/tmp"), f"kiln-health-{os.getuid()}-{space}-{args.port}.json")
    memory, (state, reason) = step(recall(file), look := watch.look(), Limits())
    with suppress(OSError):
        file.write_text(json.dumps(memory._asdict()))
    tell(look, state, reason)
    return int(state != READY)


if __name__ == "__main__":
    sys.exit(main())
