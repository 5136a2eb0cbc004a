"""Layers as tar files: read the content of raw ones, write a canonical one."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kiln.compression import Compression, compressor
from kiln.errors import UserError
from kiln.tarread import DIRECTORY, REGULAR, padded
from kiln.tarwrite import header
from kiln.tree import Item, Node

CHUNK = 1 << 20


@dataclass(frozen=True)
class Written:
    """A canonical layer blob. `files` counts everything but directories and whiteouts."""

    digest: str
    diff_id: str
    size_bytes: int
    raw_bytes: int
    files: int


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


class Blob:
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
    blob = Blob(path, compression, on_progress)
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
