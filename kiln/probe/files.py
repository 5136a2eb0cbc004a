"""Files of /proc and /sys: short, and a fault where one cannot be read."""

from __future__ import annotations

import re
from pathlib import Path


def read(path: Path, faults: list[dict[str, str]] | None = None) -> str | None:
    """Return a file's text without blanks around it; None, and a fault if `faults` is given, if it cannot be read."""
    try:
        return path.read_bytes().decode("utf-8", "replace").strip()
    except OSError as error:
        if faults is not None:
            faults.append({"source": str(path), "error": error.strerror or str(error)})
        return None


def number(path: Path, faults: list[dict[str, str]] | None = None) -> float | None:
    """Return the number that a file starts with: "32.0 GT/s PCIe" is 32.0."""
    text = read(path, faults)
    found = re.match(r"-?\d+(\.\d+)?", text or "")
    if found:
        return float(found[0])
    if text is not None and faults is not None:
        faults.append({"source": str(path), "error": f"no number: {text[:80]!r}"})
    return None


def whole(path: Path, faults: list[dict[str, str]] | None = None) -> int | None:
    """Return the whole number that a file starts with."""
    found = number(path, faults)
    return None if found is None else int(found)
