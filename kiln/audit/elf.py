"""ELF files, 64-bit little-endian, as far as an audit asks: sections, dynamic entries, dynamic symbols.

Read by struct, not by pyelftools: an image has 10^4 kernels, each a section, and 10^6 symbols.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

Buffer: TypeAlias = "bytes | mmap.mmap"

MAGIC = b"\x7fELF"
EM_CUDA = 190
_HEADER = struct.Struct("<HHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_DYNAMIC = struct.Struct("<qQ")
_NEEDED, _SONAME, _RPATH, _RUNPATH = 1, 14, 15, 29
_WEAK = 2


class Malformed(ValueError):
    """Bytes that are not what their header says."""


@dataclass(frozen=True, slots=True)
class Section:
    """One section: its bytes are `size` at `offset`, none if the file has no bytes for it (`nobits`)."""

    name: str
    offset: int
    size: int
    link: int
    nobits: bool


@dataclass(frozen=True)
class Dynamic:
    """What the loader reads. `search` is DT_RUNPATH, or DT_RPATH if there is none."""

    needed: tuple[str, ...] = ()
    soname: str = ""
    search: tuple[str, ...] = ()


def is_readable(data: Buffer) -> bool:
    """Say whether an ELF file is 64-bit and little-endian; others hold nothing for a GPU here."""
    return len(data) >= 64 and data[4] == 2 and data[5] == 1


def machine(data: Buffer) -> int:
    """Return e_machine."""
    return _header(data)[1]


def flags(data: Buffer) -> int:
    """Return e_flags."""
    return _header(data)[6]


def sections(data: Buffer) -> tuple[Section, ...]:
    """Read the section table; empty if there is none. Raises Malformed."""
    header = _header(data)
    offset, size, count, names = header[5], header[10], header[11], header[12]
    if not offset or not count:
        return ()
    if size != _SECTION.size or names >= count or offset + size * count > len(data):
        raise Malformed("section table outside the file")
    raw = list(_SECTION.iter_unpack(data[offset : offset + size * count]))
    table = data[raw[names][4] : raw[names][4] + raw[names][5]]
    return tuple(_section(fields, table, len(data)) for fields in raw)


def content(data: Buffer, section: Section) -> bytes:
    """Return a section's bytes."""
    return b"" if section.nobits else data[section.offset : section.offset + section.size]


def dynamic(data: Buffer, table: tuple[Section, ...]) -> Dynamic:
    """Read NEEDED, SONAME and the search path; all empty for a static file."""
    found = next((section for section in table if section.name == ".dynamic"), None)
    if found is None or found.nobits or found.link >= len(table):
        return Dynamic()
    strings = content(data, table[found.link])
    raw = content(data, found)
    entries = list(_DYNAMIC.iter_unpack(raw[: len(raw) - len(raw) % _DYNAMIC.size]))
    wanted = (_NEEDED, _SONAME, _RPATH, _RUNPATH)
    values = {tag: [_text(strings, at) for key, at in entries if key == tag] for tag in wanted}
    search = (values[_RUNPATH] or values[_RPATH] or [""])[0]
    return Dynamic(tuple(values[_NEEDED]), (values[_SONAME] or [""])[0], tuple(search.split(":")) if search else ())


def symbols(data: Buffer, table: tuple[Section, ...]) -> Iterator[tuple[bytes, bool, bool]]:
    """Yield each dynamic symbol: its name, whether it is defined here, whether it is weak."""
    found = next((section for section in table if section.name == ".dynsym"), None)
    if found is None or found.nobits or found.link >= len(table):
        return
    strings = content(data, table[found.link])
    raw = content(data, found)
    for name, info, _other, index, _value, _size in _SYMBOL.iter_unpack(raw[: len(raw) - len(raw) % _SYMBOL.size]):
        yield strings[name : strings.find(b"\0", name)], index != 0, info >> 4 == _WEAK


def _header(data: Buffer) -> tuple[int, ...]:
    if data[:4] != MAGIC or not is_readable(data):
        raise Malformed("not a 64-bit little-endian ELF file")
    return _HEADER.unpack(data[16:64])


def _section(fields: tuple[int, ...], names: bytes, limit: int) -> Section:
    nobits = fields[1] in (0, 8) or fields[4] + fields[5] > limit
    return Section(_text(names, fields[0]), fields[4], fields[5], fields[6], nobits)


def _text(strings: bytes, at: int) -> str:
    end = strings.find(b"\0", at)
    return strings[at:end].decode("utf-8", "backslashreplace") if end >= 0 else ""
