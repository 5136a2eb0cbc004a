"""versions.yaml as a whole: what its blocks say about each other."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Iterator

from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import Version

from kiln import family, names, pins, placeholders
from kiln.errors import Problem
from kiln.intent import Base, Gpu, Intent, KernelSet, Stack
from kiln.yamlfile import Document

# Distributions that carry a component's version under another name.
CARRIERS = {
    "flashinfer-python": "flashinfer",
    "flashinfer-cubin": "flashinfer",
    "flashinfer-jit-cache": "flashinfer",
}


def problems(intent: Intent, document: Document) -> list[Problem]:
    """Return everything that is wrong with a file whose blocks are well formed."""
    rules = _Rules(intent, document)
    return list(rules.run())


class _Rules:
    def __init__(self, intent: Intent, document: Document) -> None:
        self.intent = intent
        self.document = document

    def run(self) -> Iterator[Problem]:
        yield from self.named()
        yield from self.defaults()
        yield from self.shared_names()
        for gpu in self.intent.gpus.values():
            yield from self.gpu(gpu, f"gpus.{gpu.name}")
        for stack in self.intent.stacks.values():
            yield from self.stack(stack, f"stacks.{stack.name}")
        for kernel_set in self.intent.kernel_sets.values():
            yield from self.kernel_set(kernel_set, f"kernel_sets.{kernel_set.name}")
        for tool, version in self.intent.tools.items():
            yield from self.fault(f"tools.{tool}", pins.version_fault(version, parts=2))
        for name in self.intent.promotion.gpus if self.intent.promotion else ():
            yield from self.unknown(f"promotion.gpus.{name}", "GPU", name, {**self.intent.gpus})

    def problem(self, path: str, message: str, hint: str) -> Problem:
        return Problem(self.document.at(path), f"{path}: {message}", hint)

    def fault(self, path: str, fault: pins.Fault) -> Iterator[Problem]:
        if fault is not None:
            yield self.problem(path, *fault)

    def unknown(self, path: str, kind: str, name: str, known: dict[str, object]) -> Iterator[Problem]:
        if name not in known:
            yield names.unknown(kind, name, known, self.document.at(path), path)

    def named(self) -> Iterator[Problem]:
        for section in ("gpus", "stacks", "kernel_sets"):
            for name in getattr(self.intent, section):
                if not names.SLUG.fullmatch(name):
                    hint = "use lower-case letters, digits, dots and dashes: the name goes into tags and paths"
                    yield self.problem(f"{section}.{name}", f"{name!r} is not a name", hint)

    def defaults(self) -> Iterator[Problem]:
        defaults = self.intent.defaults
        yield from self.unknown("defaults.gpu", "GPU", defaults.gpu, {**self.intent.gpus})
        yield from self.unknown("defaults.stack", "stack", defaults.stack, {**self.intent.stacks})

    def shared_names(self) -> Iterator[Problem]:
        count = Counter(name for gpu in self.intent.gpus.values() for name in set(gpu.names))
        for gpu in self.intent.gpus.values():
            for index, name in enumerate(gpu.names):
                if count[name] > 1 or name in gpu.names[:index]:
                    hint = "keep it in one place: a node's GPU tells its target by this name"
                    yield self.problem(f"gpus.{gpu.name}.names[{index}]", f"{name!r} is there twice", hint)

    def gpu(self, gpu: Gpu, path: str) -> Iterator[Problem]:
        fault = pins.capability_fault(gpu.compute_capability)
        yield from self.fault(f"{path}.compute_capability", fault)
        for form in ("family", "exact"):
            yield from self.fault(f"{path}.nvcc_min.{form}", pins.minor_fault(getattr(gpu.nvcc_min, form)))
        if fault is not None:
            return
        if gpu.name[2:].isdigit() and gpu.name != f"sm{gpu.sm}":
            yield self.problem(path, f"is compute capability {gpu.compute_capability}", f"call it sm{gpu.sm}")
        for consumer in ("family", "exact", "torch", "cmake"):
            text = getattr(gpu.arch, consumer)
            yield from self.fault(f"{path}.arch.{consumer}", pins.arch_fault(text, gpu.compute_capability, consumer))

    def stack(self, stack: Stack, path: str) -> Iterator[Problem]:
        yield from self.fault(f"{path}.python", pins.minor_fault(stack.python))
        yield from self.base(stack.base, f"{path}.base")
        yield from self.unknown(f"{path}.kernels", "kernel set", stack.kernels, {**self.intent.kernel_sets})
        for index, gpu in enumerate(stack.gpus):
            yield from self.unknown(f"{path}.gpus[{index}]", "GPU", gpu, {**self.intent.gpus})
        if stack.as_of is not None and not _is_date(stack.as_of):
            yield self.problem(f"{path}.as_of", f"{stack.as_of!r} is not a date", 'write YYYY-MM-DD: "2026-02-25"')
        cuda = pins.minor_fault(stack.cuda)
        yield from self.fault(f"{path}.cuda", cuda)
        if stack.toolkit is not None:
            yield from self.fault(f"{path}.toolkit", pins.toolkit_fault(stack.toolkit, stack.cuda))
        if pins.minor_fault(stack.nvcc) is None:
            yield from self.nvcc(stack, f"{path}.{'toolkit' if stack.toolkit else 'cuda'}", path)
        yield from self.components(stack, path, flavour=cuda is None)
        for where, line in placeholders.requirements(stack):
            yield from self.requirement(stack, f"{path}.{where}", line)

    def nvcc(self, stack: Stack, key: str, path: str) -> Iterator[Problem]:
        for gpu in self.intent.gpus.values():
            needed = gpu.nvcc_min.of(stack.arch_form)
            if not stack.supports(gpu.name) or pins.minor_fault(needed) is not None:
                continue
            if Version(stack.nvcc) < Version(needed):
                arch = gpu.arch.of(stack.arch_form)
                message = f"nvcc {stack.nvcc} is older than {needed}, which {gpu.name}'s {arch} needs"
                hint = f"raise it to {needed}, try the other arch_form, or list the stack's GPUs in {path}.gpus"
                yield self.problem(key, message, hint)

    def components(self, stack: Stack, path: str, *, flavour: bool) -> Iterator[Problem]:
        for name, version in stack.components.items():
            where = f"{path}.components.{name}"
            fault = pins.version_fault(version)
            yield from self.fault(where, fault)
            if name in ("cuda", "toolkit"):
                yield self.problem(where, "is a key of the stack, not a component", f"set {path}.{name}")
            if name == "torch" and fault is None and flavour:
                yield from self.fault(where, pins.local_fault(version, stack.cuda))

    def base(self, base: Base, path: str) -> Iterator[Problem]:
        if base.suite is not None and base.image is not None:
            yield self.problem(path, "has a suite and an image", "keep one: Debian packages of the lock, or an image")
        elif base.image is not None and base.digest is None:
            hint = "add digest: sha256 of the platform's manifest, as `skopeo inspect` prints it"
            yield self.problem(path, f"image {base.image!r} has no digest", hint)
        elif base.suite is None and base.image is None:
            yield self.problem(path, "has neither a suite nor an image", 'write suite: "bookworm", or image and digest')
        elif base.suite is not None and base.digest is not None:
            yield self.problem(f"{path}.digest", "belongs to an image", "remove it, or replace suite by image")
        if base.digest is not None:
            yield from self.fault(f"{path}.digest", pins.digest_fault(base.digest))

    def requirement(self, stack: Stack, path: str, line: str) -> Iterator[Problem]:
        known = placeholders.values(stack)
        holes = [hole for hole in placeholders.HOLE.findall(line) if hole not in known]
        for hole in holes:
            yield self.problem(path, f"there is no placeholder {{{hole}}}", names.hint(hole, known))
        if holes or self.leans_on_a_fault(stack, line):
            return
        text = placeholders.HOLE.sub(lambda hole: known[hole[1]], line)
        try:
            requirement = Requirement(text)
        except InvalidRequirement as error:
            yield self.problem(path, f"{text!r} is not a requirement", str(error).splitlines()[0])
            return
        if requirement.url is not None:
            yield self.problem(path, f"{text!r} names a place", "name the distribution: the lock finds its file")
        yield from self.fault(path, _contradiction(requirement, stack))

    def leans_on_a_fault(self, stack: Stack, line: str) -> bool:
        """Say whether a version that the line takes over is reported already."""
        return any(pins.version_fault(stack.components.get(hole, "0.0.0")) for hole in placeholders.HOLE.findall(line))

    def kernel_set(self, kernel_set: KernelSet, path: str) -> Iterator[Problem]:
        if not any(kernel_set.modules.values()):
            yield self.problem(path, "has no modules", 'add globs: modules: {all: ["…"]}; inv show lists the names')
        for key in kernel_set.modules:
            if key != "all":
                yield from self.unknown(f"{path}.modules.{key}", "GPU", key, {**self.intent.gpus})
        sets = self.intent.kernel_sets
        if kernel_set.extends is not None:
            yield from self.unknown(f"{path}.extends", "kernel set", kernel_set.extends, {**sets})
        cycle = _cycle(kernel_set.name, sets)
        if cycle:
            yield self.problem(f"{path}.extends", f"goes round: {' -> '.join(cycle)}", "remove one `extends` of these")


def _contradiction(requirement: Requirement, stack: Stack) -> pins.Fault:
    component = CARRIERS.get(requirement.name, requirement.name)
    version = stack.components.get(component)
    if version is not None and pins.version_fault(version) is None:
        if requirement.specifier.contains(version, prereleases=True):
            return None
        return f"'{requirement}' contradicts {component} {version}", f'write "{requirement.name}=={{{component}}}"'
    own = family.cuda_of(requirement.name, stack)
    exact = [spec.version for spec in requirement.specifier if spec.operator == "=="]
    if own and any(not own.fits(text) for text in exact):
        return f"'{requirement}' contradicts {own}", f'write "{requirement.name}=={{{own.key}}}.*"'
    return None


def _cycle(start: str, sets: dict[str, KernelSet]) -> tuple[str, ...]:
    """Return the walk from `start` back to `start` along `extends`, or nothing."""
    walk, here = [start], sets[start].extends
    while here in sets and here not in walk:
        walk.append(here)
        here = sets[here].extends
    return (*walk, start) if here == start else ()


def _is_date(text: str) -> bool:
    try:
        return datetime.date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False
