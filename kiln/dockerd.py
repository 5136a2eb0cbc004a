"""Docker's engine: whether one answers, and how ours is configured and started."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from kiln import bridge, daemon, host, run
from kiln.settings import Settings

DEADLINE_S = 60
DYING_S = 10.0
# containerd refuses a socket path of more than 104 bytes (the kernel's limit is 107); its longest is this one.
LONGEST_RUN_DIR = 104 - len("/exec/containerd/containerd.sock.ttrpc")
Announce = Callable[[str], None]


def silence(variables: Mapping[str, str]) -> str:
    """Return why no engine answers in an environment (added to the process's own); empty if one does."""
    address = variables.get("DOCKER_HOST") or environment_address()
    if address.startswith("unix://"):
        return _socket_silence(address.removeprefix("unix://"))
    import docker
    from docker.errors import DockerException

    try:
        docker.from_env(timeout=10, environment={**os.environ, **variables}).close()
    except (DockerException, OSError) as error:
        return _shortened(error)
    return ""


def _socket_silence(path: str) -> str:
    """Ask without the library: it is slow to load, and leaks its socket when the engine is not up yet."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as door:
            door.settimeout(10)
            door.connect(path)
            door.sendall(b"GET /_ping HTTP/1.0\r\n\r\n")
            first = door.recv(4096).partition(b"\r\n")[0].decode("ascii", "replace")
    except OSError as error:
        return _shortened(error)
    return "" if " 200 " in first else f"it answers {first!r}"


def environment(address: str) -> dict[str, str]:
    """Return the variables that make Docker's client and library talk to `address`."""
    return {"DOCKER_HOST": address, "DOCKER_CONTEXT": ""}


def environment_address() -> str:
    """Return the address that DOCKER_HOST or the current context gives."""
    from docker import ContextAPI

    if os.environ.get("DOCKER_HOST"):
        return os.environ["DOCKER_HOST"]
    return str(ContextAPI.kwargs_from_context().get("base_url", "unix:///var/run/docker.sock"))


def _shortened(error: Exception) -> str:
    text = str(error)
    if "Permission denied" in text or "PermissionError" in text:
        return "permission denied on its socket; a member of its group may use it: sudo usermod -aG docker $USER"
    return "nothing listens there" if "No such file" in text or "refused" in text else text.splitlines()[0][:200]


def state(settings: Settings) -> Path:
    """Return the state file of our engine."""
    return settings.home / "engine" / "state.json"


def _key(settings: Settings) -> str:
    return hashlib.sha256(os.fsencode(settings.home)).hexdigest()[:8]


def bridge_name(settings: Settings) -> str:
    """Return the name of our bridge: one for each home, so that two clones do not share it."""
    return f"kiln{_key(settings)}"


def run_dir(settings: Settings) -> Path:
    """Return where sockets and pid files of our engine are: below `.kiln/`, or below /run where that is too long."""
    wished = settings.home / "engine" / "run"
    return wished if len(os.fsencode(wished)) <= LONGEST_RUN_DIR else Path("/run") / f"kiln-{_key(settings)}"


def config(settings: Settings) -> dict[str, object]:
    """Return dockerd's configuration: everything its own, the firewall and routing of the host untouched.

    The bridge has a name of its own: a second daemon with `bridge: none` deletes the first one's docker0. No iptables
    rules: dockerd flushes those of another daemon at its start. Published ports still work (userland proxy).
    """
    here = run_dir(settings)
    return {
        "bridge": bridge_name(settings),
        "data-root": str(settings.home / "engine" / "data"),
        "exec-root": str(here / "exec"),
        "hosts": [f"unix://{here}/docker.sock"],
        "ip-forward": False,
        "ip-masq": False,
        "iptables": False,
        "pidfile": str(here / "docker.pid"),
        "storage-driver": "overlay2",
    }


def start(settings: Settings, announce: Announce) -> daemon.Daemon:
    """Start dockerd with all its state below `.kiln/` and wait until it answers. Takes root."""
    _clean_run_dir(settings)
    bridge.add(bridge_name(settings))
    file = settings.home / "engine" / "daemon.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(config(settings), indent=1) + "\n")
    log = settings.logs / "engine.log"
    address = f"unix://{run_dir(settings)}/docker.sock"
    announce(f"starting a container engine of our own below {file.parent} (`inv engine.down` stops it; log: {log})")
    # BuildKit drops a step's output beyond 1 MiB, or 200 KiB/s, otherwise. Docker 20.10 takes -1 as "nothing at all".
    unclipped = {"BUILDKIT_STEP_LOG_MAX_SIZE": str(2**30), "BUILDKIT_STEP_LOG_MAX_SPEED": str(2**30)}
    pid = run.spawn_daemon(
        [host.which("dockerd") or "dockerd", "--config-file", file],
        log=log, env={**unclipped, "PATH": host.search_path()},
    )  # fmt: skip
    return daemon.settle(state(settings), pid, address, log, lambda: not silence(environment(address)), DEADLINE_S)


def clean_up(settings: Settings) -> None:
    """Release the mounts that a killed engine has left, deepest first, busy or not, and drop its folder below /run."""
    here = run_dir(settings)
    host.unmount_below((settings.home / "engine", here))
    if not here.is_relative_to(settings.home):
        shutil.rmtree(here, ignore_errors=True)


def _clean_run_dir(settings: Settings) -> None:
    """Drop what an earlier boot left: containerd would look for processes that are gone."""
    here = run_dir(settings)
    marker = here / "boot"
    if not marker.exists() or marker.read_text() != daemon.boot_id():
        shutil.rmtree(here, ignore_errors=True)
        here.mkdir(parents=True, mode=0o700)
        marker.write_text(daemon.boot_id())
    _drop_if_stale(here / "docker.pid", "dockerd")
    _drop_if_stale(here / "exec" / "containerd" / "containerd.pid", "containerd")


def _drop_if_stale(pid_file: Path, program: str) -> None:
    """Remove a pid file whose process is gone or another's: dockerd only looks whether the number is in use.

    After a kill the process may still be dying; its engine is gone, so it gets a while to follow.
    """
    deadline = time.monotonic() + DYING_S
    while pid_file.exists() and not _is_stale(pid_file, program):
        if time.monotonic() > deadline:
            return
        time.sleep(0.1)
    pid_file.unlink(missing_ok=True)


def _is_stale(pid_file: Path, program: str) -> bool:
    try:
        pid = int(pid_file.read_text())
        return daemon.start_time(pid) is None or Path(f"/proc/{pid}/comm").read_text().strip() != program
    except (ValueError, FileNotFoundError, ProcessLookupError):
        return True
