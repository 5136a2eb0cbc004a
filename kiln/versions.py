"""versions.yaml, loaded: every problem at once, each with its line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from kiln import consistency, names, placeholders, schema, yamlfile
from kiln.errors import Problem, UserError, raise_all
from kiln.intent import Arch, ArchForm, Base, Defaults, Gpu, Intent, KernelSet, NvccMin, Promotion, Proof, Stack
from kiln.yamlfile import Document, Value

__all__ = [
    "Arch",
    "ArchForm",
    "Base",
    "Defaults",
    "Gpu",
    "KernelSet",
    "NvccMin",
    "Promotion",
    "Proof",
    "Stack",
    "Versions",
    "load",
]

Block = TypeVar("Block")


@dataclass(frozen=True)
class Versions:
    """The loaded file. Mappings are in the order of their keys; `lines` takes no part in a comparison."""

    defaults: Defaults
    gpus: Mapping[str, Gpu]
    stacks: Mapping[str, Stack]
    kernel_sets: Mapping[str, KernelSet]
    tools: Mapping[str, str]
    document: Document = field(compare=False, repr=False)
    promotion: Promotion | None = None

    def gpu(self, name: str) -> Gpu:
        """Return a GPU target; raises UserError with the known ones."""
        return _get("GPU", self.gpus, name)

    def stack(self, name: str) -> Stack:
        """Return a stack; raises UserError with the known ones."""
        return _get("stack", self.stacks, name)

    def kernel_set(self, name: str) -> KernelSet:
        """Return a kernel set; raises UserError with the known ones."""
        return _get("kernel set", self.kernel_sets, name)

    def target(self, gpu: str, stack: str) -> tuple[Gpu, Stack]:
        """Return both; raises UserError if the stack is not meant for the GPU."""
        found = self.gpu(gpu), self.stack(stack)
        if not found[1].supports(gpu):
            fits = ", ".join(name for name, other in self.stacks.items() if other.supports(gpu))
            where = self.at(f"stacks.{stack}.gpus")
            raise UserError(f"stack {stack!r} is not meant for {gpu}", hint=f"stacks for {gpu}: {fits}", source=where)
        return found

    def globs(self, kernel_set: str, gpu: str) -> tuple[str, ...]:
        """Return the set's globs for one GPU, those of the sets it extends first, each once."""
        found = self.kernel_set(kernel_set)
        inherited = self.globs(found.extends, gpu) if found.extends else ()
        own = found.modules.get("all", ()) + found.modules.get(gpu, ())
        return tuple(dict.fromkeys(inherited + own))

    def line(self, path: str) -> int:
        """Return the line of a dotted path such as "stacks.current.cuda", or of its nearest parent."""
        return self.document.line(path)

    def at(self, path: str) -> str:
        """Return "versions.yaml:LINE" of a dotted path."""
        return self.document.at(path)


def load(path: Path) -> Versions:
    """Read and validate the file. Raises Problems with everything that is wrong with it."""
    document = yamlfile.read(path, path.parent)
    intent, problems = schema.validate(_named(document), Intent)
    raise_all([*_renamed(document), *problems])
    assert intent is not None
    raise_all(consistency.problems(intent, document))
    return Versions(
        defaults=intent.defaults,
        gpus=intent.gpus,
        stacks={name: placeholders.fill(stack) for name, stack in intent.stacks.items()},
        kernel_sets=intent.kernel_sets,
        tools=intent.tools,
        document=document,
        promotion=intent.promotion,
    )


def _named(document: Document) -> Document:
    """Add each named block's key to it as `name`."""
    value: dict[str, Value] = dict(document.value)
    for section, name, block in _blocks(document):
        value[section] = {**_mapping(value[section]), name: {**block, "name": name}}
    return replace(document, value=value)


def _renamed(document: Document) -> Iterator[Problem]:
    for section, name, block in _blocks(document):
        if "name" in block:
            where = document.at(f"{section}.{name}.name")
            yield Problem(where, f"{section}.{name}: unknown key 'name'", f"its name is its key, {name!r}")


def _blocks(document: Document) -> Iterator[tuple[str, str, dict[str, Value]]]:
    for section in ("gpus", "stacks", "kernel_sets"):
        for name, block in _mapping(document.value.get(section)).items():
            if isinstance(block, dict):
                yield section, name, block


def _mapping(value: Value | None) -> dict[str, Value]:
    return value if isinstance(value, dict) else {}


def _get(kind: str, known: Mapping[str, Block], name: str) -> Block:
    if name not in known:
        problem = names.unknown(kind, name, known)
        raise UserError(problem.message, hint=problem.hint)
    return known[name]
