"""Compression of layers: the same bytes for the same content on every machine, and reading whatever engines use.

zstd needs its library pinned (level 3 differs between 1.5.6 and 1.5.7), one thread; zlib is stable.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Literal, Protocol, cast

from kiln.errors import UserError

Compression = Literal["zstd", "gzip"]
ZSTD_LEVEL = 3
GZIP_LEVEL = 6


class Compressor(Protocol):
    """An incremental compressor."""

    def compress(self, data: bytes, /) -> bytes: ...
    def flush(self) -> bytes: ...


def compressor(compression: Compression) -> Compressor:
    """Start a compressed stream; its bytes do not depend on how the input is cut."""
    if compression == "gzip":
        return zlib.compressobj(GZIP_LEVEL, zlib.DEFLATED, 31)
    import zstandard

    return zstandard.ZstdCompressor(level=ZSTD_LEVEL).compressobj()


@contextmanager
def open_layer(path: Path, compression: str | None = None) -> Iterator[BinaryIO]:
    """Open a layer blob uncompressed; `compression` None looks at the first bytes. Corruption raises UserError."""
    with path.open("rb") as file:
        magic = file.read(4)
        file.seek(0)
        if compression is None:
            compression = "gzip" if magic[:2] == b"\x1f\x8b" else "zstd" if magic == b"\x28\xb5\x2f\xfd" else ""
        try:
            yield _decompressed(file, compression)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise UserError(f"corrupt gzip layer: {error}", source=path.name) from error
        except Exception as error:
            if type(error).__name__ != "ZstdError":
                raise
            raise UserError(f"corrupt zstd layer: {error}", source=path.name) from error


def _decompressed(file: BinaryIO, compression: str) -> BinaryIO:
    if compression == "gzip":
        return cast(BinaryIO, gzip.GzipFile(fileobj=file))
    if compression == "zstd":
        import zstandard

        return cast(BinaryIO, zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True))
    return file
