"""Directories that appear whole: made aside in a workspace, then moved in place; what a killed run left is swept."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_PREFIX = ".canon-"


@contextmanager
def workspace(folder: Path) -> Iterator[Path]:
    """Make a directory that goes whatever happens; after a kill -9, the next run removes it."""
    _sweep(folder)
    work = Path(tempfile.mkdtemp(dir=folder, prefix=_PREFIX))
    held = os.open(work, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    try:
        yield work
    finally:
        shutil.rmtree(work)
        os.close(held)


def _sweep(folder: Path) -> None:
    for old in folder.glob(f"{_PREFIX}*"):
        with suppress(OSError):
            if time.time() - old.stat().st_mtime > 60 and not _is_held(old):
                shutil.rmtree(old)


def _is_held(folder: Path) -> bool:
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False


def replace(new: Path, dest: Path, aside: Path) -> None:
    """Move `new` to `dest`; what was there goes to `aside` first."""
    if dest.exists():
        dest.rename(aside)
    new.rename(dest)
