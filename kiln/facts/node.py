"""Facts of place `node`: what kiln/probe/node.py found on the host. None is "not known", never 0."""

from __future__ import annotations

from collections import Counter

from kiln.facts.reading import Fact, Fault

# What the capability ACS does to a peer copy: it goes up to the root port instead of straight across.
REDIRECTING = ("ReqRedir", "CmpltRedir")


class HostFacts(Fact):
    """The machine. `root` says whether the probe ran as root, `boot_s` when it booted (seconds since 1970)."""

    hostname: str
    root: bool
    kernel: str | None = None
    os: str | None = None
    boot_s: float | None = None
    cpus: int | None = None
    sockets: int | None = None
    numa_nodes: int | None = None
    memory_mib: float | None = None
    memory_available_mib: float | None = None


class GpuProcess(Fact):
    """A process that computes on a GPU."""

    pid: int
    name: str | None = None
    memory_mib: float | None = None


class GpuFacts(Fact):
    """One GPU as the driver tells it. Link values are of this moment: an idle link runs slower, never narrower."""

    index: int
    bus_id: str
    name: str | None = None
    compute_capability: str | None = None
    virtualization: str | None = None
    memory_total_mib: float | None = None
    memory_used_mib: float | None = None
    bar1_total_mib: float | None = None
    mig: bool | None = None
    mig_pending: bool | None = None
    compute_mode: str | None = None
    persistence: bool | None = None
    ecc: bool | None = None
    ecc_pending: bool | None = None
    ecc_volatile_corrected: int | None = None
    ecc_volatile_uncorrected: int | None = None
    ecc_aggregate_corrected: int | None = None
    ecc_aggregate_uncorrected: int | None = None
    remapped_correctable: int | None = None
    remapped_uncorrectable: int | None = None
    remap_pending: bool | None = None
    remap_failure: bool | None = None
    recovery_action: str | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    power_default_w: float | None = None
    power_max_w: float | None = None
    temperature_c: float | None = None
    utilization_percent: float | None = None
    sm_clock_mhz: float | None = None
    sm_clock_max_mhz: float | None = None
    throttle: tuple[str, ...] | None = None
    link_generation: int | None = None
    link_generation_max: int | None = None
    link_width: int | None = None
    link_width_max: int | None = None
    processes: tuple[GpuProcess, ...] | None = None

    @property
    def label(self) -> str:
        return f"GPU {self.index}"


class NvidiaFacts(Fact):
    """The driver's own answers; `source` is "nvml" or "nvidia-smi"."""

    source: str
    driver: str | None = None
    cuda: str | None = None
    libcuda: str | None = None
    gpus: tuple[GpuFacts, ...]


class ModuleFacts(Fact):
    """The kernel module that is loaded, and its parameters."""

    version: str | None = None
    open: bool | None = None
    parameters: dict[str, str] | None = None
    hmm_disabled: bool | None = None


class Aer(Fact):
    """PCIe errors since boot by kind, those that happened only."""

    correctable: dict[str, int]
    nonfatal: dict[str, int]
    fatal: dict[str, int]


class PciGpu(Fact):
    """A GPU on the PCI bus, whether or not a driver has it. `bridges` are those above it, the root port first."""

    bus_id: str
    device: str | None = None
    present: bool | None = None
    driver: str | None = None
    width: int | None = None
    width_max: int | None = None
    speed_gt_s: float | None = None
    speed_max_gt_s: float | None = None
    numa_node: int | None = None
    iommu: str | None = None
    aer: Aer | None = None
    bridges: tuple[str, ...] = ()


class Bridge(Fact):
    """A bridge above a GPU. `acs` holds the access controls that are switched on."""

    bus_id: str
    acs: tuple[str, ...] | None = None
    aer: Aer | None = None

    @property
    def redirects(self) -> bool:
        return bool({*REDIRECTING} & {*(self.acs or ())})


class PciFacts(Fact):
    """The PCI bus as the kernel knows it. `cmdline` are the boot parameters that concern it."""

    gpus: tuple[PciGpu, ...]
    bridges: tuple[Bridge, ...]
    cmdline: tuple[str, ...] | None = None
    aspm: str | None = None

    @property
    def counted(self) -> dict[str, Aer]:
        """Return the errors of every GPU and bridge whose errors the kernel counts."""
        gpus = {gpu.bus_id: gpu.aer for gpu in self.gpus}
        both = {**gpus, **{bridge.bus_id: bridge.aer for bridge in self.bridges}}
        return {bus_id: aer for bus_id, aer in both.items() if aer is not None}


