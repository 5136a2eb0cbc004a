"""`inv gc`: remove what interrupted builds left and what no layout uses. Never touches store, locks or receipts."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from kiln.settings import Settings


def clean(settings: Settings, *, everything: bool) -> Iterator[str]:
    """Yield one line per thing removed. A plan that a running build holds is left alone."""
    for folder in sorted(settings.builds.glob("*/context")):
        if _idle(settings, folder.parent.name):
            yield _remove(folder)
    used = {blob.name for blob in settings.home.glob("images/*/blobs/sha256/*")}
    for blob in sorted(settings.home.glob("layers/**/blobs/*")):
        if blob.name not in used:
            yield _remove(blob)
    if everything:
        yield from _everything(settings)


def _everything(settings: Settings) -> Iterator[str]:
    for name in ("images", "layers", "builds", "logs"):
        if (settings.home / name).exists():
            yield _remove(settings.home / name)
    from kiln.engines import docker

    engine = docker.quietly()
    for ref in engine.images("kiln/") if engine else ():
        engine.remove(ref)  # type: ignore[union-attr]
        yield f"removed image {ref}"


def _idle(settings: Settings, plan12: str) -> bool:
    locks = settings.home / "locks"
    locks.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(locks / f"{plan12}.lock", timeout=0):
            return True
    except Timeout:
        return False


def _remove(path: Path) -> str:
    size = (
        sum(file.stat().st_size for file in path.rglob("*") if file.is_file()) if path.is_dir() else path.stat().st_size
    )
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    return f"removed {path} ({size / 1e6:.1f} MB)"
