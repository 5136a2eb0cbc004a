"""The machine kiln runs on: which programs it lacks, how to get them, and how much disk, memory and CPU there is."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

from kiln import run
from kiln.errors import UserError
from kiln.settings import Settings

# Debian's package for each program that kiln starts and does not bring along in its .venv.
PACKAGES = {
    "buildah": "buildah",
    "chromium": "chromium",
    "diffoscope": "diffoscope-minimal",
    "docker": "docker.io",
    "dockerd": "docker.io",
    "docker-registry": "docker-registry",
    "git": "git",
    "ip": "iproute2",
    "mmdebstrap": "mmdebstrap",
    "newuidmap": "uidmap",
    "podman": "podman",
    "runc": "runc",
    "skopeo": "skopeo",
    "ssh": "openssh-client",
    "sshd": "openssh-server",
}
# What these packages start at once.
SERVICES = {"docker-registry": "docker-registry.service", "openssh-server": "ssh.service"}
# A plain user's PATH lacks these on Debian, and dockerd lives there.
SYSTEM_PATH = ("/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/bin", "/bin")
Announce = Callable[[str], None]


def is_root() -> bool:
    """Tell whether this process may install packages and start an engine."""
    return os.geteuid() == 0


def search_path() -> str:
    """Return PATH, completed with the system's folders."""
    words = [word for word in os.environ.get("PATH", "").split(os.pathsep) if word]
    return os.pathsep.join([*words, *(word for word in SYSTEM_PATH if word not in words)])


def which(program: str) -> Path | None:
    """Return where a program is."""
    found = shutil.which(program, path=search_path())
    return Path(found) if found else None


def missing(programs: Iterable[str]) -> tuple[str, ...]:
    """Return the Debian packages that would bring the programs this host lacks."""
    return tuple(sorted({PACKAGES[program] for program in programs if which(program) is None}))


def ensure(settings: Settings, programs: Iterable[str], announce: Announce) -> None:
    """Install what the host lacks, or raise UserError that says what to install."""
    packages = missing(programs)
    if packages:
        install(settings, packages, announce)


def install(settings: Settings, packages: Iterable[str], announce: Announce) -> None:
    """Install Debian packages, announced first. Never removes one (docker-ce and docker.io exclude each other)."""
    names = tuple(packages)
    _refuse(settings, names)
    announce(f"installing Debian packages: {' '.join(names)} (KILN_NO_INSTALL=1 refuses)")
    log = settings.logs / "install.log"
    env = {"DEBIAN_FRONTEND": "noninteractive", "PATH": search_path()}
    # A foreign source that fails to update is no reason to stop: the install itself is checked.
    run.stream(["apt-get", "-q", "update"], log=log, env=env)
    argv = ["apt-get", "-q", "-y", "--no-install-recommends", "--no-remove", "-o", "DPkg::Lock::Timeout=120", "install"]
    done = run.stream([*argv, *names], log=log, env=env)
    if done.returncode != 0:
        raise UserError(
            f"`apt-get install {' '.join(names)}` ended with {done.returncode}:\n{_tail(done.stdout)}",
            hint=f"see {log}",
        )
    _quiet(names, announce)


def _refuse(settings: Settings, names: tuple[str, ...]) -> None:
    by_hand = f"apt-get install --no-install-recommends {' '.join(names)}"
    if which("apt-get") is None:
        raise UserError(
            f"this host lacks what these Debian packages hold: {' '.join(names)}",
            hint="it is not Debian: install them with its own package manager",
        )
    if settings.no_install:
        raise UserError(f"this host lacks {' '.join(names)}, and KILN_NO_INSTALL is set", hint=by_hand)
    if not is_root():
        raise UserError(f"this host lacks {' '.join(names)}, and installing takes root", hint=f"sudo {by_hand}")


def _quiet(names: tuple[str, ...], announce: Announce) -> None:
    """Stop a service that Debian's package starts on every address: kiln runs its own where it needs one."""
    for package, service in SERVICES.items():
        if package in names and Path("/run/systemd/system").is_dir():
            announce(f"switching off the {service} that the package started on all addresses")
            run.run(["systemctl", "disable", "--now", service], check=False, timeout_s=60)


def _tail(text: str) -> str:
    return "\n".join(text.strip().splitlines()[-8:])


def disk_free(path: Path) -> int:
    """Return the bytes a plain write below `path` may still take; `path` need not exist yet."""
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free


def unmount_below(folders: Iterable[Path]) -> None:
    """Release the mounts that an engine has left below folders, deepest first, busy or not. Takes root."""
    roots = tuple(f"{folder}/" for folder in folders)
    mounts = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    for mount in sorted((each for each in mounts if each.startswith(roots)), reverse=True):
        run.run(["umount", "--lazy", mount], check=False, timeout_s=30, env={"PATH": search_path()})


def cpus() -> int:
    """Return the CPUs this process may run on."""
    return len(os.sched_getaffinity(0))


def memory_limit(root: Path = Path("/")) -> int:
    """Return the bytes of memory this process may use: the machine's, or less where a cgroup (v1 or v2) says so."""
    return min([_meminfo(root, "MemTotal"), *_cgroup_limits(root)])


def memory_available(root: Path = Path("/")) -> int:
    """Return the bytes of memory that are free for new work, within the limit."""
    return min(_meminfo(root, "MemAvailable"), memory_limit(root))


def _meminfo(root: Path, key: str) -> int:
    for line in (root / "proc/meminfo").read_text().splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) * 1024
    raise KeyError(key)


def _cgroup_limits(root: Path) -> list[int]:
    """Limits of the own cgroup and of all above it."""
    limits = []
    for line in (root / "proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            limits += _upwards(root / "sys/fs/cgroup/memory", path, "memory.limit_in_bytes")
        if not controllers:
            limits += _upwards(root / "sys/fs/cgroup", path, "memory.max")
    return limits


def _upwards(mount: Path, path: str, name: str) -> list[int]:
    parts = [part for part in path.split("/") if part and part != ".."]
    files = [mount.joinpath(*parts[:depth], name) for depth in range(len(parts) + 1)]
    texts = [file.read_text().strip() for file in files if file.is_file()]
    return [int(text) for text in texts if text.isdigit()]
