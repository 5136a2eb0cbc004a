"""A network bridge of our own for a second engine, made by ioctl: iproute2 may be missing."""

from __future__ import annotations

import fcntl
import socket
import struct
from pathlib import Path

# linux/sockios.h
SIOCSIFFLAGS, SIOCBRADDBR, SIOCBRDELBR = 0x8914, 0x89A0, 0x89A1


def exists(name: str) -> bool:
    """Tell whether the host has an interface of that name."""
    return (Path("/sys/class/net") / name).exists()


def add(name: str) -> None:
    """Create a bridge if there is none; the engine gives it an address that is free."""
    if not exists(name):
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as control:
            fcntl.ioctl(control, SIOCBRADDBR, name.encode() + b"\0")


def remove(name: str) -> None:
    """Delete a bridge if it is there."""
    if exists(name):
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as control:
            fcntl.ioctl(control, SIOCSIFFLAGS, struct.pack("16sH14x", name.encode(), 0))
            fcntl.ioctl(control, SIOCBRDELBR, name.encode() + b"\0")
