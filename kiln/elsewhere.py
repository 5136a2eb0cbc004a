"""Another place to build in: what a rebuild has otherwise than the build before, and what it cannot have otherwise."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from kiln import host, run
from kiln.settings import Settings

HOST_NAME = "elsewhere"
# POSIX's own form: no file of time zones is needed for it.
TIME_ZONE = "ELSEWHERE-13:45"
# Bare of what the build may read, but for what it cannot do without.
_KEPT = ("PATH", "HOME", "TERM", "COLUMNS", "XDG_RUNTIME_DIR", "NO_COLOR")
# Host name ("" keeps it), umask, then the command. Becoming the command keeps the process id for signals.
_SCRIPT = 'if [ -n "$1" ]; then hostname "$1"; fi; umask "$2"; shift 2; exec "$@"'


@dataclass(frozen=True)
class Condition:
    """One property of the place: `here` is where the first build ran, `there` the rebuild."""

    name: str
    state: Literal["VARIED", "NOT_VARIED"]
    here: str
    there: str
    why: str = ""


@dataclass(frozen=True)
class Elsewhere:
    """How to start a command in the other place. `env` is all of its environment."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    conditions: tuple[Condition, ...]


def prepare(settings: Settings, root: Path, home: Path, cores: int) -> Elsewhere:
    """Choose a place for `root` and `home` that differs from this one in all it can; `cores` is how many it gets."""
    locale, umask = _locale(), _umask()
    env = {name: os.environ[name] for name in _KEPT if name in os.environ}
    env |= {
        "KILN_HOME": str(home), "KILN_NO_INSTALL": "1", "LC_ALL": locale[1],
        "PYTHONHASHSEED": "1", "TZ": TIME_ZONE,
    }  # fmt: skip
    isolated = host.is_root() and _can_unshare()
    why = "" if isolated else "needs root" if not host.is_root() else "unshare is not permitted here"
    argv = (
        *(("unshare", "--net", "--uts", "--") if isolated else ()),
        "sh", "-c", _SCRIPT, "sh", HOST_NAME if isolated else "", umask[1],
        *_pinned(cores),
    )  # fmt: skip
    conditions = (
        _varied("directory", str(settings.root), str(root)),
        _varied("KILN_HOME", str(settings.home), f"{home}, a store of hard links"),
        _varied("network", "the host's", "none" if isolated else "the host's", why or "the host's"),
        _varied("host name", socket.gethostname(), HOST_NAME if isolated else socket.gethostname(), why),
        _varied("umask", *umask),
        _varied("time zone", os.environ.get("TZ", "the system's"), TIME_ZONE),
        _varied("locale", *locale),
        _varied("cores", str(host.cpus()), str(cores), f"there are {host.cpus()}"),
        *_fixed(),
    )
    return Elsewhere(argv, env, conditions)


def _varied(name: str, here: str, there: str, why: str = "") -> Condition:
    return Condition(name, "NOT_VARIED" if here == there else "VARIED", here, there, why if here == there else "")


def _fixed() -> Iterator[Condition]:
    """What one machine cannot vary; only a rebuild on another one can."""
    uname = os.uname()
    for name, value in (
        ("machine", f"{uname.machine}, {_processor()}"), ("kernel", f"{uname.sysname} {uname.release}"),
        ("user", f"uid {os.getuid()}"), ("kiln's Python", sys.executable),
    ):  # fmt: skip
        yield Condition(name, "NOT_VARIED", value, value, "the same machine and environment")


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")


def _umask() -> tuple[str, str]:
    mask = os.umask(0o077)
    os.umask(mask)
    return f"{mask:04o}", "0077" if mask != 0o077 else "0022"


def _locale() -> tuple[str, str]:
    """Return the locale now and another one, a foreign one if the host has any."""
    here = next((value for name in ("LC_ALL", "LC_CTYPE", "LANG") if (value := os.environ.get(name))), "C")
    known = run.run(["locale", "-a"], check=False, timeout_s=30).stdout.split()
    foreign = [name for name in known if not name.startswith(("C", "POSIX", here[:5]))]
    return here, next(iter(foreign), "C.UTF-8" if here in ("C", "POSIX") else "C")


def _can_unshare() -> bool:
    words = ["unshare", "--net", "--uts", "--", "hostname", HOST_NAME]
    return run.run(words, check=False, timeout_s=30, env={"PATH": host.search_path()}).returncode == 0


def _pinned(cores: int) -> tuple[str, ...]:
    chosen = sorted(os.sched_getaffinity(0))[:cores]
    return ("taskset", "--cpu-list", ",".join(map(str, chosen))) if len(chosen) < host.cpus() else ()
