"""Fill the store with locked artefacts: the only step with network."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from dataclasses import dataclass

from kiln.errors import UserError
from kiln.locks import Artifact, StackLock
from kiln.progress import Counter, Progress, ViewProgress
from kiln.settings import Settings
from kiln.store import Store

__all__ = ["Progress", "Summary", "ViewProgress", "fetch", "fetch_stack"]


@dataclass(frozen=True)
class Summary:
    """What a fetch found: counts of artefacts and bytes that came, and that were there before."""

    fetched_files: int
    fetched_bytes: int
    present_files: int
    present_bytes: int


def fetch_stack(settings: Settings, stack: StackLock, progress: Progress | None = None) -> Summary:
    """Fetch every artefact of a stack's locks, and the tools."""
    return fetch(settings, Store(settings.store), stack.artifacts(), progress)


def fetch(
    settings: Settings,
    store: Store,
    artifacts: Iterable[Artifact],
    progress: Progress | None = None,
    *,
    pause_s: float = 0.5,
) -> Summary:
    """Bring what the store lacks. Raises Problems naming every artefact that was found nowhere, with the places."""
    wanted = {artifact.sha256: artifact for artifact in artifacts}
    missing = store.missing(wanted.values())
    have = len(wanted) - len(missing), sum(one.size for one in wanted.values()) - sum(one.size for one in missing)
    summary = Summary(len(missing), sum(one.size for one in missing), *have)
    if not missing:
        return summary
    store.directory.mkdir(parents=True, exist_ok=True)
    _require_space(store, summary.fetched_bytes)
    shown = progress or Counter()
    shown.begin(len(missing), summary.fetched_bytes)
    from kiln import transfers  # the HTTP client is slow to load, and most fetches find everything here

    transfers.bring(settings, store, missing, shown, pause_s)
    return summary


def _require_space(store: Store, needed: int) -> None:
    free = shutil.disk_usage(store.directory).free
    if free < needed * 1.02:
        text = f"{needed / 1e9:.1f} GB are to be fetched, {free / 1e9:.1f} GB are free in {store.directory}"
        raise UserError(text, hint="make room, or set KILN_HOME to a larger disk")
