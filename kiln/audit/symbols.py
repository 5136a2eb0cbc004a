"""Symbols and search paths: what the loader would find, read off the files."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator

from kiln.audit.facts import Facts
from kiln.audit.records import Record, Target
from kiln.audit.rules import Finding

DRIVER = "libcuda.so.1"
_NCCL = "libnccl.so"
# Begins like the driver's names, and is a library of its own.
_CUFILE, _CUFILE_LIBRARY = "cuFile", "libcufile.so"
# What a GPU node's driver brings, and the container toolkit mounts.
FROM_THE_DRIVER = (
    DRIVER, "libcudadebugger.so.1", "libnvcuvid.so.1", "libnvidia-encode.so.1", "libnvidia-ml.so.1",
    "libnvidia-ptxjitcompiler.so.1", "libnvoptix.so.1",
)  # fmt: skip


def check(target: Target) -> Iterator[Finding]:
    """Yield driver and NCCL symbols that nothing named provides, odd search paths, libraries that are nowhere."""
    exports = _exports(target)
    folders = {posixpath.dirname(path) for path in target.records}
    libraries = {posixpath.basename(path) for path in target.records}
    for record, facts in target.binaries():
        yield from _undefined(record, facts, exports)
        yield from _search(record, facts, target, folders)
        if target.whole:
            yield from _nowhere(record, facts, libraries)


def _exports(target: Target) -> dict[str, set[str]]:
    """Return the driver's and NCCL's names that each library of the target exports, by its names."""
    found: dict[str, set[str]] = {}
    for record, facts in target.binaries():
        for name in {facts.soname, posixpath.basename(record.path)} - {""}:
            found.setdefault(name, set()).update(facts.exported)
    return found


def _undefined(record: Record, facts: Facts, exports: dict[str, set[str]]) -> Iterator[Finding]:
    provided = {name for library in facts.needed for name in exports.get(library, ())}
    left = [name for name in facts.undefined if name not in provided]
    if any(name.startswith(_CUFILE_LIBRARY) for name in facts.needed):
        left = [name for name in left if not name.startswith(_CUFILE)]
    driver = tuple(name for name in left if name.startswith("cu"))
    nccl = tuple(name for name in left if name.startswith("nccl"))
    if driver and DRIVER not in facts.needed:
        yield Finding("symbols", record.short, DRIVER, f"calls {_some(driver)} without {DRIVER} in NEEDED", driver)
    here = {name for library, names in exports.items() if library.startswith(_NCCL) for name in names}
    if nccl and not any(name.startswith(_NCCL) for name in facts.needed):
        yield Finding("symbols", record.short, _NCCL, f"calls {_some(nccl)} without {_NCCL} in NEEDED", nccl)
    elif here and (lacking := tuple(name for name in nccl if name not in here)):
        yield Finding("symbols", record.short, _NCCL, f"calls {_some(lacking)}, which no {_NCCL} here has", lacking)


def _search(record: Record, facts: Facts, target: Target, folders: set[str]) -> Iterator[Finding]:
    here = posixpath.dirname(record.path)
    for entry in facts.search:
        problem = _entry_problem(entry, here, target, folders)
        if problem:
            yield Finding("symbols", record.short, "RUNPATH", f"{entry!r} {problem}")


def _entry_problem(entry: str, here: str, target: Target, folders: set[str]) -> str:
    plain = entry.replace("${ORIGIN}", "$ORIGIN")
    if plain.startswith("$ORIGIN"):
        found = posixpath.normpath(posixpath.join("/", here, plain.removeprefix("$ORIGIN").lstrip("/")))
        depth = posixpath.join(here, plain.removeprefix("$ORIGIN").lstrip("/"))
        escapes = posixpath.normpath(depth).startswith("..")
        return f"leads out of {'the root' if target.whole else 'the target'}" if escapes and found else ""
    if not plain.startswith("/"):
        return "depends on the working directory"
    if not target.whole:
        return "is a path of the machine that built it"
    inside = posixpath.normpath(plain).lstrip("/")
    exists = inside in folders or any(folder.startswith(f"{inside}/") for folder in folders) or inside in target.records
    return "" if exists else "is not in the image: a path of the machine that built it"


def _nowhere(record: Record, facts: Facts, libraries: set[str]) -> Iterator[Finding]:
    for name in facts.needed:
        if name not in libraries and name not in FROM_THE_DRIVER:
            yield Finding("symbols", record.short, name, f"needs {name}, which is nowhere in the image")


def _some(names: tuple[str, ...]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
