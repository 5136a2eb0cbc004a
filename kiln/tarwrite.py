"""Tar headers, one way to write each: ustar fields, and a PAX header only for what does not fit them.

Python's and Go's tar writers change between versions; a digest must not.
"""

from __future__ import annotations

from kiln.tarread import BLOCK, DIRECTORY, HARDLINK, REGULAR, SYMLINK, XATTR, padded
from kiln.tree import Item, Node

_PAX_NAME = b"PaxHeaders"
_EMPTY = Node(REGULAR, 0, 0, 0)


def header(item: Item, epoch: int) -> bytes:
    """Return the header blocks of an entry."""
    node = item.node or _EMPTY
    kind = HARDLINK if item.leader is not None else node.kind
    size = node.size if kind == REGULAR else 0
    name = item.name + b"/" if kind == DIRECTORY else item.name
    link = item.leader if item.leader is not None else node.link if kind == SYMLINK else b""
    xattrs = node.xattrs if item.leader is None else ()
    records = _records(name, link, size, node, xattrs)
    block = _block(name[:100], kind, node.mode, _fit(node.uid, 7), _fit(node.gid, 7), _fit(size, 11), epoch, link[:100])
    return _pax(records, epoch) + block if records else block


def plain(name: str, size: int, epoch: int = 0) -> bytes:
    """Return the header of a regular file with mode 0644 of root."""
    return header(Item(name.encode(), Node(REGULAR, 0o644, 0, 0, size)), epoch)


def _records(name: bytes, link: bytes, size: int, node: Node, xattrs: tuple[tuple[bytes, bytes], ...]) -> bytes:
    found = [(XATTR + key, value) for key, value in xattrs]
    found += [(key, value) for key, value in ((b"path", name), (b"linkpath", link)) if len(value) > 100]
    numbers = ((b"uid", node.uid, 7), (b"gid", node.gid, 7), (b"size", size, 11))
    found += [(key, b"%d" % value) for key, value, digits in numbers if value >> (3 * digits)]
    return b"".join(_record(key, value) for key, value in sorted(found))


def _record(key: bytes, value: bytes) -> bytes:
    body = b" " + key + b"=" + value + b"\n"
    size = len(body) + len(str(len(body)))
    size = len(body) + len(str(size))
    return b"%d" % size + body


def _fit(value: int, digits: int) -> int:
    return 0 if value >> (3 * digits) else value


def _pax(records: bytes, epoch: int) -> bytes:
    block = _block(_PAX_NAME, b"x", 0o644, 0, 0, len(records), epoch, b"")
    return block + records + bytes(padded(len(records)) - len(records))


def _block(name: bytes, kind: bytes, mode: int, uid: int, gid: int, size: int, epoch: int, link: bytes) -> bytes:
    head = b"%s%07o\0%07o\0%07o\0%011o\0%011o\0" % (name.ljust(100, b"\0"), mode, uid, gid, size, epoch)
    tail = kind + link.ljust(100, b"\0") + b"ustar\x0000" + bytes(64) + b"0000000\x000000000\0"
    total = sum(head) + sum(tail) + 8 * 32
    return (head + b"%06o\0 " % total + tail).ljust(BLOCK, b"\0")
