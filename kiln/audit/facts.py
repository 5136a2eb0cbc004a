"""What one file says of itself for one GPU: what it links, which targets it has code for, which kernels are stubs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from kiln.audit import cubin, elf, fatbin, sass
from kiln.audit.demangle import template
from kiln.audit.elf import Buffer, Malformed
from kiln.audit.fatbin import Entry, Gpu

FACTS_VERSION = 1
"""Raise it with every change of what is told about the same bytes: it is part of the cache's key."""

Extract = Callable[[str], Iterable[bytes]]
"""Return the cubins of a target that only cuobjdump can decompress."""

_LINKED = re.compile(rb"(?:cu|nccl)[A-Z]\w*")
_BLOCK_SCALED = re.compile(r"nv_float4|mx_float[468]|nvfp4|mxfp[468]|mxf[48]|e2m1|ue4m3|ue8m0", re.IGNORECASE)
_ARCH = re.compile(rb"sm_(?:1\d\d|[2-9]\d)[af]?\b")
_RELEASE = re.compile(rb"release \d+\.\d+, V([\d.]+)")
_COMPILERS = re.compile(r"(?:ptxas(?:-\w+)?|nvcc)")


@dataclass(frozen=True)
class Stubs:
    """The stubs of one template, mangled names: `kind` is `empty` or `trap`; `total` counts its real kernels too."""

    template: str
    target: str
    kind: str
    total: int
    kernels: tuple[str, ...]


@dataclass(frozen=True)
class Compiler:
    """An nvcc or ptxas: the targets whose names are in the program, and its release."""

    targets: tuple[str, ...]
    release: str


@dataclass(frozen=True)
class Facts:
    """`undefined` and `exported` are the driver's and NCCL's names only (`cuX…`, `ncclX…`).

    `parts` counts fatbins (a cubin is one), `covered` those with code for the GPU; `kernels` and `block_scaled` count
    the kernels that the driver would take, the latter the FP4/MX ones, by target.
    """

    needed: tuple[str, ...] = ()
    soname: str = ""
    search: tuple[str, ...] = ()
    undefined: tuple[str, ...] = ()
    exported: tuple[str, ...] = ()
    targets: dict[str, int] = field(default_factory=dict)
    parts: int = 0
    covered: int = 0
    kernels: dict[str, int] = field(default_factory=dict)
    block_scaled: dict[str, int] = field(default_factory=dict)
    stubs: tuple[Stubs, ...] = ()
    compiler: Compiler | None = None
    fault: str = ""


def interesting(head: bytes) -> bool:
    """Say by its first bytes whether a file is worth a look."""
    return head.startswith((elf.MAGIC, fatbin.MAGIC))


def is_compiler(name: str) -> bool:
    """Say by its name whether a file is an nvcc or a ptxas, of which more is told."""
    return bool(_COMPILERS.fullmatch(name))


def of(data: Buffer, name: str, gpu: Gpu, extract: Extract) -> Facts:
    """Look into an ELF file, a cubin or a fatbin; a broken one is told in `fault`."""
    try:
        return _of(data, name, gpu, extract)
    except Malformed as error:
        return Facts(fault=str(error))


def _of(data: Buffer, name: str, gpu: Gpu, extract: Extract) -> Facts:
    if data[:4] == elf.MAGIC and not elf.is_readable(data):
        return Facts()
    if data[:4] == elf.MAGIC and cubin.is_cubin(data):
        target = cubin.target(data)
        chosen = [(target, bytes(data))] if gpu.runs(target) else []
        return _device({target: 1}, 1, len(chosen), chosen)
    bins = list(fatbin.containers(data))
    best = [entry for entries in bins if (entry := choose(entries, gpu))]
    targets = Counter(entry.target for entries in bins for entry in entries)
    device = _device(dict(sorted(targets.items())), len(bins), len(best), _code(data, best, extract))
    return _linked(data, name, device) if data[:4] == elf.MAGIC else device


def choose(entries: Iterable[Entry], gpu: Gpu) -> Entry | None:
    """Return the entry that the driver takes for a GPU: SASS before PTX, the most specific first."""
    ranked = [(entry.kind, gpu.runs(entry.target), fatbin.split(entry.target)[1], entry) for entry in entries]
    usable = [one for one in ranked if one[1]]
    return max(usable, key=lambda one: one[:3])[3] if usable else None


def _code(data: Buffer, best: list[Entry], extract: Extract) -> Iterator[tuple[str, bytes]]:
    binaries = [entry for entry in best if entry.kind == fatbin.SASS]
    for entry in binaries:
        if not fatbin.needs_tool(entry):
            yield entry.target, fatbin.content(data, entry)
    for target in sorted({entry.target for entry in binaries if fatbin.needs_tool(entry)}):
        for code in extract(target):
            yield target, code


def _device(targets: dict[str, int], parts: int, covered: int, code: Iterable[tuple[str, bytes]]) -> Facts:
    kernels: Counter[str] = Counter()
    scaled: Counter[str] = Counter()
    stubs: list[Stubs] = []
    for target, names, kinds in _bodies(code):
        kernels[target] += len(names)
        scaled[target] += sum(bool(_BLOCK_SCALED.search(name)) for name in names)
        stubs += _grouped(target, names, kinds)
    return Facts(
        targets=targets, parts=parts, covered=covered, kernels=dict(kernels),
        block_scaled={target: count for target, count in scaled.items() if count}, stubs=tuple(stubs),
    )  # fmt: skip


def _bodies(code: Iterable[tuple[str, bytes]]) -> Iterator[tuple[str, list[str], dict[str, str]]]:
    """Yield, for each target, its kernels' names and the kind of each that is a stub."""
    names: dict[str, list[str]] = {}
    kinds: dict[str, dict[str, str]] = {}
    for target, binary in code:
        for name, body in cubin.kernels(binary):
            names.setdefault(target, []).append(name)
            if kind := sass.stub(body):
                kinds.setdefault(target, {})[name] = kind
    for target, found in names.items():
        yield target, found, kinds.get(target, {})


def _grouped(target: str, names: list[str], kinds: dict[str, str]) -> list[Stubs]:
    if not kinds:
        return []
    totals = Counter(template(name) for name in names)
    groups: dict[tuple[str, str], list[str]] = {}
    for name in names:
        if name in kinds:
            groups.setdefault((template(name), kinds[name]), []).append(name)
    return [Stubs(of, target, kind, totals[of], tuple(sorted(found))) for (of, kind), found in sorted(groups.items())]


def _linked(data: Buffer, name: str, device: Facts) -> Facts:
    table = elf.sections(data)
    dynamic = elf.dynamic(data, table)
    undefined: set[str] = set()
    exported: set[str] = set()
    for symbol, defined, weak in elf.symbols(data, table):
        if _LINKED.fullmatch(symbol) and not (weak and not defined):
            (exported if defined else undefined).add(symbol.decode())
    return Facts(
        **{**device.__dict__, "needed": dynamic.needed, "soname": dynamic.soname, "search": dynamic.search,
           "undefined": tuple(sorted(undefined)), "exported": tuple(sorted(exported)),
           "compiler": _compiler(data) if is_compiler(name) else None}
    )  # fmt: skip


def _compiler(data: Buffer) -> Compiler:
    """Read what a compiler prints at `--help` and `--version` off its bytes: nothing of a target is ever run."""
    targets = sorted({found[0].decode() for found in _ARCH.finditer(data)})
    release = _RELEASE.search(data)
    return Compiler(tuple(targets), release[1].decode() if release else "")
