"""`inv gc`: remove what interrupted builds left and what no layout uses. Never touches store, locks or receipts."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from filelock import FileLock, Timeout

from kiln import engines, reproduce
from kiln.engines import buildah
from kiln.settings import Settings


def clean(settings: Settings, *, everything: bool) -> Iterator[str]:
    """Yield one line per thing removed. What a running build uses is left alone: its plan's folders, and all that
    builds share."""
    held = _held(settings)
    for folder in sorted(settings.builds.glob("*/context")):
        if folder.parent.name not in held:
            yield _remove(folder)
    if everything:
        yield from _plans(settings, held)
    if held:
        yield "kept layers and images in the engine: a build is running"
    elif everything:
        yield from _shared(settings)
    else:
        yield from _unused_layers(settings)


def _plans(settings: Settings, held: set[str]) -> Iterator[str]:
    for folder in (settings.home / "images", settings.builds, settings.logs):
        for path in sorted(folder.glob("*")):
            # A layout in the making has a hidden name, which does not say whose it is.
            if path.name.removesuffix("-gz") not in held and not (held and path.name.startswith(".")):
                yield _remove(path)
        with suppress(OSError):
            folder.rmdir()


def _shared(settings: Settings) -> Iterator[str]:
    if (settings.home / "layers").exists():
        yield _remove(settings.home / "layers")
    for folder in sorted(reproduce.places(settings)):
        reproduce.discard(replace(settings, home=folder))
    for name in ("reproduce", "verify", "audit"):
        if (settings.home / name).exists():
            yield _remove(settings.home / name)
    if engine := engines.quietly(settings):
        for ref in (*engine.images("kiln/"), *engine.images("kiln-test/")):
            engine.remove(ref)
            yield f"removed image {ref}"
    if storage := buildah.quietly(settings):
        storage.wipe()
        yield f"removed {storage.home}"


def _unused_layers(settings: Settings) -> Iterator[str]:
    used = {blob.name for blob in settings.home.glob("images/*/blobs/sha256/*")}
    for blob in sorted(settings.home.glob("layers/**/blobs/*")):
        if blob.name not in used:
            yield _remove(blob)


def _held(settings: Settings) -> set[str]:
    """Names of the plans and images that running builds hold."""
    locks = sorted((settings.home / "locks").glob("*.lock"))
    return {lock.stem for lock in locks if not _idle(lock)}


def _idle(lock: Path) -> bool:
    try:
        with FileLock(lock, timeout=0):
            return True
    except Timeout:
        return False


def _remove(path: Path) -> str:
    size = (
        sum(file.stat().st_size for file in path.rglob("*") if file.is_file()) if path.is_dir() else path.stat().st_size
    )
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    return f"removed {path} ({size / 1e6:.1f} MB)"
