"""What a person decides in versions.yaml, as values: GPUs, stacks, kernel sets."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

ArchForm = Literal["family", "exact"]
Text = Annotated[str, Field(min_length=1)]


def yes_or_no(value: object) -> bool:
    """Read "yes" or "no", the only two spellings of a switch."""
    if value not in ("yes", "no"):
        raise ValueError(f'{value!r} is neither "yes" nor "no"')
    return value == "yes"


Switch = Annotated[bool, BeforeValidator(yes_or_no)]


class Model(BaseModel):
    """A block of a YAML file: frozen, and an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Arch(Model):
    """One GPU's architecture as each consumer spells it; `family` and `exact` are FlashInfer's two forms."""

    family: Text
    exact: Text
    torch: Text
    cmake: Text

    def of(self, form: ArchForm) -> str:
        """Return FlashInfer's spelling."""
        return self.family if form == "family" else self.exact


class NvccMin(Model):
    """The oldest nvcc that compiles for each form of the architecture."""

    family: Text
    exact: Text

    def of(self, form: ArchForm) -> str:
        """Return the oldest nvcc for the form."""
        return self.family if form == "family" else self.exact


class Gpu(Model):
    """A GPU target: what the kernels are compiled for and how a node carries it."""

    name: Text
    names: Annotated[tuple[Text, ...], Field(min_length=1)]
    compute_capability: Text
    per_node: Annotated[int, Field(ge=1)]
    interconnect: Literal["pcie", "nvlink"]
    arch: Arch
    nvcc_min: NvccMin

    @property
    def sm(self) -> str:
        """Return the compute capability without its dot: "120"."""
        return self.compute_capability.replace(".", "")


class Base(Model):
    """Where the root file system comes from: a Debian suite, or another image by digest."""

    suite: Text | None = None
    components: tuple[Text, ...] = ("main",)
    security: Switch = False
    image: Text | None = None
    digest: Text | None = None


class Stack(Model):
    """Versions that are built and tested together.

    A loaded stack has its `{component}`, `{cuda}` and `{toolkit}` placeholders filled in; `gpus` is empty for "every
    GPU". `cuda` is what torch and its libraries are for; `toolkit` is set where another CUDA compiles the kernels.
    """

    name: Text
    summary: Text
    python: Text
    cuda: Text
    toolkit: Text | None = None
    arch_form: ArchForm
    kernels: Text
    base: Base
    components: dict[Text, Text]
    launcher: Annotated[tuple[Text, ...], Field(min_length=1)]
    as_of: Text | None = None
    gpus: tuple[Text, ...] = ()
    python_packages: dict[Text, tuple[Text, ...]]
    no_deps: dict[Text, tuple[Text, ...]] = Field(default_factory=dict)
    constraints: tuple[Text, ...] = ()
    overrides: tuple[Text, ...] = ()

    @property
    def nvcc(self) -> str:
        """Return the CUDA that compiles kernels, and whose runtime they link."""
        return self.toolkit or self.cuda

    def requirements(self, image: str) -> tuple[str, ...]:
        """Return the roots that `image` installs with their dependencies."""
        return self.python_packages.get(image, ())

    def no_deps_requirements(self, image: str) -> tuple[str, ...]:
        """Return the roots that `image` installs without their dependencies."""
        return self.no_deps.get(image, ())

    def supports(self, gpu: str) -> bool:
        """Say whether the stack is meant for the GPU."""
        return not self.gpus or gpu in self.gpus


class KernelSet(Model):
    """Name globs over FlashInfer's own enumeration of modules, for "all" GPUs or for one."""

    name: Text
    summary: Text
    extends: Text | None = None
    modules: dict[Text, tuple[Text, ...]] = Field(default_factory=dict)


class Defaults(Model):
    """What a command means when it is not told."""

    gpu: Text
    stack: Text
    image: Text


class Proof(Model):
    """Where images for one GPU target must have passed: on each of these topologies (globs), on so many nodes."""

    topologies: Annotated[tuple[Text, ...], Field(min_length=1)]
    nodes: Annotated[int, Field(ge=1)]


class Promotion(Model):
    """What the receipts of a digest must show before it gets a tag; decides nothing about how an image is built."""

    max_age_days: Annotated[int, Field(ge=1)]
    max_failing_nodes: Annotated[int, Field(ge=0)]
    phases: Annotated[tuple[Text, ...], Field(min_length=1)]
    may_be_not_run: tuple[Text, ...] = ()
    gpus: Annotated[dict[Text, Proof], Field(min_length=1)]


class Intent(Model):
    """The whole of versions.yaml."""

    defaults: Defaults
    gpus: Annotated[dict[Text, Gpu], Field(min_length=1)]
    stacks: Annotated[dict[Text, Stack], Field(min_length=1)]
    kernel_sets: Annotated[dict[Text, KernelSet], Field(min_length=1)]
    tools: dict[Text, Text]
    promotion: Promotion | None = None
