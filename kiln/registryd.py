"""A registry of our own on loopback: how it is configured and started."""

from __future__ import annotations

import json
import secrets
import socket
import time
from collections.abc import Callable
from pathlib import Path

from kiln import daemon, host, run
from kiln.settings import Settings

DEADLINE_S = 20
_PATIENCE_S = 5.0
Announce = Callable[[str], None]


def state(settings: Settings) -> Path:
    """Return the state file of our registry."""
    return settings.home / "registry" / "state.json"


def answers(address: str) -> bool:
    """Tell whether a registry answers at a loopback address."""
    import requests

    try:
        with requests.Session() as session:
            session.trust_env = False  # no proxy between us and loopback
            return session.get(f"http://{address}/v2/", timeout=3).status_code == 200
    except requests.RequestException:
        return False


def config(storage: Path, address: str, secret: str) -> str:
    """Return the registry's configuration. A fixed secret lets an upload go on after the registry was restarted."""
    return json.dumps(
        {
            "version": "0.1",
            "log": {"level": "warn", "accesslog": {"disabled": True}},
            "storage": {"filesystem": {"rootdirectory": str(storage)}, "delete": {"enabled": True}},
            "http": {"addr": address, "secret": secret},
        },
        indent=1,
    )


def start(settings: Settings, announce: Announce) -> daemon.Daemon:
    """Start the registry on a free port of loopback, 5000 or the one it had before if possible."""
    host.ensure(settings, ("docker-registry",), announce)
    home = settings.home / "registry"
    home.mkdir(parents=True, exist_ok=True)
    known = daemon.recall(state(settings))
    port = int(known.address.rpartition(":")[2]) if known else 5000
    # A registry that was killed a moment ago may hold its port a little longer.
    address = f"127.0.0.1:{_free_port(port, patience_s=_PATIENCE_S if known else 0)}"
    file = home / "config.yml"
    file.write_text(config(home / "data", address, _secret(home / "secret")))
    log = settings.logs / "registry.log"
    announce(f"starting a registry on {address} (images: {home}, log: {log})")
    pid = run.spawn_daemon([host.which("docker-registry") or "docker-registry", "serve", file], log=log)
    return daemon.settle(state(settings), pid, address, log, lambda: answers(address), DEADLINE_S)


def _secret(path: Path) -> str:
    if not path.exists():
        path.touch(mode=0o600)
        path.write_text(secrets.token_hex(32))
    return path.read_text()


def _free_port(preferred: int, *, patience_s: float) -> int:
    """Return the preferred port, waited for a while, or else any free one."""
    deadline = time.monotonic() + patience_s
    while not _is_free(preferred):
        if time.monotonic() > deadline:
            return _any_port()
        time.sleep(0.1)
    return preferred


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def _any_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
