"""Fatbins: where the CUDA runtime finds code for a GPU. Containers are found by their magic, wherever they lie.

Layout (little-endian): container `magic u32, version u16, header u16, body u64`, then entries
`kind u16, version u16, header u32, padded u64, stored u32, options u32, minor u16, major u16, arch u32, name u32,
name u32, flags u64, 0 u64, raw u64`. Agrees with cuobjdump 13.5 on the libraries of CUDA 13.0, torch 2.14 and SGLang.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from kiln.audit.elf import Buffer, Malformed

MAGIC = b"\x50\xed\x55\xba"
PTX, SASS = 1, 2
ZSTD, LZ4 = 0x8000, 0x2000
_ACCELERATED, _FAMILY = 0x100000, 0x200000
_CONTAINER = struct.Struct("<IHHQ")
_ENTRY = struct.Struct("<HHIQIIHHIIIQQQ")
_TARGET = re.compile(r"(?:sm|ptx)_(\d+)(\d)([af]?)")
_LIMIT_BYTES = 4 << 30


@dataclass(frozen=True, slots=True)
class Entry:
    """Code for one target: `stored` bytes at `offset`, `raw` bytes once decompressed."""

    kind: int
    target: str
    offset: int
    stored: int
    raw: int
    flags: int


@dataclass(frozen=True, slots=True)
class Gpu:
    """A compute capability, as the driver matches code against it."""

    major: int
    minor: int

    def runs(self, target: str) -> int:
        """Rank a target for this GPU: 3 exact (`a`), 2 family (`f`), 1 plain SASS, 0 not at all. PTX ranks likewise."""
        major, minor, suffix = split(target)
        if suffix == "a":
            return 3 if (major, minor) == (self.major, self.minor) else 0
        if target.startswith("ptx") and not suffix:
            return 1 if (major, minor) <= (self.major, self.minor) else 0
        return (2 if suffix else 1) if major == self.major and minor <= self.minor else 0


def gpu(compute_capability: str) -> Gpu:
    """Read `12.0`."""
    major, _, minor = compute_capability.partition(".")
    return Gpu(int(major), int(minor))


def split(target: str) -> tuple[int, int, str]:
    """Return major, minor and suffix of `sm_120a` or `ptx_90`. Raises Malformed."""
    found = _TARGET.fullmatch(target)
    if not found:
        raise Malformed(f"{target!r} is not a target")
    return int(found[1]), int(found[2]), found[3]


def order(target: str) -> tuple[bool, int, int, str]:
    """Sort SASS before PTX, then by number."""
    return (target.startswith("ptx"), *split(target))


def containers(data: Buffer) -> Iterator[tuple[Entry, ...]]:
    """Yield the entries of every fatbin in a file of any kind."""
    at = 0
    while (at := data.find(MAGIC, at)) >= 0:
        end, entries = _container(data, at)
        if entries:
            yield entries
        at = end


def content(data: Buffer, entry: Entry) -> bytes:
    """Return an entry's code, decompressed. Raises Malformed for a compression that is not zstd (LZ4: `needs_tool`)."""
    stored = data[entry.offset : entry.offset + entry.stored]
    if not entry.flags & ZSTD:
        return stored
    import zstandard

    try:
        return zstandard.ZstdDecompressor().decompress(stored, max_output_size=entry.raw)
    except zstandard.ZstdError as error:
        raise Malformed(f"fatbin entry at {entry.offset}: {error}") from error


def needs_tool(entry: Entry) -> bool:
    """Say whether only cuobjdump can decompress it: LZ4, of nvcc before 12.9."""
    return bool(entry.flags & LZ4)


def _container(data: Buffer, at: int) -> tuple[int, tuple[Entry, ...]]:
    """Return where to go on, and the entries; none if these bytes only look like a container."""
    if at + _CONTAINER.size > len(data):
        return len(data), ()
    _magic, version, header, body = _CONTAINER.unpack(data[at : at + _CONTAINER.size])
    end = at + header + body
    if version != 1 or header != _CONTAINER.size or end > len(data):
        return at + len(MAGIC), ()
    found, position = [], at + header
    while position + _ENTRY.size <= end:
        entry, size = _entry(data, position)
        if size < _ENTRY.size or position + size > end:
            break
        found += [entry] if entry else []
        position += size
    return end, tuple(found)


def _entry(data: Buffer, at: int) -> tuple[Entry | None, int]:
    """Return an entry and its size with its header; no entry for a kind that is neither SASS nor PTX."""
    fields = _ENTRY.unpack(data[at : at + _ENTRY.size])
    kind, header, padded, packed, arch, flags, raw = (fields[n] for n in (0, 2, 3, 4, 8, 11, 13))
    if kind not in (PTX, SASS) or raw > _LIMIT_BYTES:
        return None, header + padded
    suffix = "a" if flags & _ACCELERATED else "f" if flags & _FAMILY else ""
    target = f"{'sm' if kind == SASS else 'ptx'}_{arch}{suffix}"
    return Entry(kind, target, at + header, packed or padded, raw or padded, flags), header + padded
