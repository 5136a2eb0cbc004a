"""The `docker` programs of this host, and which of them can do BuildKit builds."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kiln import host, run

_PROBE_TIMEOUT_S = 15


@dataclass(frozen=True)
class Client:
    """A `docker` program: whether it reaches the engine, and whether it can do BuildKit builds there."""

    path: Path
    version: str = ""
    server: str = ""
    buildx: bool = False
    fault: str = ""

    def __str__(self) -> str:
        name = f"{self.path} {self.version}".rstrip()
        return f"{name}: {self.fault}" if self.fault else name


def on_path() -> tuple[Path, ...]:
    """Return every `docker` on PATH, each once."""
    found: dict[Path, Path] = {}
    for folder in host.search_path().split(os.pathsep):
        path = Path(folder) / "docker"
        if path.is_file() and os.access(path, os.X_OK):
            found.setdefault(path.resolve(), path)
    return tuple(found.values())


def probe(path: Path, variables: Mapping[str, str]) -> Client:
    """Ask one client for its version, the engine's version and, where builds need it, its buildx plugin."""
    try:
        # Not `--format json`: Docker 20.10 prints that word.
        done = run.run(
            [path, "version", "--format", "{{json .}}"], check=False, timeout_s=_PROBE_TIMEOUT_S, env=variables
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Client(path, fault=f"does not run: {error}")
    client = classify(path, done.stdout, done.stderr)
    if client.fault or _major(client.version) < 23:
        return client
    plugin = run.run([path, "buildx", "version"], check=False, timeout_s=_PROBE_TIMEOUT_S)
    if plugin.returncode != 0:
        return Client(path, client.version, client.server, fault="has no buildx plugin, which clients since 23 need")
    return Client(path, client.version, client.server, buildx=True)


def classify(path: Path, stdout: str, stderr: str) -> Client:
    """Judge what `docker version --format '{{json .}}'` printed."""
    try:
        words = json.loads(stdout)
        client, server = words["Client"], words.get("Server")
        version = str(client["Version"])
    except (ValueError, KeyError, TypeError):
        return Client(path, fault=f"its version is unreadable: {_first_line(stderr or stdout)}")
    if "ApiVersion" not in client:
        return Client(path, version, fault="is not Docker's client (podman?)")
    if not server:
        return Client(path, version, fault=f"does not reach the engine: {_first_line(stderr)}")
    if any("podman" in part.get("Name", "").lower() for part in server.get("Components") or ()):
        return Client(path, version, fault="the engine is Podman, which has no BuildKit")
    return Client(path, version, str(server.get("Version", "")))


def _major(version: str) -> int:
    head = version.partition(".")[0]
    # A build from a branch has no number; those are newer than 23.
    return int(head) if head.isdigit() else 99


def _first_line(text: str) -> str:
    return (text.strip().splitlines() or ["no word why"])[0][:200]
