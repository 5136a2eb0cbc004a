"""Patched wheels: a wheel of the store with some files changed, its RECORD rewritten and our local version."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import re
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from kiln import gitapply, patchlocks, sources
from kiln.locks import Wheel
from kiln.patches import Patch
from kiln.patchlocks import PatchedFile
from kiln.store import Store, sha256_of

_METADATA = ".dist-info/METADATA"


def place(wheel: Wheel, queue: Iterable[Patch], results: Iterable[PatchedFile], store: Store, directory: Path) -> Wheel:
    """Write the patched wheel into `directory`: stored, not compressed, as compressors differ between machines.

    Raises CheckFailed if a patch does not apply exactly, or if what comes out is not what the lock says.
    """
    patches = tuple(queue)
    named = patchlocks.renamed(wheel, patches)
    target = directory / named.file
    upstream = store.require(wheel)
    with sources.patched(upstream, patches) as (tree, outcomes):
        gitapply.require(outcomes, wheel.file)
        sources.verify(tree, [one for one in results if one.component == patchlocks.component_of(wheel)])
        changed = {file: _read(tree / file) for patch in patches for file in patch.files}
    with zipfile.ZipFile(upstream) as source:
        _write(source, _moves(source, wheel, named), changed, named.version, target)
    return replace(named, size=target.stat().st_size, sha256=sha256_of(target))


def _moves(source: zipfile.ZipFile, wheel: Wheel, named: Wheel) -> Mapping[str, str]:
    """Return the new name of every file: those of the version's own folders move with it."""
    stem, new = (f"{one.file.split('-')[0]}-{one.version}" for one in (wheel, named))
    pattern = re.compile(rf"^{re.escape(stem)}(?=\.(dist-info|data)/)")
    files = (name for name in source.namelist() if not name.endswith("/"))
    return {name: pattern.sub(new, name) for name in files}


def _write(
    source: zipfile.ZipFile, moves: Mapping[str, str], changed: Mapping[str, bytes | None], version: str, target: Path
) -> None:
    """Write the files in the order of the original, new ones sorted after them, RECORD last."""
    record = next(old for old in moves if old.endswith(".dist-info/RECORD"))
    rows = {row[0]: row[1:] for row in csv.reader(io.StringIO(source.read(record).decode()))}
    written: list[list[str]] = []
    added = {name: name for name in sorted(changed) if name not in moves}
    with zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as out:
        for old, new in {**moves, **added}.items():
            data = _content(source, old, changed, version)
            if data is None or old == record:
                continue
            out.writestr(_entry(source.getinfo(old if old in moves else record), new), data)
            same = old in rows and old not in changed and not new.endswith(_METADATA)
            written.append([new, *(rows[old] if same else [_hash(data), str(len(data))])])
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([*written, [moves[record], "", ""]])
        out.writestr(_entry(source.getinfo(record), moves[record]), text.getvalue())


def _content(source: zipfile.ZipFile, old: str, changed: Mapping[str, bytes | None], version: str) -> bytes | None:
    """Return what a file becomes; None if a patch removes it."""
    if old in changed:
        return changed[old]
    data = source.read(old)
    if old.endswith(_METADATA):
        return re.sub(rb"(?m)^Version: .*$", f"Version: {version}".encode(), data, count=1)
    return data


def _entry(like: zipfile.ZipInfo, name: str) -> zipfile.ZipInfo:
    """Return the head of a member with date and mode of another."""
    info = zipfile.ZipInfo(name, like.date_time)
    info.create_system, info.external_attr = 3, like.external_attr
    return info


def _hash(data: bytes) -> str:
    return f"sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b'=').decode()}"


def _read(path: Path) -> bytes | None:
    return path.read_bytes() if path.exists() else None
