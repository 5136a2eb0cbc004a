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
COMPRESSIONS: tuple[Compression, ...] = ("zstd", "gzip")
ZSTD_LEVEL = 3
ZSTD_VERSION = (1, 5, 7)
"""The library inside the pinned `zstandard`."""
GZIP_LEVEL = 6


class Compressor(Protocol):
    """An incremental compressor."""

    def compress(self, data: bytes, /) -> bytes: ...
    def flush(self) -> bytes: ...


def named(text: str) -> Compression:
    """Return the compression of that name. Raises UserError for another."""
    for known in COMPRESSIONS:
        if text == known:
            return known
    raise UserError(f"unknown compression {text!r}", hint=f"--compression {' or '.join(COMPRESSIONS)}")


def compressor(compression: Compression) -> Compressor:
    """Start a compressed stream; its bytes do not depend on how the input is cut.

    Raises UserError where the library at hand would write other bytes than everyone else's.
    """
    if compression == "gzip":
        require_zlib(zlib.ZLIB_RUNTIME_VERSION)
        return zlib.compressobj(GZIP_LEVEL, zlib.DEFLATED, 31)
    import zstandard

    require_zstd(zstandard.ZSTD_VERSION)
    return zstandard.ZstdCompressor(level=ZSTD_LEVEL).compressobj()


def require_zstd(version: tuple[int, ...]) -> None:
    """Refuse another zstd than the pinned one."""
    if version != ZSTD_VERSION:
        found, needed = (".".join(map(str, one)) for one in (version, ZSTD_VERSION))
        raise UserError(f"zstd {found} writes other bytes than the pinned {needed}", hint="run kiln by ./inv")


def require_zlib(version: str) -> None:
    """Refuse zlib-ng, which some distributions put in zlib's place."""
    if "ng" in version:
        message = f"this Python's zlib is {version}, whose gzip layers have other bytes than zlib's"
        raise UserError(message, hint="use a Python that is linked to zlib, or leave --compression gzip out")


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
