"""Open what is to be audited: an OCI layout, a wheel, a folder or one file."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, cast

from kiln.audit import layers
from kiln.audit.reader import Reader
from kiln.audit.records import Record, Target
from kiln.errors import UserError

_ROOT_OF_A_SYSTEM = ("etc/os-release", "usr/lib/os-release")


def read(path: Path, reader: Reader, say: Callable[[str], None]) -> Target:
    """Read a target. Raises UserError for a path that is none of the four."""
    if (path / "index.json").is_file() and (path / "oci-layout").is_file():
        return layers.read(path, reader, say)
    if path.is_dir():
        whole = any((path / name).exists() for name in _ROOT_OF_A_SYSTEM)
        return Target(str(path), whole, {record.path: record for record in _folder(path, reader)})
    if path.is_file() and zipfile.is_zipfile(path):
        return Target(str(path), False, {record.path: record for record in _wheel(path, reader)})
    if path.is_file():
        return Target(str(path), False, {path.name: reader.read_file(path.name, path)})
    hint = "inv build, or name an OCI layout, a wheel, a folder or a shared object"
    raise UserError(f"{path} does not exist", hint=hint)


def _folder(path: Path, reader: Reader) -> Iterator[Record]:
    for file in sorted(path.rglob("*")):
        name = str(file.relative_to(path))
        if file.is_symlink():
            yield Record(name, link=str(file.readlink()))
        elif file.is_file():
            yield reader.read_file(name, file)


def _wheel(path: Path, reader: Reader) -> Iterator[Record]:
    with zipfile.ZipFile(path) as archive:
        for entry in archive.infolist():
            if not entry.is_dir():
                with archive.open(entry) as stream:
                    yield reader.read(entry.filename, cast(BinaryIO, stream), entry.file_size)
