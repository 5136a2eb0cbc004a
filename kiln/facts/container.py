"""Facts of place `container`: what a program in the image gets, or with the Python that `--python` names."""

from __future__ import annotations

from kiln.facts.node import ShmFacts
from kiln.facts.reading import Fact, Fault


class CudaGpu(Fact):
    """A GPU as the CUDA driver shows it to a program."""

    gpu: int
    name: str
    compute_capability: str
    memory_bytes: int


class LibcudaFacts(Fact):
    """The driver's library that a program maps: its file, the version in the file's name, the CUDA that it speaks."""

    path: str | None
    version: str | None
    cuda: str | None


class TorchFacts(Fact):
    """torch: `archs` is what its kernels were compiled for ("sm_120"), `gpus` the compute capabilities that it sees."""

    version: str
    cuda: str | None
    archs: tuple[str, ...]
    gpus: tuple[str, ...]
    error: str | None


class NcclFacts(Fact):
    """One libnccl mapped into a program that uses torch and loads NCCL by its name."""

    path: str
    version: str | None


class FlashinferFacts(Fact):
    """FlashInfer, imported: its version and the architectures for which it would compile ("12.0f")."""

    version: str
    archs: tuple[str, ...]


class ContainerLimits(Fact):
    """Limits that hold in the container, -1 for none."""

    memlock_bytes: int
    nofile: int
    stack_bytes: int


class CacheFacts(Fact):
    """Where compiled kernels go: `kind` is the file system's, `error` why no file can be made there."""

    path: str
    kind: str | None
    writable: bool
    error: str | None


class CompilerFacts(Fact):
    """An nvcc or ptxas; `archs` is what it can compile for, None if it did not say."""

    path: str
    version: str | None
    archs: tuple[str, ...] | None

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]


class ContainerFacts(Fact):
    """What the probe `container` found. `driver` is the version of the node's kernel module."""

    gpus: tuple[CudaGpu, ...]
    driver: str | None
    libcuda: LibcudaFacts | None
    torch: TorchFacts | None
    nccl: tuple[NcclFacts, ...] | None
    flashinfer: FlashinferFacts | None
    packages: dict[str, str]
    shm: ShmFacts | None
    limits: ContainerLimits
    cache: CacheFacts
    compilers: tuple[CompilerFacts, ...]
    environment: dict[str, str]
    faults: tuple[Fault, ...] = ()

    def fault(self, source: str) -> str:
        """Return why something could not be read, if the probe said so."""
        return next((fault.error for fault in self.faults if fault.source == source), "")
