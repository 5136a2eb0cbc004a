"""Canonical layers made before, by what they were made from. Safe for processes that share it."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from kiln.compression import Compression
from kiln.tarlayer import Written

CANON_VERSION = 2
"""Raise it with every change that alters the bytes of a canonical layer."""


def key(diff_ids: Sequence[str], epoch: int, compression: Compression) -> str:
    """Name a layer by the raw layers up to and with it."""
    import zstandard

    parts = (CANON_VERSION, epoch, compression, zstandard.ZSTD_VERSION, list(diff_ids))
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def get(cache: Path, name: str, blobs: Path) -> Written | None:
    """Link a known layer into `blobs`; None if it is unknown or its blob is damaged (then it is forgotten)."""
    record = cache / "layers" / f"{name}.json"
    try:
        written = Written(**json.loads(record.read_bytes()))
        blob = cache / "blobs" / written.digest[7:]
        with blob.open("rb") as file:
            intact = hashlib.file_digest(file, "sha256").hexdigest() == blob.name
    except (OSError, ValueError, TypeError):
        return None
    if not intact:
        record.unlink(missing_ok=True)
        return None
    os.utime(record)
    place(blob, blobs / blob.name)
    return written


def put(cache: Path, name: str, written: Written, blob: Path) -> None:
    """Remember a layer; its blob first, so that a record never lacks it."""
    for folder in ("layers", "blobs"):
        (cache / folder).mkdir(parents=True, exist_ok=True)
    place(blob, cache / "blobs" / blob.name)
    data = json.dumps(asdict(written), sort_keys=True).encode()
    with tempfile.NamedTemporaryFile(dir=cache / "layers", prefix=".", delete=False) as file:
        file.write(data)
    Path(file.name).replace(cache / "layers" / f"{name}.json")


def place(blob: Path, target: Path) -> None:
    """Hard-link a blob, or copy it to another file system; the target appears whole and replaces what was there."""
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".") as folder:
        half = Path(folder) / target.name
        try:
            os.link(blob, half)
        except OSError as error:
            if error.errno not in (errno.EXDEV, errno.EMLINK, errno.EPERM):
                raise
            shutil.copyfile(blob, half)
        half.replace(target)
