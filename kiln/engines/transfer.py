"""Byte streams between the SDK, which speaks in chunks, and code that reads and writes files."""

from __future__ import annotations

import io
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, BinaryIO, cast

CHUNK = 1 << 20


def reader(chunks: Iterator[bytes]) -> BinaryIO:
    """Return a file that reads from an iterator of byte strings."""
    return cast(BinaryIO, io.BufferedReader(_Chunks(chunks), CHUNK))


@contextmanager
def sink(feed: Callable[[Iterator[bytes]], None]) -> Iterator[BinaryIO]:
    """Open a file for writing; `feed` gets what is written, in a thread, and its error is raised at the end.

    If the block fails, `feed` gets its error too, so that nothing half-written is taken for complete.
    """
    readable, writable = os.pipe()
    thread = _Feeder(feed, readable)
    thread.start()
    stream = os.fdopen(writable, "wb", buffering=CHUNK)
    try:
        yield stream
        stream.close()
    except BrokenPipeError as error:
        thread.join()
        raise thread.fault or error from None
    except BaseException:
        thread.abandoned = True
        raise
    finally:
        _close(stream)
        thread.join()
    if thread.fault:
        raise thread.fault


@contextmanager
def source(write: Callable[[BinaryIO], None]) -> Iterator[Iterator[bytes]]:
    """Give what `write` writes, in a thread, as byte strings; its error is raised at the end of the block.

    A reader that stops early is no error of the writer.
    """
    readable, writable = os.pipe()
    faults: list[Exception] = []

    def run() -> None:
        try:
            with os.fdopen(writable, "wb", buffering=CHUNK) as stream:
                write(stream)
        except BrokenPipeError:
            pass
        except Exception as error:  # noqa: BLE001 (handed to the thread that waits)
            faults.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        with os.fdopen(readable, "rb") as pipe:
            yield iter(lambda: pipe.read(CHUNK), b"")
    finally:
        thread.join()
        if faults:
            raise faults[0]


def _close(stream: BinaryIO) -> None:
    with suppress(BrokenPipeError):  # the reader is gone, and told why
        stream.close()


class _Feeder(threading.Thread):
    """Hands on what comes out of a pipe."""

    def __init__(self, feed: Callable[[Iterator[bytes]], None], readable: int) -> None:
        super().__init__(daemon=True)
        self._feed = feed
        self._readable = readable
        self.fault: Exception | None = None
        self.abandoned = False

    def run(self) -> None:
        try:
            with os.fdopen(self._readable, "rb") as pipe:
                chunks = self._chunks(pipe)
                self._feed(chunks)
                for _ in chunks:  # padding that nobody needed: the writer must not find a broken pipe
                    pass
        except Exception as error:  # noqa: BLE001 (handed to the thread that waits)
            self.fault = error

    def _chunks(self, pipe: BinaryIO) -> Iterator[bytes]:
        while chunk := pipe.read(CHUNK):
            yield chunk
        if self.abandoned:
            raise InterruptedError("the writer gave up")


class _Chunks(io.RawIOBase):
    """A readable file over an iterator of byte strings."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._rest:
            chunk = next(self._chunks, None)
            if chunk is None:
                return 0
            self._rest = memoryview(chunk)
        count = min(len(buffer), len(self._rest))
        buffer[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count
