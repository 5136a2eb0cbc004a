"""Volatile paths: what a build leaves behind, no program needs, and differs between machines, engines or runs."""

from __future__ import annotations

import re
from fnmatch import translate

VOLATILE: tuple[tuple[str, str], ...] = (
    ("var/log/dpkg.log", "times of each package step"),
    ("var/log/alternatives.log", "times of each link"),
    ("var/log/bootstrap.log", "debootstrap's console output"),
    ("var/log/apt/*", "times and terminal of each apt run"),
    ("var/cache/apt/*.bin", "apt's mapped caches hold mtimes; apt rebuilds them"),
    ("var/cache/ldconfig/aux-cache", "inode numbers and ctimes; ldconfig rebuilds it"),
    ("var/cache/debconf/*-old", "the file before the last change"),
    ("var/lib/dpkg/*-old", "the file before the last change"),
    ("etc/passwd-", "the file before the last change"),
    ("etc/group-", "the file before the last change"),
    ("etc/shadow-", "the file before the last change"),
    ("etc/gshadow-", "the file before the last change"),
    ("etc/subuid-", "the file before the last change"),
    ("etc/subgid-", "the file before the last change"),
    ("etc/.pwd.lock", "left by whichever tool changed accounts"),
    ("etc/hostname", "the builder's; every engine mounts its own"),
    ("etc/hosts", "the builder's; every engine mounts its own"),
    ("etc/resolv.conf", "the builder's; every engine mounts its own"),
    ("etc/machine-id", "one machine's identity"),
    ("var/lib/dbus/machine-id", "one machine's identity"),
    (".dockerenv", "the engine's mark"),
    ("dev/*", "mounted over by every runtime; a rootless builder cannot make device nodes"),
    ("proc/*", "mounted over by every runtime"),
    ("sys/*", "mounted over by every runtime"),
    ("run/*", "mount points of build inputs, sockets, pid files"),
    ("tmp/*", "scratch of the build"),
    ("var/tmp/*", "scratch of the build"),
    ("root/.cache*", "caches of pip, uv and others"),
    ("root/.ccache*", "compiler cache"),
    ("root/.wget-hsts", "times of downloads"),
)
"""Glob (`*` also matches `/`) and the reason. A path that matches counts as absent, in a layer and below it."""

KEPT: tuple[tuple[str, str], ...] = (("run/lock", "Debian's /var/lock points here"),)
"""Exceptions to VOLATILE."""

HOST_XATTRS: tuple[tuple[str, str], ...] = (
    ("security.selinux", "the label of the builder's policy"),
    ("trusted.overlay.", "overlayfs's own bookkeeping"),
    ("user.overlay.", "overlayfs's own bookkeeping, rootless"),
)
"""Prefixes of extended attributes that describe the builder, and the reason."""

_KEPT = frozenset(path.encode() for path, _ in KEPT)
_PATTERN = re.compile("|".join(translate(glob) for glob, _ in VOLATILE).encode())
_XATTRS = tuple(prefix.encode() for prefix, _ in HOST_XATTRS)


def is_volatile(path: bytes) -> bool:
    """Say whether the canonical image leaves this path out."""
    return _PATTERN.match(path) is not None and path not in _KEPT


def is_host_xattr(name: bytes) -> bool:
    """Say whether the canonical image leaves this extended attribute out."""
    return name.startswith(_XATTRS)
