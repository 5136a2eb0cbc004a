"""Sparse files in tar archives: GNU's old header and PAX forms 0.1 and 1.0 (GNU tar manual, "Storing Sparse Files")."""

from __future__ import annotations

from collections.abc import Callable, Mapping

BLOCK = 512
Segment = tuple[int, int]
"""Offset in the file and number of bytes; the archive stores the bytes of all segments one after the other."""

_MAX_SEGMENTS = 1 << 20


def expand(
    block: bytes, extended: Mapping[bytes, bytes], stored: int, read: Callable[[int], bytes]
) -> tuple[int, int, tuple[Segment, ...]] | None:
    """Return (file size, stored size, segments), or None if the entry is not sparse.

    A map that stands before the content is consumed with `read`. Raises ValueError if it makes no sense.
    """
    if block[156:157] == b"S":
        size, segments = _old(block, read)
    elif extended.get(b"GNU.sparse.major") == b"1":
        size = int(extended[b"GNU.sparse.realsize"])
        segments, used = _prefixed(read)
        stored -= used
    elif b"GNU.sparse.map" in extended:
        numbers = [int(text) for text in extended[b"GNU.sparse.map"].split(b",")]
        size, segments = int(extended[b"GNU.sparse.size"]), _pairs(numbers)
    elif any(key.startswith(b"GNU.sparse.") for key in extended):
        raise ValueError("unknown form")
    else:
        return None
    return size, stored, _checked(segments, size, stored)


def _old(block: bytes, read: Callable[[int], bytes]) -> tuple[int, list[Segment]]:
    segments, more = _table(block[386:482]), block[482]
    while more and len(segments) < _MAX_SEGMENTS:
        extra = read(BLOCK)
        segments, more = segments + _table(extra[:504]), extra[504]
    return _octal(block[483:495]), segments


def _table(data: bytes) -> list[Segment]:
    cells = [data[at : at + 12] for at in range(0, len(data), 12)]
    return _pairs([_octal(cell) for cell in cells if cell.strip(b" \0")])


def _prefixed(read: Callable[[int], bytes]) -> tuple[list[Segment], int]:
    text, wanted = read(BLOCK), 1
    while True:
        lines = text.split(b"\n")
        if len(lines) > 1:
            wanted = 1 + 2 * int(lines[0])
        if len(lines) > wanted:
            return _pairs([int(line) for line in lines[1:wanted]]), len(text)
        if wanted > 2 * _MAX_SEGMENTS:
            raise ValueError(f"{wanted // 2} segments")
        text += read(BLOCK)


def _pairs(numbers: list[int]) -> list[Segment]:
    return list(zip(numbers[::2], numbers[1::2], strict=True))


def _octal(cell: bytes) -> int:
    return int.from_bytes(cell[1:], "big") if cell[:1] == b"\x80" else int(cell.strip(b" \0") or b"0", 8)


def _checked(segments: list[Segment], size: int, stored: int) -> tuple[Segment, ...]:
    end = 0
    for offset, length in segments:
        if offset < end or length < 0 or offset + length > size:
            raise ValueError(f"segment {offset}+{length} in a file of {size} bytes")
        end = offset + length
    if sum(length for _, length in segments) != stored:
        raise ValueError(f"segments do not add up to the {stored} bytes stored")
    return tuple(segments)
