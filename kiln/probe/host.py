"""The machine: kernel, processors, memory, limits, clock, file systems, ports."""

from __future__ import annotations

import ctypes
import os
import platform
import re
import resource
import struct
import time
from pathlib import Path
from typing import Any

from . import files, proctable

# File systems of a network: asking one for its size may hang.
NETWORK = (
    "nfs",
    "nfs4",
    "cifs",
    "smb3",
    "lustre",
    "ceph",
    "fuse.sshfs",
    "fuse.glusterfs",
    "gpfs",
    "beegfs",
    "9p",
    "afs",
)
_STA_UNSYNC = 0x40


def machine(faults: list[dict[str, str]], root: Path = Path("/")) -> dict[str, Any]:
    """Read what the machine is."""
    memory = dict(re.findall(r"^(\w+):\s+(\d+) kB", files.read(root / "proc/meminfo", faults) or "", re.MULTILINE))
    uptime = files.number(root / "proc/uptime", faults)
    packages = {files.read(path) for path in root.glob("sys/devices/system/cpu/cpu[0-9]*/topology/physical_package_id")}
    return {
        "hostname": platform.node(),
        "root": os.geteuid() == 0,
        "kernel": platform.release() or None,
        "os": _os_name(root),
        "boot_s": None if uptime is None else round(time.time() - uptime, 1),
        "cpus": os.cpu_count(),
        "sockets": len(packages) or None,
        "numa_nodes": len([*root.glob("sys/devices/system/node/node[0-9]*")]) or None,
        "memory_mib": _mib(memory, "MemTotal"),
        "memory_available_mib": _mib(memory, "MemAvailable"),
    }


def _os_name(root: Path) -> str | None:
    found = re.search(r'^PRETTY_NAME="?(.*?)"?$', files.read(root / "etc/os-release") or "", re.MULTILINE)
    return found[1] if found else None


def _mib(memory: dict[str, str], name: str) -> float | None:
    return round(int(memory[name]) / 1024, 1) if name in memory else None


def limits(faults: list[dict[str, str]], root: Path = Path("/")) -> dict[str, Any]:
    """Read the limits of the container engine, which its containers inherit; of this process if none runs."""
    for pid in proctable.named("dockerd", root):
        text = files.read(root / "proc" / str(pid) / "limits", faults)
        if text:
            rows = {"memlock_bytes": "Max locked memory", "nofile": "Max open files", "stack_bytes": "Max stack size"}
            return {"of": "dockerd", **{key: _row(text, title) for key, title in rows.items()}}
    kinds = {"memlock_bytes": resource.RLIMIT_MEMLOCK, "nofile": resource.RLIMIT_NOFILE,
             "stack_bytes": resource.RLIMIT_STACK}  # fmt: skip
    hard = {key: resource.getrlimit(kind)[1] for key, kind in kinds.items()}
    return {
        "of": "this session",
        **{key: -1 if value == resource.RLIM_INFINITY else value for key, value in hard.items()},
    }


def _row(text: str, title: str) -> int | None:
    """Return the hard limit from a row of /proc/PID/limits."""
    found = re.search(rf"^{title}\s+\S+\s+(\S+)", text, re.MULTILINE)
    if not found:
        return None
    return -1 if found[1] == "unlimited" else int(found[1])


def shm(faults: list[dict[str, str]], root: Path = Path("/")) -> dict[str, Any] | None:
    """Read the size of /dev/shm and which of NCCL's segments there are left over."""
    folder = root / "dev/shm"
    try:
        size = os.statvfs(folder)
        names = sorted(path.name for path in folder.glob("nccl-*"))
    except OSError as error:
        faults.append({"source": str(folder), "error": error.strerror or str(error)})
        return None
    used = proctable.mapped("/dev/shm/nccl-", root) if names else set()
    mib = size.f_frsize / 1048576
    return {"total_mib": round(size.f_blocks * mib, 1), "free_mib": round(size.f_bavail * mib, 1),
            "stale_nccl": [name for name in names if name not in used]}  # fmt: skip


def clock(faults: list[dict[str, str]]) -> dict[str, Any] | None:
    """Ask the kernel whether its clock is synchronised: adjtimex(2), which changes nothing with no mode set."""
    buffer = ctypes.create_string_buffer(256)
    if ctypes.CDLL(None, use_errno=True).adjtimex(buffer) < 0:
        faults.append({"source": "adjtimex", "error": os.strerror(ctypes.get_errno())})
        return None
    _, _, _, max_error_us, _, status = struct.unpack_from("Iqqqqi", buffer)
    return {"synchronised": not status & _STA_UNSYNC, "max_error_s": max_error_us / 1e6}


def disk(purpose: str, path: str, faults: list[dict[str, str]], root: Path = Path("/")) -> dict[str, Any] | None:
    """Read the file system of a path, or of its nearest parent that is there."""
    here = Path(path).resolve()
    while not here.exists() and here != here.parent:
        here = here.parent
    found = mount(here, files.read(root / "proc/self/mountinfo", faults) or "")
    if found is None:
        faults.append({"source": path, "error": "no mount in /proc/self/mountinfo holds it"})
        return None
    point, kind = found
    sizes: dict[str, int] = {}
    if kind not in NETWORK:
        size = os.statvfs(here)
        sizes = {"total_bytes": size.f_blocks * size.f_frsize, "free_bytes": size.f_bavail * size.f_frsize}
    return {"purpose": purpose, "path": path, "mount": point, "kind": kind, **sizes}


def mount(path: Path, mountinfo: str) -> tuple[str, str] | None:
    """Return the mount point and the type of the file system that a path lies on: the last one mounted there."""
    best: tuple[str, str] | None = None
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        point = left.split()[4].encode().decode("unicode_escape")
        if path == Path(point) or Path(point) in path.parents:
            best = best if best and len(best[0]) > len(point) else (point, right.split()[0])
    return best


def ports(wanted: list[int], faults: list[dict[str, str]], root: Path = Path("/")) -> list[dict[str, Any]] | None:
    """Say of each port whether something listens on it."""
    tables = [files.read(root / "proc/net" / name) for name in ("tcp", "tcp6")]
    if not any(tables):
        faults.append({"source": "/proc/net/tcp", "error": "cannot be read"})
        return None
    rows = [line.split() for table in tables for line in (table or "").splitlines()[1:]]
    taken = {int(row[1].rpartition(":")[2], 16): row[9] for row in rows if row[3] == "0A"}
    owners = {port: proctable.of_socket(taken[port], root) for port in wanted if port in taken}
    return [{"port": port, "free": port not in taken, "owner": owners.get(port)} for port in wanted]
