"""Facts of the server: how it came up, what it compiled, what it answered, how fast."""

from __future__ import annotations

from pydantic import Field

from kiln.facts.fabric import HeatSample
from kiln.facts.reading import Fact, Fault


class Step(Fact):
    """From this second on the server was in this state."""

    time_s: float
    state: str
    why: str


class Compiled(Fact):
    """A program of a toolkit that ran below the server, for which module, and how often."""

    program: str
    module: str
    count: int


class NcclMapped(Fact):
    """The NCCL libraries that one rank has mapped; None if that could not be read."""

    process: str
    libraries: tuple[str, ...] | None


class Stack(Fact):
    """Where a process of a stuck server was; None if py-spy could not tell."""

    process: str
    text: str | None


class StartFacts(Fact):
    """What the probe `serve` found. `timed_out`: neither READY nor STUCK nor DEAD when its time was over."""

    state: str
    seconds: float
    timed_out: bool
    timeline: tuple[Step, ...]
    alive: tuple[str, ...]
    missing: tuple[str, ...]
    orphans: tuple[str, ...]
    expected: dict[str, int] | None
    compiled: tuple[Compiled, ...]
    nccl: tuple[NcclMapped, ...]
    stacks: tuple[Stack, ...]
    faults: tuple[Fault, ...] = ()

    @property
    def why(self) -> str:
        """Return the last reason."""
        return self.timeline[-1].why if self.timeline else ""


class Same(Fact):
    """One prompt twice: how many of its tokens agree from the start."""

    tokens: int
    agree: int
    error: str


class Round(Fact):
    """Requests of mixed lengths, sent at once. `error`: why the round was not sent; the rest is then None."""

    requests: int
    error: str | None
    completed: int | None = None
    seconds: float | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    tok_s: float | None = None
    stalled: int | None = None
    not_finite: int | None = None
    errors: tuple[str, ...] = ()
    first_token_median_s: float | None = None
    first_token_worst_s: float | None = None
    longest_gap_s: float | None = None


class KnownAnswer(Fact):
    """A question and what came. `repetition`: share of the commonest token; `strange`: of characters no text has."""

    prompt: str
    prompt_length: int
    wanted: str
    got: str
    found: bool
    tokens: int
    repetition: float | None
    strange: float | None
    not_finite: int
    error: str | None


class LoadFacts(Fact):
    """What the probe `load` found. `resolved`: the settings as the server tells them; no `answers` without weights."""

    resolved: dict[str, str] | None
    same: Same | None
    rounds: tuple[Round, ...]
    answers: tuple[KnownAnswer, ...] | None
    compiled: tuple[Compiled, ...]
    samples: tuple[HeatSample, ...]
    faults: tuple[Fault, ...] = ()

    @property
    def tok_s(self) -> float | None:
        """Return the output tokens per second over all rounds; None if no round ran."""
        ran = [(one.output_tokens, one.seconds) for one in self.rounds if one.output_tokens and one.seconds]
        return sum(tokens for tokens, _ in ran) / sum(seconds for _, seconds in ran) if ran else None

    @property
    def power_w(self) -> float | None:
        """Return the mean power of all GPUs together while the load ran; None if NVML did not tell."""
        powers: dict[int, list[float]] = {}
        for one in self.samples:
            if one.power_w is not None:
                powers.setdefault(one.gpu, []).append(one.power_w)
        return sum(sum(each) / len(each) for each in powers.values()) if powers else None


class ReachFacts(Fact):
    """GPUs that a program started after the load could open, by NVML and by CUDA; None if one does not start at all."""

    nvml: int | None
    cuda: int | None
    faults: tuple[Fault, ...] = ()

    def fault(self, source: str) -> str:
        """Return what one of them said, if it failed."""
        return next((fault.error for fault in self.faults if fault.source == source), "")


class LogLine(Fact):
    """What a line of the log means by the rules: an explanation, never a verdict."""

    rule: str
    blames: str
    means: str
    cure: str
    line: str
    count: int


class ServerFacts(Fact):
    """A server's run. `wanted`: the preset's arguments; `load` and `reach` are None if it never became ready.

    `startup_s`: the phases that the log tells, in seconds. `log_tail`: its last lines.
    """

    preset: str
    wanted: dict[str, str]
    weights: bool
    start: StartFacts
    load: LoadFacts | None = None
    reach: ReachFacts | None = None
    startup_s: dict[str, float] = Field(default_factory=dict)
    log: tuple[LogLine, ...] = ()
    log_tail: tuple[str, ...] = ()
    exit_code: int | None = None
    faults: tuple[Fault, ...] = ()

    @property
    def compiled(self) -> tuple[Compiled, ...]:
        """Return all that was compiled, at the start and under load."""
        return (*self.start.compiled, *(self.load.compiled if self.load else ()))

    def blames(self, *kinds: str) -> tuple[LogLine, ...]:
        """Return the explained lines that blame one of these."""
        return tuple(one for one in self.log if one.blames in kinds)
