"""Processes of the node, from /proc. A zombie is no process: it holds nothing and cannot be stopped."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from . import files

ROOT = Path("/")


def _alive(root: Path) -> Iterator[tuple[int, str, int]]:
    """Yield the number, the name and the parent's number of each process that is no zombie."""
    for path in root.glob("proc/[0-9]*/stat"):
        text = files.read(path)
        if text:
            name, _, rest = text.partition("(")[2].rpartition(")")
            state, parent = rest.split()[:2]
            if state not in "ZX":
                yield int(path.parent.name), name, int(parent)


def named(name: str, root: Path = ROOT) -> list[int]:
    """Return the processes with a name, of which the kernel keeps 15 letters."""
    return [pid for pid, found, _ in _alive(root) if found == name[:15]]


def title(pid: int, root: Path = ROOT) -> str:
    """Return a process's command line."""
    text = files.read(root / "proc" / str(pid) / "cmdline") or ""
    return " ".join(text.replace("\0", " ").split())


def servers(faults: list[dict[str, str]], root: Path = ROOT) -> list[dict[str, Any]]:
    """Return the processes of SGLang servers; an orphan is a worker whose parent is none of them."""
    found = {pid: (title(pid, root) or name, parent) for pid, name, parent in _alive(root)}
    ours = {pid for pid, (words, _) in found.items() if _is_server(words)}
    return [
        {"pid": pid, "title": found[pid][0][:120], "orphan": _is_worker(found[pid][0]) and found[pid][1] not in ours}
        for pid in sorted(ours)
    ]


def _is_worker(words: str) -> bool:
    """Workers name themselves: `sglang::scheduler_TP0`, `sglang::detokenizer`."""
    return words.startswith("sglang::")


def _is_server(words: str) -> bool:
    """Tell a server from a shell or an editor that has its words in an argument."""
    program, _, rest = words.partition(" ")
    python = program.rpartition("/")[2].startswith("python")
    return _is_worker(words) or (python and ("sglang.launch_server" in rest or "/sglang serve" in rest))


def mapped(prefix: str, root: Path = ROOT) -> set[str]:
    """Return the names of the files below a prefix that some process has mapped."""
    found: set[str] = set()
    for maps in root.glob("proc/[0-9]*/maps"):
        lines = (files.read(maps) or "").splitlines()
        found.update(line.rpartition("/")[2].split()[0] for line in lines if prefix in line)
    return found


def of_socket(inode: str, root: Path = ROOT) -> str | None:
    """Return "PID COMMAND" of the process that holds a socket; None if we may not see it."""
    for link in root.glob("proc/[0-9]*/fd/*"):
        try:
            target = os.readlink(link)
        except OSError:
            continue
        if target == f"socket:[{inode}]":
            pid = int(link.parts[-3])
            return f"{pid} {title(pid, root)[:80]}"
    return None
