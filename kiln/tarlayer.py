"""Layers as tar files: scan a raw one into nodes, write a canonical one."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kiln.compression import Compression, compressor
from kiln.errors import UserError
from kiln.tarread import BLOCKDEV, CHARDEV, DIRECTORY, HARDLINK, REGULAR, SYMLINK, Member, Source, members, padded, show
from kiln.tarwrite import header
from kiln.tree import WHITEOUT, Item, Node, Scan, parent
from kiln.volatile import is_host_xattr, is_volatile

CHUNK = 1 << 20
MAX_FILE_BYTES = 64 << 30
_OPAQUE = b".wh..wh..opq"
_PATH_MAX, _NAME_MAX = 4095, 255


@dataclass(frozen=True)
class Written:
    """A canonical layer blob. `files` counts everything but directories and whiteouts."""

    digest: str
    diff_id: str
    size_bytes: int
    raw_bytes: int
    files: int


def scan(path: Path, index: int, label: str) -> Scan:
    """Read the headers of a raw layer. Volatile paths are left out; whatever could escape the tree is refused."""
    nodes: dict[bytes, Node] = {}
    links: dict[bytes, bytes] = {}
    whiteouts, opaque = set(), set()
    with path.open("rb") as file:
        source = Source(file, label)
        for member in members(source):
            name = _clean(member.name, source, member.name)
            above, _, base = name.rpartition(b"/")
            if base == _OPAQUE:
                opaque.add(above)
            elif base.startswith(WHITEOUT):
                whiteouts.add(above + b"/" * bool(above) + base[len(WHITEOUT) :])
            elif name and not is_volatile(name):
                _check(name, member, nodes, links, source)
                if member.kind == HARDLINK:
                    links[name] = _clean(member.linkname, source, name)
                else:
                    nodes[name] = _node(member, index)
        _check_parents(nodes, links, source)
    return Scan(label, nodes, links, frozenset(whiteouts), frozenset(opaque))


def _clean(name: bytes, source: Source, entry: bytes) -> bytes:
    parts = [part for part in name.split(b"/") if part not in (b"", b".")]
    what = "" if name is entry else f"hard link to {show(name)}: "
    if name.startswith(b"/"):
        source.refuse(entry, f"{what}an absolute path in a layer")
    if b".." in parts:
        source.refuse(entry, f"{what}`..` in a path of a layer")
    if b"\0" in name:
        source.refuse(entry, f"{what}a NUL byte in a path")
    if len(name) > _PATH_MAX or any(len(part.removeprefix(WHITEOUT)) > _NAME_MAX for part in parts):
        source.refuse(entry, f"{what}longer than Linux allows ({_PATH_MAX} bytes a path, {_NAME_MAX} a name)")
    return b"/".join(parts)


def _check(name: bytes, member: Member, nodes: dict[bytes, Node], links: dict[bytes, bytes], source: Source) -> None:
    if member.kind in (CHARDEV, BLOCKDEV):
        source.refuse(name, "a device node outside /dev; an image that a rootless engine builds or unpacks has none")
    known = nodes.get(name)
    if name in links or (known and not known.kind == member.kind == DIRECTORY):
        source.refuse(name, "twice in the layer")
    if member.size > MAX_FILE_BYTES:
        source.refuse(name, f"{member.size} bytes, more than {MAX_FILE_BYTES}")


def _check_parents(nodes: dict[bytes, Node], links: dict[bytes, bytes], source: Source) -> None:
    for name in (*nodes, *links):
        above = parent(name)
        if above in links or (above in nodes and nodes[above].kind != DIRECTORY):
            source.refuse(name, f"lies below {show(above)}, which is no directory; links are not followed")


def _node(member: Member, index: int) -> Node:
    xattrs = tuple(pair for pair in member.xattrs if not is_host_xattr(pair[0]))
    link = member.linkname if member.kind == SYMLINK else b""
    where = (index, member.offset, member.segments)
    return Node(member.kind, member.mode, member.uid, member.gid, member.size, link, xattrs, *where)


class Contents:
    """The raw layers' files, open for reading file content at any place; safe for threads."""

    def __init__(self, layers: Sequence[Path]) -> None:
        self._files = [os.open(path, os.O_RDONLY) for path in layers]

    def close(self) -> None:
        """Close the files."""
        for file in self._files:
            os.close(file)

    def chunks(self, node: Node) -> Iterator[bytes]:
        """Yield a file's content; holes of sparse files as zeros."""
        for start in range(0, node.size, CHUNK):
            yield self._read(node, start, min(CHUNK, node.size - start))

    def equal(self, one: Node, other: Node) -> bool:
        """Compare the content of two files of the same size."""
        return all(a == b for a, b in zip(self.chunks(one), self.chunks(other), strict=True))

    def _read(self, node: Node, start: int, size: int) -> bytes:
        if node.segments is None:
            return self._pread(node.layer, node.offset + start, size)
        data, stored = bytearray(size), node.offset
        for at, length in node.segments:
            low, high = max(at, start), min(at + length, start + size)
            if low < high:
                data[low - start : high - start] = self._pread(node.layer, stored + low - at, high - low)
            stored += length
        return bytes(data)

    def _pread(self, layer: int, offset: int, size: int) -> bytes:
        data = os.pread(self._files[layer], size, offset)
        if len(data) != size:
            raise UserError(f"raw layer {layer} ended at byte {offset + len(data)} while it was read")
        return data


