"""Tar members: read ustar, PAX and GNU archives from a pipe or a file, forwards, without extracting anything."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, NoReturn

from kiln import sparse
from kiln.errors import UserError

BLOCK = 512
REGULAR, HARDLINK, SYMLINK, CHARDEV, BLOCKDEV, DIRECTORY, FIFO = (b"%d" % n for n in range(7))
XATTR = b"SCHILY.xattr."
_EXTENSION_LIMIT = 1 << 20
_CHUNK = 1 << 20
_ZEROS = bytes(BLOCK)


@dataclass(frozen=True, slots=True)
class Member:
    """One entry. The archive holds `stored` bytes at `offset`; that is the file of `size` bytes unless it is sparse.

    `mtime`: whole seconds, None where they stand in another form than octal digits.
    """

    name: bytes
    kind: bytes
    mode: int
    uid: int
    gid: int
    size: int
    stored: int
    linkname: bytes
    xattrs: tuple[tuple[bytes, bytes], ...]
    offset: int
    segments: tuple[sparse.Segment, ...] | None
    mtime: int | None


class Source:
    """A tar file and the position in it; `label` names it in errors. `forward`: never seek, though the file may."""

    def __init__(self, file: BinaryIO, label: str, *, forward: bool = False) -> None:
        self._file = file
        self._size = file.seek(0, 2) if file.seekable() and not forward else None
        if self._size is not None:
            file.seek(0)
        self.label = label
        self.position = 0
        self.entry = b""

    def read(self, size: int) -> bytes:
        """Read exactly `size` bytes, or refuse the archive as truncated."""
        data = self._file.read(size)
        while len(data) < size and (more := self._file.read(size - len(data))):
            data += more
        self.position += len(data)
        if len(data) < size:
            self.refuse(self.entry, "truncated: the archive ends inside this entry")
        return data

    def header(self) -> bytes | None:
        """Read the next header block; None at the end of the archive."""
        block = self._file.read(BLOCK)
        self.position += len(block)
        if block and len(block) < BLOCK:
            block += self.read(BLOCK - len(block))
        return None if not block or block == _ZEROS else block

    def go(self, position: int) -> None:
        """Move forwards to `position`."""
        if self._size is None:
            while self.position < position:
                self.read(min(_CHUNK, position - self.position))
            return
        if position > self._size:
            self.refuse(self.entry, "truncated: the archive ends inside this entry")
        self._file.seek(position)
        self.position = position

    def drain(self) -> None:
        """Read whatever follows the end of the archive, so that its writer is not cut off."""
        while self._file.read(_CHUNK):
            pass

    def refuse(self, name: bytes, message: str) -> NoReturn:
        """Raise a UserError that names this archive and the entry."""
        raise UserError(message, source=f"{self.label}: {show(name)}" if name else self.label)


def show(name: bytes) -> str:
    """Make a name printable: bytes that are not UTF-8 as \\xNN, very long ones cut."""
    text = name.decode("utf-8", "backslashreplace")
    return text if len(text) <= 200 else f"{text[:120]}…({len(name)} bytes)"


def padded(size: int) -> int:
    """Round up to whole blocks."""
    return -(-size // BLOCK) * BLOCK


def members(source: Source) -> Iterator[Member]:
    """Yield every entry; its content may be read from `source` before the next one is asked for."""
    extended: dict[bytes, bytes] = {}
    while (block := source.header()) is not None:
        _verify(block, source)
        kind = block[156:157]
        if kind in (b"x", b"g", b"L", b"K"):
            extended |= _extension(kind, _number(block[124:136], source), source)
            continue
        member = _member(block, extended, source)
        yield member
        source.entry = member.name
        source.go(member.offset + padded(member.stored))
        extended = {}


def _extension(kind: bytes, size: int, source: Source) -> dict[bytes, bytes]:
    if size > _EXTENSION_LIMIT:
        source.refuse(source.entry, f"the header after this entry has {size} bytes, more than {_EXTENSION_LIMIT}")
    data = source.read(padded(size))[:size]
    if kind == b"x":
        return _records(data, source)
    text = data.rstrip(b"\0")
    return {b"L": {b"path": text}, b"K": {b"linkpath": text}, b"g": {}}[kind]


def _records(data: bytes, source: Source) -> dict[bytes, bytes]:
    found: dict[bytes, bytes] = {}
    while data:
        digits, _, _ = data.partition(b" ")
        size = int(digits) if digits.isdigit() and len(digits) < 8 else 0
        key, equals, value = data[len(digits) + 1 : size - 1].partition(b"=")
        if not equals or data[size - 1 : size] != b"\n":
            source.refuse(source.entry, "broken PAX record after this entry")
        found[key] = value
        data = data[size:]
    return found


def _member(block: bytes, extended: dict[bytes, bytes], source: Source) -> Member:
    name = extended.get(b"GNU.sparse.name") or extended.get(b"path") or _name(block)
    source.entry = name
    kind = block[156:157]
    if kind in (b"\0", b"7", b"S"):
        kind = DIRECTORY if kind == b"\0" and name.endswith(b"/") else REGULAR
    if kind not in (REGULAR, HARDLINK, SYMLINK, CHARDEV, BLOCKDEV, DIRECTORY, FIFO):
        source.refuse(name, f"unknown entry type {kind!r}")
    stored = _field(extended, b"size", block[124:136], source) if kind == REGULAR else 0
    size, segments = stored, None
    if kind == REGULAR:
        size, stored, segments = _expanded(block, extended, stored, source)
    return Member(
        name=name, kind=kind, mode=_number(block[100:108], source) & 0o7777,
        uid=_field(extended, b"uid", block[108:116], source), gid=_field(extended, b"gid", block[116:124], source),
        size=size, stored=stored, linkname=extended.get(b"linkpath") or block[157:257].split(b"\0", 1)[0],
        xattrs=tuple(sorted((k[len(XATTR) :], v) for k, v in extended.items() if k.startswith(XATTR))),
        offset=source.position, segments=segments, mtime=_mtime(block, extended),
    )  # fmt: skip


def _mtime(block: bytes, extended: dict[bytes, bytes]) -> int | None:
    """Read the time leniently: a canonical layer sets its own, so that no engine's is worth a refusal."""
    digits = block[136:148].strip(b" \0")
    return int(digits, 8) if b"mtime" not in extended and re.fullmatch(b"[0-7]+", digits) else None


