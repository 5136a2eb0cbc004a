"""What a report shows: each node by its newest receipt, held against its baseline, and the history of all receipts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import fmean

from kiln import baseline, policy
from kiln.errors import UserError
from kiln.measured import COMPARED
from kiln.receipt import Outcome, Receipt, Sample, outcomes
from kiln.settings import Settings
from kiln.verdict import Verdict, worst

_SEVERITY = (Verdict.FAIL, Verdict.NOT_RUN, Verdict.WARN, Verdict.PASS)
_NAMED = 6


@dataclass(frozen=True)
class Card:
    """One GPU under load: its name and what its samples say; None where there is nothing to say."""

    index: int
    name: str
    power_limit_w: float | None
    power_mean_w: float | None
    power_max_w: float | None
    temperature_max_c: float | None
    utilization_mean_percent: float | None
    sm_clock_min_mhz: float | None
    memory_max_mib: float | None
    throttled: str


@dataclass(frozen=True)
class Node:
    """One node: its newest receipt, and what a comparison with its baseline says."""

    receipt: Receipt
    compared: tuple[Outcome, ...]

    @property
    def name(self) -> str:
        return self.receipt.node.name_hash

    def troubles(self) -> tuple[Outcome, ...]:
        """Return what somebody has to look at, the worst first: a NOT_RUN only where it is required.

        Checks that were not run for one and the same reason come as one.
        """
        found = [one for one in self._all if one.counts and one.verdict is not Verdict.PASS]
        skipped: dict[tuple[str, str], list[Outcome]] = {}
        for one in found:
            if one.verdict is Verdict.NOT_RUN:
                skipped.setdefault((one.message, one.cause), []).append(one)
        rest = [one for one in found if one.verdict is not Verdict.NOT_RUN]
        rest += [_joined(group) for group in skipped.values()]
        return tuple(sorted(rest, key=lambda one: _SEVERITY.index(one.verdict)))

    def quiet(self) -> tuple[Outcome, ...]:
        """Return the rest: what passed, then what was not run and need not be."""
        rest = [one for one in self._all if not one.counts or one.verdict is Verdict.PASS]
        return tuple(sorted(rest, key=lambda one: one.verdict is not Verdict.PASS))

    @property
    def _all(self) -> tuple[Outcome, ...]:
        return (*self.receipt.outcomes, *self.compared)

    def counts(self) -> str:
        """Return how many outcomes have which verdict: "1 FAIL, 211 PASS"."""
        count = Counter(one.verdict for one in self.receipt.outcomes)
        return ", ".join(f"{count[verdict]} {verdict}" for verdict in _SEVERITY if count[verdict]) or "no checks"

    def cards(self) -> tuple[Card, ...]:
        """Return the GPUs with what their samples say."""
        samples: dict[int, list[Sample]] = {}
        for sample in self.receipt.samples:
            samples.setdefault(sample.gpu, []).append(sample)
        known = {gpu.index: (gpu.name, gpu.power_limit_w) for gpu in self.receipt.node.gpus}
        return tuple(_card(index, *known.get(index, ("", None)), samples.get(index, []))
                     for index in sorted(known.keys() | samples.keys()))  # fmt: skip


@dataclass(frozen=True)
class Fleet:
    """All nodes, the worst first, and every receipt, the newest first."""

    nodes: tuple[Node, ...]
    history: tuple[Receipt, ...]

    @property
    def verdict(self) -> Verdict:
        return worst(node.receipt.verdict for node in self.nodes)

    def count(self, verdict: Verdict) -> int:
        """Return how many nodes have a verdict."""
        return sum(node.receipt.verdict is verdict for node in self.nodes)

    def as_dict(self) -> dict[str, object]:
        """Return it for machines: the receipts without their samples, and what the samples say of each GPU."""
        return {"verdict": str(self.verdict), "nodes": [_plain(node) for node in self.nodes],
                "history": [_entry(one) for one in self.history]}  # fmt: skip


def gather(settings: Settings, receipts: Iterable[Receipt]) -> Fleet:
    """Make the fleet of some receipts. Raises UserError if there are none."""
    history = sorted(receipts, key=lambda one: (one.began, one.id), reverse=True)
    if not history:
        raise UserError("there are no receipts", hint="inv smoke makes one")
    nodes = [Node(one, compared(settings, one)) for one in policy.newest(history).values()]
    nodes.sort(key=lambda node: (_SEVERITY.index(node.receipt.verdict), node.name))
    return Fleet(tuple(nodes), tuple(history))


def compared(settings: Settings, receipt: Receipt) -> tuple[Outcome, ...]:
    """Compare with the baseline, unless the run did so itself."""
    if any(one.check.partition("/")[0] == COMPARED for one in receipt.outcomes):
        return ()
    return outcomes(baseline.judge(settings, receipt))


def _joined(group: list[Outcome]) -> Outcome:
    names = [*dict.fromkeys(one.check for one in group)]
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    subject = group[0].subject if len(group) == 1 else ""
    return group[0].model_copy(update={"check": ", ".join(names[:_NAMED]) + more, "subject": subject})


def rate(receipt: Receipt) -> str:
    """Return the throughput in words, or a dash."""
    found = receipt.server.throughput_tok_s if receipt.server else None
    return f"{found:,.0f}" if found is not None else "–"


def numbers(outcome: Outcome) -> str:
    """Return the numbers of an outcome in one line."""
    return "  ".join(f"{name} {value:.4g}" for name, value in outcome.numbers.items() if value is not None)


def _card(index: int, name: str, limit: float | None, samples: list[Sample]) -> Card:
    power, temperature, use, clock, memory = (
        [value for sample in samples if (value := getattr(sample, field)) is not None]
        for field in ("power_w", "temperature_c", "utilization_percent", "sm_clock_mhz", "memory_used_mib")
    )
    reasons = Counter(reason for sample in samples for reason in sample.throttle)
    throttled = ", ".join(f"{reason} {100 * count / len(samples):.0f} %" for reason, count in reasons.most_common())
    return Card(
        index, name, limit, fmean(power) if power else None, max(power, default=None), max(temperature, default=None),
        fmean(use) if use else None, min(clock, default=None), max(memory, default=None), throttled,
    )  # fmt: skip


def _plain(node: Node) -> dict[str, object]:
    receipt = {key: value for key, value in node.receipt.as_dict().items() if key != "samples"}
    compared = [one.model_dump(mode="json") for one in node.compared]
    return {"receipt": receipt, "baseline": compared, "gpus": [card.__dict__ for card in node.cards()]}


def _entry(receipt: Receipt) -> dict[str, object]:
    rate_tok_s = receipt.server.throughput_tok_s if receipt.server else None
    return {"id": receipt.id, "started": receipt.started, "node": receipt.node.name_hash,
            "topology": receipt.node.topology, "digest": receipt.image.digest, "preset": receipt.preset,
            "verdict": str(receipt.verdict), "throughput_tok_s": rate_tok_s}  # fmt: skip
