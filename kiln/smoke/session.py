"""One node's run: each phase's facts gathered once, when its first check is asked for, and judged at once."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from testinfra.host import Host

from kiln import checks, run, topologies
from kiln.facts.fabric import FabricFacts
from kiln.facts.image import from_labels
from kiln.facts.node import NodeFacts
from kiln.facts.reading import BadReport
from kiln.receipt import Receipt
from kiln.smoke import gather, serving
from kiln.smoke.access import Access, CannotRun, Clock
from kiln.smoke.connection import NodeLost, TimedOut, of
from kiln.smoke.draft import BASELINE, CONNECTION, PROBES, PROCESS, PULL, TEARDOWN, Draft
from kiln.smoke.job import LOADING, Job
from kiln.smoke.node import Opened, Unfit, open_node
from kiln.smoke.pull import pull
from kiln.smoke.teardown import tear_down
from kiln.topologies import Topology
from kiln.verdict import Finding, Verdict, failed, not_run, passed

# What `after` may take although the deadline has passed.
AFTER_S = gather.SETTLED_S + gather.NODE_S
# What a step may end with, short of what it was to find out.
_SHORT = (BadReport, CannotRun, TimedOut, run.CutOff)
_BROKEN = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
_RIGHTS = {"root": "as root", "yes": "with sudo", "no": "without sudo: what only root can read is not known"}
Findings = tuple[Finding, ...]


@dataclass
class Session:
    """The run of a job. `bundle` makes the probes' bytes; `compare` holds a receipt against the node's baseline."""

    job: Job
    host: Host
    clock: Clock
    bundle: Callable[[], bytes]
    topologies: dict[str, Topology]
    compare: Callable[[Receipt], Findings]
    draft: Draft
    opened: Opened | None = None
    lost: NodeLost | None = None
    done: set[str] = field(default_factory=set)

    def findings(self, name: str) -> Findings:
        """Return what a step or a check found; the first that is asked of a phase makes the whole phase run."""
        steps = {CONNECTION: self._connect, PULL: self._pull, TEARDOWN: self._teardown, BASELINE: self._baseline}
        if step := steps.get(name):
            self._once(name, lambda: self._step(name, step))
        else:
            phase = name.partition("/")[0]
            self._once(phase, lambda: self._phase(phase))
        return self.draft.findings[name]

    def finish(self) -> Receipt:
        """Tear down and compare, unless that is done; returns the receipt."""
        self.findings(TEARDOWN)
        self.findings(BASELINE)
        return self.draft.receipt()

    def say(self, what: str) -> None:
        """Tell whoever looks what is being done."""
        self.job.now.write_text(what + "\n")

    @property
    def topology(self) -> Topology:
        return self.draft.topology or self.topologies[self.job.topology or topologies.ANY]

    def _once(self, name: str, act: Callable[[], None]) -> None:
        if name in self.done:
            return
        self.done.add(name)
        try:
            act()
        except Exception as error:
            cause, cure = "a fault of kiln itself", "report it with the log of this node's process"
            broken = failed(f"{name}: {type(error).__name__}: {error}", cause=cause, cure=cure)
            self.draft.tell(PROCESS, (*self.draft.findings.get(PROCESS, ()), broken))
            raise
        finally:
            self.draft.write()

    def _step(self, name: str, step: Callable[[], Findings]) -> None:
        try:
            found = step()
        except NodeLost as error:
            found = (self._note_loss(error),)
        except _SHORT as error:
            found = (not_run(str(error)),)
        self.draft.tell(name, found)

    def _note_loss(self, error: NodeLost) -> Finding:
        """From now on the connection is a failure; returns it."""
        self.lost = self.lost or error
        found = failed(str(error), cause=error.fault.cause, cure=error.fault.cure)
        self.draft.tell(CONNECTION, (found,))
        return found

    def _connect(self) -> Findings:
        self.say("connecting")
        began = time.monotonic()
        try:
            self.opened = open_node(self.host, self.job.id, self.bundle(), self.job.seconds)
        except Unfit as error:
            return (failed(str(error), cause=error.cause, cure=error.cure),)
        self.draft.node_name = self.opened.name
        message = f"reached {_RIGHTS[self.opened.sudo]}; containers by {self.opened.runtime or 'nothing'}"
        return (passed(message, connect_seconds=round(time.monotonic() - began, 2)),)

    def _access(self) -> Access:
        """Return the way to the node, connected if it was not. Raises CannotRun if there is none, or not any more."""
        self.findings(CONNECTION)
        if self.lost:
            raise CannotRun(f"the node was lost before: {self.lost}")
        if not self.opened:
            raise CannotRun("nothing can be run on the node, see run/connection")
        return Access(self.job, self.host, self.opened, self.clock, self.say, self.draft.times)

    def _pull(self) -> Findings:
        if not any(phase in LOADING for phase in self.job.phases):
            return (not_run("no chosen phase needs the image", required=False),)
        self._once("preflight", lambda: self._phase("preflight"))
        if unfit := self._unfit():
            return (unfit,)
        found, image = pull(self._access())
        if image:
            self._know(image=image)
        if image and not self.job.labels:  # what the registry did not tell is known now
            self._judge_all("preflight")
            return (self._unfit() or found,)
        return (found,)

    def _unfit(self) -> Finding | None:
        """Return why no image comes to this node, and none is started there; None if it is fit."""
        cause = "an image is not run on a node that is unfit, or not known"
        bad = [one.check for one in self.draft.of("preflight") if one.verdict is Verdict.FAIL]
        if bad:
            message = f"preflight failed: {', '.join(dict.fromkeys(bad))}"
            return not_run(message, cause=cause, cure="mend what failed")
        if self.draft.facts.node is None:
            return not_run("preflight knows nothing of the node", cause=cause, cure="see preflight")
        return None

    def _phase(self, phase: str) -> None:
        if phase not in self.job.phases:
            return
        began = time.monotonic()
        obstacle: Finding | None
        try:
            obstacle = self._obstacle(phase)
            if obstacle is None:
                self._gather(phase, self._access())
        except NodeLost as error:
            obstacle = replace(self._note_loss(error), verdict=Verdict.NOT_RUN)
        except _SHORT as error:
            obstacle = not_run(str(error))
        self._judge_all(phase, obstacle)
        self.draft.phase_done(phase, began)

    def _judge_all(self, phase: str, obstacle: Finding | None = None) -> None:
        for check in checks.load_all():
            if check.phase == phase:
                found = (replace(obstacle, required=check.required),) if obstacle else self._judge(check)
                self.draft.tell(check.name, found)

    def _judge(self, check: checks.Check) -> Findings:
        try:
            return check.run(self.draft.facts, self.topology)
        except _BROKEN as error:
            message = f"the check itself broke: {type(error).__name__}: {error}"
            return (not_run(message, cause="a fault of kiln", cure="report it", required=check.required),)

    def _obstacle(self, phase: str) -> Finding | None:
        """Return why a phase cannot be run; None if it can."""
        if phase not in LOADING or (self.job.python and phase != "server"):
            return None
        if self.job.python:
            return not_run("a server is started from an image only", cause="--python was given", cure="give --image")
        if not self.job.image:
            cause, cure = "neither --image nor --python was given", "give --image REF@sha256:…"
            return not_run("there is no image to run it in", cause=cause, cure=cure)
        pulled = self.findings(PULL)[0]
        if pulled.verdict is Verdict.PASS:
            return None
        return not_run(f"there is no image: {pulled.message}", cause=pulled.cause, cure=pulled.cure)

    def _gather(self, phase: str, access: Access) -> None:
        """Fill in the facts of one phase. Raises what its probes raise."""
        topology, facts = self.topology, self.draft.facts
        match phase:
            case "preflight":
                self._preflight(access)
            case "container":
                self._know(container=gather.container(access))
            case "fabric":
                self._fabric(*gather.fabric(access, topology))
            case "numerics":
                self._know(numerics=gather.numerics(access))
            case "server":
                labels = facts.image.labels if facts.image else {}
                version = labels.get("kiln.pin.sglang", "")
                gpus = facts.node.gpu_count if facts.node else 0
                self._know(server=serving.serve(access, topology, gpus, version))
            case "after":
                self._know(after=gather.after(replace(access, clock=self.clock.extended(AFTER_S)), topology))

    def _know(self, **facts: object) -> None:
        self.draft.facts = replace(self.draft.facts, **facts)  # type: ignore[arg-type]

    def _fabric(self, facts: FabricFacts, missing: dict[str, str]) -> None:
        self._know(fabric=facts)
        if missing:
            found = (not_run(why, name, cause="the probe has no result") for name, why in missing.items())
            self.draft.tell(PROBES, found)

    def _preflight(self, access: Access) -> None:
        job = self.job
        if job.image:
            image = from_labels(job.labels, ref=job.image, digest=job.digest, size_bytes=job.size_bytes)
            self._know(image=image)
        node = gather.node(access)
        self._know(node=node)
        self.draft.topology = self._match(node)

    def _match(self, node: NodeFacts) -> Topology:
        if self.job.topology:
            return self.topologies[self.job.topology]
        return topologies.match(
            self.topologies, node.gpu_names, node.gpu_count, sockets=node.sockets, switched=node.switched
        )

    def _teardown(self) -> Findings:
        """Remove what we put there, also when the time is up, or over a connection that may be gone."""
        if not self.opened:
            return (not_run("nothing was put on the node", required=False),)
        self.say("removing what was put on the node")
        of(self.host).stop = None
        return (tear_down(self.host, self.opened, self.job.seconds),)

    def _baseline(self) -> Findings:
        return self.compare(self.draft.receipt())
