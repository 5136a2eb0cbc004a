"""What `inv fetch` does: import, fetch, export, for one stack or several."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from kiln import archive, fetch, locks, progress, versions
from kiln.archive import Imported
from kiln.settings import Settings
from kiln.store import Store


def fetch_stacks(settings: Settings, stacks: Sequence[str], *, export: str, import_: str) -> Iterator[str]:
    """Yield one line per thing done. Raises UserError, Problems; what came before an error stays in the store."""
    loaded = versions.load(settings.root / "versions.yaml")
    names = [loaded.stack(name).name for name in stacks or (loaded.defaults.stack,)]
    store = Store(settings.store)
    if import_:
        yield _imported(import_, archive.load(settings.root, store, Path(import_)))
    for name in names:
        with progress.terminal() as shown:
            found = fetch.fetch_stack(settings, locks.load(settings.root, name), shown)
        yield (
            f"{name}: {found.fetched_files} files fetched ({found.fetched_bytes / 1e6:.1f} MB), "
            f"{found.present_files} were there ({found.present_bytes / 1e6:.1f} MB)"
        )
    if export:
        archive.export(settings.root, store, names, Path(export))
        yield f"exported {', '.join(names)} to {export} ({Path(export).stat().st_size / 1e6:.1f} MB)"


def _imported(source: str, found: Imported) -> str:
    others = f"; its locks differ from these here: {', '.join(found.other_locks)}" if found.other_locks else ""
    size = f"{found.size_bytes / 1e6:.1f} MB"
    return f"imported {source}: {found.added} files added ({size}), {found.present} were there{others}"