class Xid(Fact):
    """An error that the driver wrote to the kernel log; the time is seconds since 1970."""

    time_s: float | None = None
    bus_id: str
    code: int
    text: str


class LogLine(Fact):
    """A line of the kernel log."""

    time_s: float | None = None
    text: str


class KernelLogFacts(Fact):
    """The kernel log; `from_boot` is false where its beginning is lost."""

    source: str
    from_boot: bool | None = None
    xids: tuple[Xid, ...]
    driver_errors: tuple[LogLine, ...]
    pcie_errors: tuple[LogLine, ...]


class LimitFacts(Fact):
    """Limits of a process, -1 is "unlimited". `of` names whose: the engine hands its own on to containers."""

    of: str
    memlock_bytes: int | None = None
    nofile: int | None = None
    stack_bytes: int | None = None


class ShmFacts(Fact):
    """/dev/shm, and NCCL's segments there that no process has open."""

    total_mib: float
    free_mib: float
    stale_nccl: tuple[str, ...]


class DiskFacts(Fact):
    """The file system that a path lies on. `purpose` is "images" or "cache"; a network's has no sizes."""

    purpose: str
    path: str
    mount: str
    kind: str
    total_bytes: int | None = None
    free_bytes: int | None = None


class ClockFacts(Fact):
    """Whether the kernel's clock is synchronised, and its largest error."""

    synchronised: bool
    max_error_s: float


class PortFacts(Fact):
    """A TCP port that the smoke run wants."""

    port: int
    free: bool
    owner: str | None = None


class ServerProcess(Fact):
    """A process of an SGLang server that is no zombie. An orphan's parent is no SGLang process, and it is no parent."""

    pid: int
    title: str
    orphan: bool


class CdiSpec(Fact):
    """A CDI file: how many GPUs it lists, and the driver whose libraries it names."""

    path: str
    gpus: int
    driver: str | None = None


class ContainerEngineFacts(Fact):
    """What starts containers with GPUs here. `hook` says whether the toolkit's runtime hook is installed."""

    docker: str | None = None
    runtimes: tuple[str, ...] | None = None
    toolkit: str | None = None
    hook: bool
    cdi: tuple[CdiSpec, ...]


class NodeFacts(Fact):
    """What the probe `node` found. `containers_wanted` is false where the run uses a Python of the node instead."""

    faults: tuple[Fault, ...] = ()
    time_s: float
    containers_wanted: bool
    image_size_bytes: int | None = None
    host: HostFacts | None = None
    nvidia: NvidiaFacts | None = None
    module: ModuleFacts | None = None
    pci: PciFacts | None = None
    kernel_log: KernelLogFacts | None = None
    limits: LimitFacts | None = None
    shm: ShmFacts | None = None
    disks: tuple[DiskFacts, ...] | None = None
    clock: ClockFacts | None = None
    ports: tuple[PortFacts, ...] | None = None
    servers: tuple[ServerProcess, ...] | None = None
    containers: ContainerEngineFacts | None = None

    def why(self, *words: str) -> str:
        """Return what the probe says about sources that contain one of the words; empty if nothing."""
        told = (one for one in self.faults if any(word in one.source for word in words))
        return "; ".join(f"{one.source}: {one.error}" for one in told)

    @property
    def gpus(self) -> tuple[GpuFacts, ...]:
        return self.nvidia.gpus if self.nvidia else ()

    @property
    def gpu_names(self) -> tuple[str, ...]:
        return tuple(sorted({gpu.name for gpu in self.gpus if gpu.name}))

    @property
    def gpu_count(self) -> int:
        """Return how many GPUs there are: on the bus or by the driver, whichever sees more."""
        return max(len(self.pci.gpus) if self.pci else 0, len(self.gpus))

    @property
    def sockets(self) -> int | None:
        return self.host.sockets if self.host else None

    @property
    def switched(self) -> bool | None:
        """Say whether GPUs share a bridge, that is, a PCIe switch."""
        if self.pci is None:
            return None
        return max(Counter(bridge for gpu in self.pci.gpus for bridge in gpu.bridges).values(), default=0) > 1
