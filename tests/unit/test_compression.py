"""Compression: the same bytes whatever the sizes of the writes, and no library that would write others."""

from __future__ import annotations

import hashlib
import random
import zlib

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from kiln import compression
from kiln.compression import Compression
from kiln.errors import UserError

pytestmark = pytest.mark.unit
CONTENT = b"".join(random.Random(number % 5).randbytes(3000) + bytes(2000) for number in range(60))


def compress(data: bytes, cuts: list[int], name: Compression) -> bytes:
    stream, out, start = compression.compressor(name), b"", 0
    for end in [*sorted(cuts), len(data)]:
        out += stream.compress(data[start:end])
        start = end
    return out + stream.flush()


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, len(CONTENT)), max_size=30), st.sampled_from(compression.COMPRESSIONS))
def test_the_bytes_do_not_depend_on_how_the_input_is_cut(cuts: list[int], name: Compression) -> None:
    assert compress(CONTENT, cuts, name) == compress(CONTENT, [], name)


@pytest.mark.parametrize(("name", "digest"), [
    ("zstd", "610fbe13ab2cb4fe33090023f704df17085dc0391f966092b169ac547a1ef1bb"),
    ("gzip", "fdd9c85d8e177196fcefe460d26ef6f4e7b7bb4298d3a6e3db6a186b70d0dcbe"),
])  # fmt: skip
def test_the_bytes_are_those_of_every_machine(name: Compression, digest: str) -> None:
    assert hashlib.sha256(compress(CONTENT, [], name)).hexdigest() == digest


def test_the_libraries_at_hand_are_the_pinned_ones() -> None:
    compression.require_zstd(zstandard.ZSTD_VERSION)
    compression.require_zlib(zlib.ZLIB_RUNTIME_VERSION)


def test_another_zstd_is_refused() -> None:
    with pytest.raises(UserError, match=r"zstd 1\.5\.6 writes other bytes than the pinned 1\.5\.7"):
        compression.require_zstd((1, 5, 6))


def test_zlib_ng_is_refused() -> None:
    with pytest.raises(UserError, match=r"zlib is 1\.3\.1\.zlib-ng, whose gzip layers have other bytes"):
        compression.require_zlib("1.3.1.zlib-ng")


def test_an_unknown_compression_lists_the_known_ones() -> None:
    with pytest.raises(UserError) as caught:
        compression.named("xz")
    assert str(caught.value) == "unknown compression 'xz'\n  hint: --compression zstd or gzip"
