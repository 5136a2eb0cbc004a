"""ELF shared objects, small and well formed, with any NEEDED, search path and dynamic symbols."""

from __future__ import annotations

import struct
from collections.abc import Iterable

_PROGBITS, _STRTAB, _DYNAMIC, _DYNSYM = 1, 3, 6, 11
_NEEDED, _SONAME, _RUNPATH = 1, 14, 29
_GLOBAL, _WEAK = 1, 2


def shared_object(
    *, needed: Iterable[str] = (), soname: str = "", runpath: str = "", undefined: Iterable[str] = (),
    defined: Iterable[str] = (), weak: Iterable[str] = (), data: bytes = b"",
) -> bytes:  # fmt: skip
    """Write one; `data` becomes its `.nv_fatbin`."""
    strings = bytearray(b"\0")

    def add(text: str) -> int:
        strings.extend(text.encode() + b"\0")
        return len(strings) - len(text) - 1

    symbols = bytes(24)
    for names, info, index in ((undefined, _GLOBAL, 0), (weak, _WEAK, 0), (defined, _GLOBAL, 1)):
        symbols += b"".join(struct.pack("<IBBHQQ", add(name), info << 4, 0, index, 0, 0) for name in names)
    entries = [(_NEEDED, add(name)) for name in needed]
    entries += [(_SONAME, add(soname))] if soname else []
    entries += [(_RUNPATH, add(runpath))] if runpath else []
    dynamic = b"".join(struct.pack("<qQ", *entry) for entry in [*entries, (0, 0)])
    parts = [(".nv_fatbin", _PROGBITS, data, 0), (".dynstr", _STRTAB, bytes(strings), 0),
             (".dynsym", _DYNSYM, symbols, 2), (".dynamic", _DYNAMIC, dynamic, 2)]  # fmt: skip
    return _file(parts)


def _file(parts: list[tuple[str, int, bytes, int]]) -> bytes:
    names = b"\0" + b"".join(name.encode() + b"\0" for name, *_ in parts) + b".shstrtab\0"
    body, headers, at = b"", bytes(64), 64
    for name, kind, content, link in [*parts, (".shstrtab", _STRTAB, names, 0)]:
        where = names.index(b"\0" + name.encode() + b"\0") + 1
        headers += struct.pack("<IIQQQQIIQQ", where, kind, 0, 0, at, len(content), link, 0, 8, 0)
        body += content
        at += len(content)
    count = len(parts) + 2
    start = b"\x7fELF\x02\x01\x01" + bytes(9)
    head = struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 0, at, 0, 64, 56, 0, 64, count, count - 1)
    return start + head + body + headers
