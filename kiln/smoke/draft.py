"""The receipt while it grows: at every moment a whole one, in which what was not reached is NOT_RUN."""

from __future__ import annotations

import datetime
import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from kiln import checks, whole
from kiln.facts import Facts
from kiln.receipt import ImageTested, NodeTested, Phase, Receipt, outcomes
from kiln.scrub import hash_name
from kiln.smoke import told
from kiln.smoke.job import Job
from kiln.topologies import Topology
from kiln.verdict import Finding, Verdict, not_run, overall

# What the run itself does, told like checks; the last two only where something broke.
CONNECTION, PULL, TEARDOWN = "run/connection", "run/pull", "run/teardown"
PROBES, PROCESS = "run/probes", "run/process"
BASELINE = "baseline"
NOT_REACHED = "not reached"


def planned(job: Job) -> dict[str, tuple[Finding, ...]]:
    """Return a NOT_RUN for everything that the run is to find out, in its order."""
    steps = dict[str, tuple[Finding, ...]]()
    for phase in ("", *checks.PHASES):
        found = [_waiting(check, job) for check in checks.load_all() if check.phase == phase]
        steps |= {one.check: (one,) for one in found}
        step = {"": CONNECTION, "preflight": PULL if job.image else "", "after": TEARDOWN}.get(phase)
        if step:
            steps[step] = (replace(not_run(NOT_REACHED), check=step),)
    return steps


def _waiting(check: checks.Check, job: Job) -> Finding:
    left_out = check.phase not in job.phases
    message = f"phase {check.phase} was not chosen" if left_out else NOT_REACHED
    return replace(not_run(message, required=check.required and not left_out), check=check.name)


@dataclass
class Draft:
    """Findings by check, in the order of the run. `started` is UTC, `began` monotonic, `times` when probes began."""

    job: Job
    topology: Topology | None = None
    times: dict[str, float] = field(default_factory=dict)
    node_name: str = ""
    facts: Facts = field(default_factory=Facts)
    started: str = field(default_factory=lambda: datetime.datetime.now(datetime.UTC).isoformat())
    began: float = field(default_factory=time.monotonic)
    phases: list[Phase] = field(default_factory=list)
    findings: dict[str, tuple[Finding, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.findings = {**planned(self.job), **self.findings}

    def tell(self, name: str, found: Iterable[Finding]) -> None:
        """Put what was found in place of what stood there."""
        self.findings[name] = tuple(replace(one, check=one.check or name) for one in found)

    def of(self, phase: str) -> tuple[Finding, ...]:
        """Return the findings of one phase."""
        return tuple(one for name, found in self.findings.items() if name.startswith(f"{phase}/") for one in found)

    def phase_done(self, name: str, began: float) -> None:
        """Note how long a phase took."""
        start_s, seconds = began - self.began, time.monotonic() - began
        verdict = overall(self.of(name))
        self.phases.append(Phase(name=name, start_s=round(start_s, 2), seconds=round(seconds, 2), verdict=verdict))

    def receipt(self) -> Receipt:
        """Return the receipt as of now."""
        job, found = self.job, [one for group in self.findings.values() for one in group]
        missing = [f"{one.check}: {one.message}" for one in found if one.verdict is Verdict.NOT_RUN]
        return Receipt(
            schema="kiln/receipt/1",
            id=job.id,
            started=self.started,
            seconds=round(time.monotonic() - self.began, 1),
            kiln=job.kiln,
            verdict=overall(found),
            image=self._image(),
            preset=job.preset if "server" in job.phases else "",
            node=self._node(),
            phases=tuple(self.phases),
            outcomes=outcomes(found),
            not_run=tuple(missing),
            peer_gb_s=told.peers(self.facts),
            samples=told.samples(self.facts, self.times),
            server=told.server(self.facts, self.topology),
        )  # fmt: skip

    def _image(self) -> ImageTested:
        labels = self.facts.image.labels if self.facts.image else self.job.labels
        return ImageTested(ref=self.job.image, digest=self.job.digest, plan=labels.get("kiln.plan", ""), labels=labels)

    def _node(self) -> NodeTested:
        node = self.facts.node
        nvidia, host = (node.nvidia, node.host) if node else (None, None)
        return NodeTested(
            name_hash=hash_name(self.node_name or self.job.node),
            topology=self.topology.name if self.topology else self.job.topology,
            gpus=told.gpus(self.facts),
            driver=(nvidia and nvidia.driver) or "",
            cuda_of_driver=(nvidia and nvidia.cuda) or "",
            kernel=(host and host.kernel) or "",
        )

    def write(self) -> Path:
        """Write the receipt as far as it has come, in one step."""
        whole.write(self.job.draft, self.receipt().model_dump_json(by_alias=True).encode())
        return self.job.draft