@contextmanager
def open_contents(layers: Sequence[Path]) -> Iterator[Contents]:
    """Open the raw layers for the time of a `with` block."""
    contents = Contents(layers)
    try:
        yield contents
    finally:
        contents.close()


class _Blob:
    """Compressed file being written; both hashes on the way. Bytes are the same whatever the sizes of the writes."""

    def __init__(self, path: Path, compression: Compression, on_progress: Callable[[int], None]) -> None:
        self._file = path.open("wb", buffering=0)
        self._compressor = compressor(compression)
        self._diff_id, self._digest = hashlib.sha256(), hashlib.sha256()
        self._buffer = bytearray()
        self._on_progress = on_progress
        self.raw_bytes = self.size_bytes = 0

    def write(self, data: bytes) -> None:
        if len(data) < CHUNK:
            self._buffer += data
            data = b""
        if data or len(self._buffer) >= CHUNK:
            self._feed(bytes(self._buffer))
            self._buffer.clear()
            self._feed(data)

    def close(self) -> tuple[str, str]:
        self._feed(bytes(self._buffer))
        self._store(self._compressor.flush())
        self._file.close()
        return f"sha256:{self._digest.hexdigest()}", f"sha256:{self._diff_id.hexdigest()}"

    def _feed(self, data: bytes) -> None:
        self.raw_bytes += len(data)
        self._diff_id.update(data)
        self._store(self._compressor.compress(data))
        self._on_progress(len(data))

    def _store(self, data: bytes) -> None:
        self.size_bytes += len(data)
        self._digest.update(data)
        view = memoryview(data)
        while view:
            view = view[self._file.write(view) :]


def write(
    items: Sequence[Item], contents: Contents, path: Path, *, epoch: int, compression: Compression,
    on_progress: Callable[[int], None],
) -> Written:  # fmt: skip
    """Write a canonical layer to `path`; its bytes depend on `items`, their content and `epoch` only."""
    blob = _Blob(path, compression, on_progress)
    for item in items:
        blob.write(header(item, epoch))
        if item.node and item.leader is None and item.node.kind == REGULAR:
            for chunk in contents.chunks(item.node):
                blob.write(chunk)
            blob.write(bytes(padded(item.node.size) - item.node.size))
    blob.write(bytes(1024))
    digest, diff_id = blob.close()
    files = sum(1 for item in items if item.node and item.node.kind != DIRECTORY)
    return Written(digest, diff_id, blob.size_bytes, blob.raw_bytes, files)
