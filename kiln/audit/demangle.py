"""C++ names: the template that a kernel is an instance of, and its readable name."""

from __future__ import annotations

import ctypes
import functools
import re
from typing import Any

_LIBRARY = "libstdc++.so.6"
# Wrappers whose first argument is the kernel proper.
_WRAPPER = re.compile(r"(?:^|::)(?:device_kernel|Kernel2?)$")
_LENGTH = re.compile(r"\d+")
_HASHED = re.compile(r"_GLOBAL__N_.*|_INTERNAL_.*")


def template(mangled: str) -> str:
    """Return the name without arguments: `ns::kernel`, `cutlass::device_kernel<flash::Forward>`.

    Read off the mangled name: libstdc++ gives up on CUTLASS's longest ones.
    """
    name, at = _name(mangled, 2 if mangled.startswith("_Z") else len(mangled))
    if not name:
        return mangled
    if _WRAPPER.search(name) and mangled[at : at + 1] == "I":
        inner, _ = _name(mangled, at + 1, outer=name.partition("::")[0])
        return f"{name}<{inner}>" if inner else name
    return name


def demangle(name: str) -> str:
    """Return the readable name, or the name itself if it is no C++ name or the host's libstdc++ can't."""
    call = _function("__cxa_demangle")
    if call is None or not name.startswith("_Z"):
        return name
    status = ctypes.c_int()
    pointer = call(name.encode(), None, None, ctypes.byref(status))
    if status.value or not pointer:
        return name
    text = ctypes.string_at(pointer).decode("utf-8", "replace")
    ctypes.CDLL(None).free(ctypes.c_void_p(pointer))
    return text


def _name(mangled: str, at: int, outer: str = "") -> tuple[str, int]:
    """Read `N 2ns 6kernel` or `6kernel` from `at` on; returns it with where it ends. `S_` stands for `outer`."""
    at += mangled.startswith("N", at)
    at += len("St") * mangled.startswith("St", at)
    parts = [outer] if outer and mangled.startswith("S_", at) else []
    at += len("S_") * len(parts)
    while found := _LENGTH.match(mangled, at):
        at = found.end() + int(found[0])
        part = mangled[found.end() : at]
        parts.append("{anonymous}" if _HASHED.fullmatch(part) else part)
    return "::".join(parts), at


@functools.cache
def _function(name: str) -> Any:
    try:
        call = getattr(ctypes.CDLL(_LIBRARY), name)
    except OSError:
        return None
    call.restype = ctypes.c_void_p
    call.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.POINTER(ctypes.c_int)]
    return call
