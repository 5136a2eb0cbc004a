"""Writes locks/sglang: the arguments of every stack's SGLang, out of its locked wheel in the store."""

from __future__ import annotations

from pathlib import Path

from kiln import patchqueue, sglangargs, sources
from kiln.patchqueue import Pinned
from kiln.settings import Settings
from kiln.store import Store


def write(settings: Settings) -> list[Path]:
    """Write every lock that differs and remove those of versions that no stack pins; returns the paths touched."""
    pinned = (one for one in patchqueue.pinned(settings) if one.component == "sglang")
    texts = {settings.root / sglangargs.lock_path(one.version): _text(settings, one) for one in pinned}
    return patchqueue.replace_files(texts, (settings.root / "locks/sglang").glob("args-*.toml"))


def _text(settings: Settings, one: Pinned) -> str:
    members = sources.members(Store(settings.store).require(one.source, f"inv fetch --stack {one.stacks[0]}"))
    files = {
        name: data.decode() for name, data in members if name.startswith(sglangargs.SOURCES) and name[-3:] == ".py"
    }
    return sglangargs.dump(sglangargs.extract(files))