def _expanded(
    block: bytes, extended: dict[bytes, bytes], stored: int, source: Source
) -> tuple[int, int, tuple[sparse.Segment, ...] | None]:
    try:
        found = sparse.expand(block, extended, stored, source.read)
    except ValueError as error:
        source.refuse(source.entry, f"broken sparse map: {error}")
    return found or (stored, stored, None)


def _name(block: bytes) -> bytes:
    name = block[:100].split(b"\0", 1)[0]
    prefix = block[345:500].split(b"\0", 1)[0] if block[257:263] == b"ustar\0" else b""
    return prefix + b"/" + name if prefix else name


def _field(extended: dict[bytes, bytes], key: bytes, field: bytes, source: Source) -> int:
    if key not in extended:
        return _number(field, source)
    if not extended[key].isdigit() or len(extended[key]) > 19:
        source.refuse(source.entry, f"{key.decode()} is {show(extended[key])!r}, not a number")
    return int(extended[key])


def _number(field: bytes, source: Source) -> int:
    if field[0] == 0x80:
        return int.from_bytes(field[1:], "big")
    text = field.split(b"\0", 1)[0].strip(b" ")
    try:
        value = int(text or b"0", 8)
    except ValueError:
        value = -1
    if value < 0:
        source.refuse(source.entry, f"broken header: {show(field)!r} is not an octal number")
    return value


def _verify(block: bytes, source: Source) -> None:
    total = sum(block) - sum(block[148:156]) + 256
    if block[148:156].strip(b" \0").lstrip(b"0") != b"%o" % total:
        source.refuse(source.entry, "corrupt: the header after this entry has a wrong checksum")
