"""A file that is written whole or not at all, also where several processes write and use it at once."""

from __future__ import annotations

import os
import threading
from pathlib import Path


def write(path: Path, data: bytes, mode: int | None = None) -> None:
    """Write a file in one step, with its folder; whoever has the old one open, or runs it, keeps that."""
    path.parent.mkdir(parents=True, exist_ok=True)
    half = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    half.write_bytes(data)
    if mode is not None:
        half.chmod(mode)
    half.replace(path)
