"""Facts of the fabric: copies, peers, IPC, all-reduce, heat. Each part is the answer of the probe of its name."""

from __future__ import annotations

from typing import Literal

from kiln.facts.reading import Fact, Fault


class EndedFacts(Fact):
    """How a child process ended; `error` says in one line why not well, `not_run` why it could not look."""

    reason: Literal["exit", "signal", "deadline", "peer", "unkillable"]
    code: int | None
    seconds: float
    error: str | None
    not_run: str | None
    leftovers: int

    @property
    def hung(self) -> bool:
        return self.reason in ("deadline", "unkillable")


class Part(Fact):
    """What all parts have."""

    faults: tuple[Fault, ...] = ()

    @property
    def why(self) -> str:
        """Return the probe's first fault, for a fact that is not known."""
        return self.faults[0].error if self.faults else ""


class GpuCopies(Fact):
    """Copies between pinned host memory and one GPU, and the lowest state of its link meanwhile."""

    gpu: int
    name: str
    h2d_gb_s: float | None = None
    d2h_gb_s: float | None = None
    looks: int = 0
    link_generation: int | None = None
    link_width: int | None = None
    ended: EndedFacts | None = None

    @property
    def label(self) -> str:
        return f"GPU {self.gpu}"


class BandwidthFacts(Part):
    """What the probe `bandwidth` found."""

    bytes: int
    gpus: tuple[GpuCopies, ...]


class PairCopies(Fact):
    """Copies from one GPU to another; `access` is whether the driver allows peer access, `between` what NVML knows."""

    source: int
    target: int
    between: str | None = None
    access: bool | None = None
    bytes: int | None = None
    wrong_words: int | None = None
    gb_s: float | None = None
    latency_us: float | None = None
    ended: EndedFacts | None = None

    @property
    def label(self) -> str:
        return f"GPU {self.source} -> {self.target}"

    @property
    def crosses(self) -> bool | None:
        """Say whether the copy crosses sockets; None if it is not known."""
        return None if self.between is None else self.between == "system"


class ConcurrentCopies(Fact):
    """All ordered pairs at once."""

    pairs: int | None = None
    bytes: int | None = None
    wrong_words: int | None = None
    wrong_pairs: tuple[str, ...] = ()
    gb_s: float | None = None
    slowest_pair: str | None = None
    slowest_gb_s: float | None = None
    ended: EndedFacts | None = None


class PeersFacts(Part):
    """What the probe `peers` found; `concurrent` is None with one GPU."""

    gpus: int
    pairs: tuple[PairCopies, ...]
    concurrent: ConcurrentCopies | None

    def matrix(self) -> tuple[tuple[float | None, ...], ...]:
        """Return GB/s by source and target; None on the diagonal and where it is not known."""
        speed = {(pair.source, pair.target): pair.gb_s for pair in self.pairs}
        indexes = sorted({pair.source for pair in self.pairs})
        return tuple(tuple(speed.get((source, target)) for target in indexes) for source in indexes)


class IpcPair(Fact):
    """Memory of `owner` opened by a second process on `opener`; `wrong_words` is None if they did not come so far."""

    owner: int
    opener: int
    bytes: int
    wrong_words: int | None
    ended: dict[str, EndedFacts]

    @property
    def label(self) -> str:
        return f"GPU {self.owner} -> {self.opener}"


class IpcFacts(Part):
    """What the probe `ipc` found."""

    pairs: tuple[IpcPair, ...]


class RankFacts(Fact):
    """One rank: the last thing that it began, and how many of its values were wrong."""

    rank: int
    gpu: int
    step: str
    wrong: int
    ended: EndedFacts


class Reduced(Fact):
    """One size, in the time of the slowest rank; bus bandwidth as nccl-tests defines it."""

    bytes: int
    latency_us: float
    busbw_gb_s: float


class NcclLog(Fact):
    """What NCCL said: transports by name with their number of channels."""

    version: str | None
    channels: int | None
    transports: dict[str, int]
    patterns: tuple[str, ...]
    warnings: tuple[str, ...]


class ReduceRun(Fact):
    """One run of a group."""

    good: bool
    ranks: tuple[RankFacts, ...]
    numbers: tuple[Reduced, ...]
    nccl: NcclLog

    @property
    def wrong(self) -> int:
        return sum(rank.wrong for rank in self.ranks)

    @property
    def not_run(self) -> str | None:
        return next((rank.ended.not_run for rank in self.ranks if rank.ended.not_run), None)


class ReduceGroup(ReduceRun):
    """A group of GPUs; `without_p2p` is the second run of one that failed, with NCCL_P2P_DISABLE=1."""

    gpus: tuple[int, ...]
    without_p2p: ReduceRun | None

    @property
    def label(self) -> str:
        return f"GPUs {','.join(str(gpu) for gpu in self.gpus)}"


class AllreduceFacts(Part):
    """What the probe `allreduce` found. `not_run` are sizes of groups for which there are too few GPUs."""

    backend: str
    device: str
    gpus: int
    environment: dict[str, str]
    asked: tuple[int, ...]
    not_run: tuple[int, ...]
    groups: tuple[ReduceGroup, ...]


class HeatSample(Fact):
    """One moment of one GPU; what NVML did not tell is None."""

    time_s: float
    gpu: int
    power_w: float | None
    temperature_c: float | None
    utilization_percent: float | None
    sm_clock_mhz: float | None
    memory_used_mib: float | None
    throttle: tuple[str, ...] | None


class HeatGpu(Fact):
    """One GPU under load: TFLOP/s second by second, and how many results differed from the first."""

    gpu: int
    name: str
    power_limit_w: float | None
    tflops: tuple[float, ...]
    wrong: int | None
    ended: EndedFacts

    @property
    def label(self) -> str:
        return f"GPU {self.gpu}"


class HeatStop(Fact):
    """The GPU that grew too hot, and ended it for all."""

    gpu: int
    temperature_c: float


class HeatFacts(Part):
    """What the probe `heat` found; `seconds` is how long it was to last."""

    seconds: float
    stopped: HeatStop | None
    gpus: tuple[HeatGpu, ...]
    samples: tuple[HeatSample, ...]

    def of(self, gpu: int, after_s: float = 0) -> tuple[HeatSample, ...]:
        """Return the samples of one GPU under load, those from `after_s` after the load began.

        The load begins with the first sample that shows the GPU at work: libraries are loaded before.
        """
        own = [sample for sample in self.samples if sample.gpu == gpu]
        busy = [sample.time_s for sample in own if (sample.utilization_percent or 0) >= 90]
        return tuple(s for s in own if busy and busy[0] + after_s <= s.time_s <= busy[-1])


class FabricFacts(Fact):
    """The fabric; a part that was not probed is None."""

    bandwidth: BandwidthFacts | None = None
    peers: PeersFacts | None = None
    ipc: IpcFacts | None = None
    allreduce: AllreduceFacts | None = None
    heat: HeatFacts | None = None
