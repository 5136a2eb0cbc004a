"""The server becomes ready: every process alive, and its generations whole."""

from __future__ import annotations

from collections.abc import Iterator

from kiln.facts import Facts, known
from kiln.facts.server import ServerFacts
from kiln.topologies import Topology
from kiln.verdict import Finding, failed, passed

# What a line of the log may say of a server that did not come up, the surest first.
_BLAMES = ("host", "image", "preset", "numbers", "death", "hang", "warm-up")
_CURES = {
    "DEAD": "read the server's log in the receipt: the first traceback or the last lines",
    "STUCK": "read the stacks in the facts: all ranks in one collective point to the fabric, one apart to itself",
}


def judge(facts: Facts, topology: Topology) -> Iterator[Finding]:
    """Judge the state that processes and HTTP gave; the log only tells why."""
    server = known(facts.server, "the server")
    start = server.start
    if start.state == "READY":
        phases = {f"{name.replace('.', '_')}_s": seconds for name, seconds in server.startup_s.items()}
        yield passed(f"ready after {start.seconds:.0f} s: {start.why}", "", ready_s=start.seconds, **phases)
        return
    when = f"not ready after {start.seconds:.0f} s" if start.timed_out else f"{start.state} after {start.seconds:.0f} s"
    cause, cure = _explained(server)
    yield failed(f"{when}: {start.why}", cause=cause, cure=cure, seconds=start.seconds)


def _explained(server: ServerFacts) -> tuple[str, str]:
    """Return cause and cure: of the line that explains most, else of what was compiled, else of the state."""
    lines = sorted(server.blames(*_BLAMES), key=lambda one: _BLAMES.index(one.blames))
    if lines:
        return f"{lines[0].means}: {lines[0].line}", lines[0].cure
    if server.start.timed_out and server.start.compiled:
        modules = ", ".join(sorted({one.module for one in server.start.compiled}))
        return f"it compiled {modules} on this node", "add the modules to the kernel set, and build again"
    last = server.log_tail[-1] if server.log_tail else "its log is empty"
    cure = _CURES.get(
        server.start.state, "give it more time: ready_deadline_s of the topology, --deadline of inv smoke"
    )
    return f"no rule knows a line of its log; the last one: {last}", cure
