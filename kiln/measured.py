"""The numbers of a receipt, which way is better, and by how much they changed."""

from __future__ import annotations

import re
from typing import NamedTuple

from kiln.receipt import Receipt

# A rate is better when it is higher, a time when it is lower; the unit ends the name. Other numbers are not judged.
_RATE = re.compile(r"(?:^|_)(?:(?:[kmgt]?i?b|tok|req)_s|tflops)$")
_TIME = re.compile(r"(?:^|_)(?:us|ms|s)$")
# What a number was held against says nothing of the node.
_LIMIT = re.compile(r"(?:^|_)(?:limit|floor|deadline|warn|fail|expected)(?:_|$)")

# What a comparison with a baseline says of numbers that a check has told already.
COMPARED = "baseline"


class Key(NamedTuple):
    """One number: the check that measured it, of what, and its name with the unit."""

    check: str
    subject: str
    name: str

    def __str__(self) -> str:
        return " ".join(filter(None, self))


def values(receipt: Receipt) -> dict[Key, float]:
    """Return every number that was measured; those of the server are told apart by the preset."""
    found = {
        Key(one.check, _subject(receipt, one.check, one.subject), name): value
        for one in receipt.outcomes
        if one.check.partition("/")[0] != COMPARED
        for name, value in one.numbers.items()
    }
    if receipt.server:
        phases = {f"{name} startup_s": value for name, value in receipt.server.startup_s.items()}
        server = {"throughput_tok_s": receipt.server.throughput_tok_s, "power_w": receipt.server.power_w, **phases}
        found |= {Key("server", receipt.preset, name): value for name, value in server.items()}
    return {key: value for key, value in found.items() if value is not None}


def _subject(receipt: Receipt, check: str, subject: str) -> str:
    return f"{receipt.preset} {subject}".strip() if check.startswith("server/") else subject


def direction(name: str) -> int:
    """Return 1 if higher is better, -1 if lower is, 0 if neither: a limit, or a unit that says nothing."""
    if _LIMIT.search(name):
        return 0
    return 1 if _RATE.search(name) else -1 if _TIME.search(name) else 0


def change_percent(old: float, new: float) -> float | None:
    """Return the change in percent of the old value; None if that was 0 and the new one is not."""
    if old == new:
        return 0.0
    return (new - old) / abs(old) * 100 if old else None


def worse_percent(name: str, old: float, new: float) -> float:
    """Return by how much a judged number got worse, in percent; negative if it got better, 0 if nobody can say."""
    return -direction(name) * (change_percent(old, new) or 0.0)
