"""Baselines: what a node with its topology, cards and power cap reached once, and how far it is from that now."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from kiln import whole
from kiln.errors import CheckFailed, UserError
from kiln.measured import COMPARED, Key, change_percent, direction, values, worse_percent
from kiln.receipt import Receipt
from kiln.settings import Settings
from kiln.verdict import GOOD, Finding, failed, not_run, passed, warned

FOLDER = Path("receipts") / "baselines"
# Chosen by hand: how much the runs of one sound node with eight GPUs differ was not measured yet.
WARN_PERCENT = 5.0
FAIL_PERCENT = 10.0


class Measurement(BaseModel):
    """One number of a baseline."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
    check: str
    subject: str
    name: str
    value: float

    @property
    def key(self) -> Key:
        return Key(self.check, self.subject, self.name)


class Baseline(BaseModel):
    """What one receipt measured, and of what: the same node with other cards or another power cap is another node."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    schema_: Literal["kiln/baseline/1"] = Field(default="kiln/baseline/1", alias="schema")
    node: str
    topology: str
    cards: str
    power_limit: str
    receipt: str
    started: str
    numbers: tuple[Measurement, ...]

    def values(self) -> dict[Key, float]:
        """Return the numbers by their keys."""
        return {one.key: one.value for one in self.numbers}


def file_of(settings: Settings, receipt: Receipt) -> Path:
    """Return where the baseline of a receipt's node lies, or would."""
    words = (receipt.node.name_hash, receipt.node.topology, receipt.node.cards, receipt.node.power_limit)
    name = "-".join(re.sub(r"[^a-z0-9]+", "-", word.lower()).strip("-") for word in words)
    return settings.root / FOLDER / f"{name}.json"


def record(settings: Settings, receipt: Receipt, *, dry: bool = False) -> Path:
    """Make a receipt's numbers its node's baseline, in place of an older one, unless `dry`; returns the file.

    Raises CheckFailed unless the receipt is good and has numbers that can be compared.
    """
    numbers = [Measurement(**key._asdict(), value=value) for key, value in _judged(values(receipt)).items()]
    if receipt.verdict not in GOOD:
        raise CheckFailed(f"receipt {receipt.id} is {receipt.verdict}: only a good run is a baseline")
    if not numbers:
        raise CheckFailed(f"receipt {receipt.id} holds no rate and no time to compare with\n  hint: inv smoke")
    found = Baseline(
        node=receipt.node.name_hash, topology=receipt.node.topology, cards=receipt.node.cards,
        power_limit=receipt.node.power_limit, receipt=receipt.id, started=receipt.started, numbers=tuple(numbers),
    )  # fmt: skip
    file = file_of(settings, receipt)
    if not dry:
        whole.write(file, _text(found).encode())
    return file


def load(file: Path) -> Baseline | None:
    """Read a baseline; None if there is none. Raises UserError for a file that is none."""
    if not file.exists():
        return None
    try:
        return Baseline.model_validate_json(file.read_bytes())
    except ValidationError as error:
        message = f"is no baseline: {error.errors(include_url=False)[0]['msg']}"
        raise UserError(message, source=str(file), hint="remove it, then inv receipts.baseline ID") from None


def judge(settings: Settings, receipt: Receipt) -> tuple[Finding, ...]:
    """Compare a receipt with its node's baseline; one NOT_RUN that nobody requires if there is none."""
    found = load(file_of(settings, receipt))
    if found is None:
        good = receipt.verdict in GOOD
        cure = f"if this run is as it should be: inv receipts.baseline {receipt.id}" if good else ""
        return (replace(not_run("this node has no baseline", cure=cure, required=False), check=COMPARED),)
    return compare(found, receipt)


def compare(baseline: Baseline, receipt: Receipt) -> tuple[Finding, ...]:
    """Judge each check and subject by the number that got worst; one PASS tells of all that are near the baseline."""
    old, new = _judged(baseline.values()), values(receipt)
    both = {key: value for key, value in old.items() if key in new}
    far = [*_far(baseline, both, new, receipt.id)]
    near = len(both) - sum(worse_percent(key.name, both[key], new[key]) >= WARN_PERCENT for key in both)
    told = (
        [passed(f"{near} numbers within {WARN_PERCENT:.0f} % of the baseline of {baseline.started[:10]}")]
        if near
        else []
    )
    gone = [key for key in old if key not in new]
    if gone:
        some = ", ".join(map(str, gone[:3])) + (f" and {len(gone) - 3} more" if len(gone) > 3 else "")
        told.append(not_run(f"measured for the baseline and not now: {some}", required=False))
    return tuple(replace(one, check=one.check or COMPARED) for one in (*far, *told))


def _far(baseline: Baseline, old: Mapping[Key, float], new: Mapping[Key, float], receipt: str) -> Iterator[Finding]:
    worse = {key: worse_percent(key.name, old[key], new[key]) for key in old}
    worst: dict[tuple[str, str], Key] = {}
    for key in old:
        known = worst.setdefault((key.check, key.subject), key)
        worst[key.check, key.subject] = max(known, key, key=worse.__getitem__)
    for key in worst.values():
        percent = worse[key]
        if percent < WARN_PERCENT:
            continue
        change = change_percent(old[key], new[key])
        message = f"{key.name} {new[key]:.4g}, baseline {old[key]:.4g} ({change:+.1f} %)"
        cause = f"worse than the same node was on {baseline.started[:10]}"
        cure = f"inv receipts.diff {baseline.receipt} {receipt} shows what else changed"
        tell = failed if percent >= FAIL_PERCENT else warned
        found = tell(message, key.subject, cause=cause, cure=cure, **{key.name: new[key]})
        yield replace(found, check=f"{COMPARED}/{key.check.replace('/', '-')}")


def _judged(found: Mapping[Key, float]) -> dict[Key, float]:
    return {key: value for key, value in found.items() if direction(key.name) and value}


def _text(baseline: Baseline) -> str:
    data = baseline.model_dump(mode="json", by_alias=True)
    numbers = ",\n ".join(json.dumps(one, ensure_ascii=False) for one in data.pop("numbers"))
    return (
        json.dumps(data, indent=1, ensure_ascii=False).removesuffix("\n}") + f',\n "numbers": [\n {numbers}\n ]\n}}\n'
    )
