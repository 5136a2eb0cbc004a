"""Two receipts side by side: what was another image or node, which verdicts changed, which numbers and by how much."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass

from kiln.measured import Key, change_percent, direction, values, worse_percent
from kiln.receipt import Outcome, Receipt
from kiln.verdict import worst


@dataclass(frozen=True)
class Condition:
    """One thing that was not the same when the two were made."""

    what: str
    old: str
    new: str


@dataclass(frozen=True)
class Changed:
    """A check's verdict on one subject, before and after; "–" where it said nothing. `why`: what it says now."""

    check: str
    subject: str
    old: str
    new: str
    why: str


@dataclass(frozen=True)
class Moved:
    """A number, before and after. `percent` is None if it was 0; `word` is "better", "worse" or empty."""

    key: Key
    old: float
    new: float
    percent: float | None
    word: str


@dataclass(frozen=True)
class Difference:
    """All that differs between two receipts; `gone` and `added` are numbers that one of them lacks."""

    old: str
    new: str
    verdicts: tuple[str, str]
    conditions: tuple[Condition, ...]
    changed: tuple[Changed, ...]
    moved: tuple[Moved, ...]
    gone: tuple[Key, ...]
    added: tuple[Key, ...]

    def as_dict(self) -> dict[str, object]:
        """Return it for machines."""
        return asdict(self)


def diff(old: Receipt, new: Receipt) -> Difference:
    """Compare two receipts; numbers come by how far they moved, the worst first."""
    before, after = values(old), values(new)
    both = [key for key in before if key in after]
    moved = [_moved(key, before[key], after[key]) for key in both if before[key] != after[key]]
    return Difference(
        old.id, new.id, (str(old.verdict), str(new.verdict)), tuple(_conditions(old, new)), tuple(_changed(old, new)),
        tuple(sorted(moved, key=_weight)), _missing(before, after), _missing(after, before),
    )  # fmt: skip


def _missing(here: dict[Key, float], there: dict[Key, float]) -> tuple[Key, ...]:
    return tuple(key for key in here if key not in there)


def _conditions(old: Receipt, new: Receipt) -> Iterator[Condition]:
    for (what, before), after in zip(_about(old).items(), _about(new).values(), strict=True):
        if before != after:
            yield Condition(what, before or "–", after or "–")


def _about(receipt: Receipt) -> dict[str, str]:
    node, image = receipt.node, receipt.image
    return {
        "node": node.name_hash, "topology": node.topology, "GPUs": node.cards, "power limit": node.power_limit,
        "driver": node.driver, "CUDA of the driver": node.cuda_of_driver, "kernel": node.kernel,
        "image": image.digest, "plan": image.plan[:12], "preset": receipt.preset, "kiln": receipt.kiln,
    }  # fmt: skip


def _changed(old: Receipt, new: Receipt) -> Iterator[Changed]:
    before, after = _verdicts(old), _verdicts(new)
    for check, subject in before | after:
        was, now = before.get((check, subject)), after.get((check, subject))
        if (was and was.verdict) != (now and now.verdict):
            why = (now.message if now else "") or (was.message if was else "")
            yield Changed(check, subject, str(was.verdict) if was else "–", str(now.verdict) if now else "–", why)


def _verdicts(receipt: Receipt) -> dict[tuple[str, str], Outcome]:
    """Return the worst outcome of each check on each subject."""
    found: dict[tuple[str, str], Outcome] = {}
    for one in receipt.outcomes:
        known = found.get((one.check, one.subject))
        if known is None or worst((known.verdict, one.verdict)) is not known.verdict:
            found[one.check, one.subject] = one
    return found


def _moved(key: Key, old: float, new: float) -> Moved:
    worse = worse_percent(key.name, old, new)
    word = "worse" if worse > 0 else "better" if worse < 0 else ""
    return Moved(key, old, new, change_percent(old, new), word)


def _weight(moved: Moved) -> tuple[float, Key]:
    """Sort by how much worse it got; what nobody judges comes last."""
    judged = direction(moved.key.name) != 0
    return (-worse_percent(moved.key.name, moved.old, moved.new) if judged else float("inf"), moved.key)
