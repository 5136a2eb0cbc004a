"""Names that a person typed: what is known, and what was probably meant."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

from kiln.errors import Problem

SLUG = re.compile(r"[a-z0-9]+([._-][a-z0-9]+)*")


def hint(name: str, known: Iterable[str]) -> str:
    """List the known names, the closest one first if there is one."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1)
    meant = f"did you mean {close[0]!r}? " if close else ""
    return f"{meant}known: {', '.join(names) or 'none'}"


def unknown(kind: str, name: str, known: Iterable[str], source: str = "", path: str = "") -> Problem:
    """Describe a name of the given kind (GPU, stack, image, ...) that nothing bears."""
    prefix = f"{path}: " if path else ""
    return Problem(source, f"{prefix}there is no {kind} {name!r}", hint(name, known))
