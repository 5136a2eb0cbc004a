"""A receipt: what was run on a node, when, with which image, and what came of it."""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints

from kiln.verdict import Finding, Verdict

SCHEMA: Literal["kiln/receipt/1"] = "kiln/receipt/1"


def _finite(value: object) -> object:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _utc(text: str) -> str:
    moment = datetime.datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(f"{text!r} has no time zone: 2026-02-25T12:00:00Z is meant")
    return moment.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


Number = Annotated[float | None, BeforeValidator(_finite)]
"""A measured number; JSON has no NaN and no infinity, both become null."""
Seconds = Annotated[float, Field(ge=0)]
Moment = Annotated[str, AfterValidator(_utc)]
Digest = Annotated[str, StringConstraints(pattern=r"^(sha256:[0-9a-f]{64})?$")]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Outcome(_Part):
    """One finding of one check; see kiln.verdict.Finding."""

    check: str
    verdict: Verdict
    message: str
    subject: str = ""
    cause: str = ""
    cure: str = ""
    numbers: dict[str, Number] = Field(default_factory=dict)
    required: bool = True

    @property
    def counts(self) -> bool:
        """Whether it takes part in a node's verdict."""
        return self.required or self.verdict is not Verdict.NOT_RUN


class ImageTested(_Part):
    """The image: `digest` is that of its manifest; a node smoked without an image has none of them."""

    ref: str = ""
    digest: Digest = ""
    plan: str = ""
    labels: dict[str, str] = Field(default_factory=dict)


class Gpu(_Part):
    """One GPU of the node, without what identifies the card. Units: MiB, W."""

    index: int
    name: str
    memory_mib: Number = None
    power_limit_w: Number = None


class NodeTested(_Part):
    """The node, its name hashed by kiln.scrub.hash_name."""

    name_hash: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{8,64}$")]
    topology: str
    gpus: tuple[Gpu, ...] = ()
    driver: str = ""
    cuda_of_driver: str = ""
    kernel: str = ""

    @property
    def cards(self) -> str:
        """The GPUs in words: "8 × NVIDIA H200"."""
        names = [gpu.name for gpu in self.gpus]
        return ", ".join(f"{names.count(name)} × {name}" for name in dict.fromkeys(names)) or "no GPU"

    @property
    def power_limit(self) -> str:
        """The power caps of the GPUs in words: "600 W", "450 W, 600 W", "unknown"."""
        caps = {gpu.power_limit_w for gpu in self.gpus}
        known = sorted(cap for cap in caps if cap is not None)
        return ", ".join([*(f"{cap:.0f} W" for cap in known), *(["unknown"] if None in caps or not caps else [])])


class Phase(_Part):
    """One phase: when it began after the run's start, how long it took (seconds), and the worst it found."""

    name: str
    start_s: Seconds
    seconds: Seconds
    verdict: Verdict


class Sample(_Part):
    """One moment of one GPU during the load; what NVML did not tell is None."""

    time_s: float
    gpu: int
    power_w: Number = None
    temperature_c: Number = None
    utilization_percent: Number = None
    sm_clock_mhz: Number = None
    memory_used_mib: Number = None
    throttle: tuple[str, ...] = ()


class ServerStep(_Part):
    """From this second on the server was in this state."""

    time_s: float
    state: str
    why: str = ""


class Server(_Part):
    """The server's run: states, start-up phases (seconds), rates, and the log lines that explain."""

    timeline: tuple[ServerStep, ...] = ()
    startup_s: dict[str, Number] = Field(default_factory=dict)
    throughput_tok_s: Number = None
    floor_tok_s: Number = None
    power_w: Number = None
    log_excerpts: tuple[str, ...] = ()


class Receipt(_Part):
    """What happened on one node. Times are UTC, ISO 8601."""

    schema_: Literal["kiln/receipt/1"] = Field(default=SCHEMA, alias="schema")
    id: Annotated[str, Field(min_length=1)]
    started: Moment
    seconds: Seconds
    kiln: str
    verdict: Verdict
    image: ImageTested
    preset: str = ""
    node: NodeTested
    phases: tuple[Phase, ...] = ()
    outcomes: tuple[Outcome, ...] = ()
    not_run: tuple[str, ...] = ()
    peer_gb_s: tuple[tuple[Number, ...], ...] = ()
    samples: tuple[Sample, ...] = ()
    server: Server | None = None

    @property
    def began(self) -> datetime.datetime:
        """When it was started."""
        return datetime.datetime.fromisoformat(self.started)

    def of(self, *verdicts: Verdict) -> tuple[Outcome, ...]:
        """Return the outcomes with one of some verdicts, in the order of the checks."""
        return tuple(one for one in self.outcomes if one.verdict in verdicts)

    def as_dict(self) -> dict[str, Any]:
        """Return what stands in its file."""
        return self.model_dump(mode="json", by_alias=True)


def outcomes(findings: Iterable[Finding]) -> tuple[Outcome, ...]:
    """Return findings as they go into a receipt."""
    return tuple(Outcome.model_validate(one.as_dict()) for one in findings)


def schema() -> dict[str, Any]:
    """Return the JSON Schema of a receipt's file, as docs/receipt.schema.json has it."""
    return {**Receipt.model_json_schema(by_alias=True), "title": "kiln receipt"}
