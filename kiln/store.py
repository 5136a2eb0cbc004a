"""The store: artefacts named by their sha256. Shared by any number of processes; a file in it is whole or absent."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from kiln.errors import UserError
from kiln.locks import Artifact

CHUNK = 1 << 20


@dataclass(frozen=True)
class Store:
    """A directory of read-only files; unfinished ones lie under `partial/` until they are proved."""

    directory: Path

    def path(self, sha256: str) -> Path:
        """Return where the artefact is, or would be."""
        return self.directory / sha256

    def has(self, artifact: Artifact) -> bool:
        """Say whether the artefact is here, by name and size; `verify` reads the bytes."""
        try:
            return self.path(artifact.sha256).stat().st_size == artifact.size
        except FileNotFoundError:
            return False

    def missing(self, artifacts: Iterable[Artifact]) -> list[Artifact]:
        """Return those that are not here, each content once, in the given order."""
        unique = {artifact.sha256: artifact for artifact in artifacts}
        return [artifact for artifact in unique.values() if not self.has(artifact)]

    def verify(self, artifact: Artifact) -> bool:
        """Read the whole file and say whether its bytes are the locked ones."""
        return self.has(artifact) and sha256_of(self.path(artifact.sha256)) == artifact.sha256

    def require(self, artifact: Artifact, command: str = "inv fetch") -> Path:
        """Return where an artefact lies. Raises UserError, naming the command that brings it, if it does not."""
        if not self.has(artifact):
            raise UserError(f"{artifact.file} is not in the store", hint=command)
        return self.path(artifact.sha256)

    def place(self, artifact: Artifact, directory: Path) -> Path:
        """Put the artefact into `directory` under its own file name: a hard link, or a copy across devices."""
        source = self.require(artifact)
        directory.mkdir(parents=True, exist_ok=True)
        target = directory / artifact.file
        target.unlink(missing_ok=True)
        try:
            target.hardlink_to(source)
        except OSError as error:
            if error.errno not in (errno.EXDEV, errno.EMLINK, errno.EPERM):
                raise
            shutil.copyfile(source, target)
        return target

    def add(self, source: Path | BinaryIO, sha256: str, size: int, label: str = "") -> Path:
        """Copy a file or stream in. Raises UserError, and keeps nothing, if its bytes are not the promised ones."""
        if isinstance(source, Path):
            with source.open("rb") as stream:
                return self.add(stream, sha256, size, label or source.name)
        with self.partial(sha256) as part:
            part.truncate(0)
            copied, found = _copy(source, part, size)
            if (copied, found) != (size, sha256):
                self.discard(sha256)
                raise changed(label or sha256[:12], sha256, size, found, copied)
            return self.commit(part, sha256)

    @contextmanager
    def partial(self, sha256: str) -> Iterator[BinaryIO]:
        """Open the unfinished file for appending and hold it alone; it still has what an earlier run left."""
        path = self.directory / "partial" / sha256
        path.parent.mkdir(parents=True, exist_ok=True)
        while True:
            with path.open("a+b") as part:
                fcntl.flock(part, fcntl.LOCK_EX)
                if _is_at(part, path):
                    yield part
                    return

    def commit(self, part: BinaryIO, sha256: str) -> Path:
        """Make a proved unfinished file visible. The caller holds it by `partial`."""
        part.flush()
        os.fchmod(part.fileno(), 0o444)
        (self.directory / "partial" / sha256).rename(self.path(sha256))
        return self.path(sha256)

    def discard(self, sha256: str) -> None:
        """Remove the unfinished file. The caller holds it by `partial`."""
        (self.directory / "partial" / sha256).unlink(missing_ok=True)


def changed(label: str, sha256: str, size: int, found: str, found_size: int) -> UserError:
    """Return the error for bytes that are not the locked ones."""
    return UserError(f"{label}: the bytes changed: locked sha256 {sha256} ({size} B), found {found} ({found_size} B)")


def sha256_of(source: Path | BinaryIO) -> str:
    """Hash a file, or what is left of a stream."""
    if isinstance(source, Path):
        with source.open("rb") as file:
            return sha256_of(file)
    digest = hashlib.sha256()
    while block := source.read(CHUNK):
        digest.update(block)
    return digest.hexdigest()


def _copy(source: BinaryIO, target: BinaryIO, limit: int) -> tuple[int, str]:
    """Copy at most one byte more than `limit`; returns the count and sha256 of what was copied."""
    digest = hashlib.sha256()
    copied = 0
    while copied <= limit and (block := source.read(min(CHUNK, limit + 1 - copied))):
        digest.update(block)
        target.write(block)
        copied += len(block)
    return copied, digest.hexdigest()


def _is_at(file: BinaryIO, path: Path) -> bool:
    """Say whether the open file still has the name `path`: its last holder may have finished or dropped it."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False
