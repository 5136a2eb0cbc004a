"""The policy of promotion: which receipts make a digest good for a tag. Pure: receipts and a moment in, clauses out."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from kiln.receipt import Receipt
from kiln.verdict import GOOD, Verdict, worst
from kiln.versions import Promotion

_SHOWN = 6


@dataclass(frozen=True)
class Clause:
    """One demand of the policy, whether it is met, and by what or why not."""

    demand: str
    met: bool
    why: str


def clauses(policy: Promotion, gpu: str, digest: str, receipts: Iterable[Receipt],
            now: datetime.datetime) -> tuple[Clause, ...]:  # fmt: skip
    """Judge the receipts of exactly this digest; of each node the newest counts, good or bad."""
    proof = policy.gpus.get(gpu)
    if proof is None:
        known = ", ".join(policy.gpus)
        return (
            Clause(f"a rule for {gpu or 'an image without the label kiln.gpu'}", False, f"there are some for {known}"),
        )
    last = newest(one for one in receipts if one.image.digest == digest)
    faults = {node: tuple(faults_of(policy, one, now)) for node, one in last.items()}
    wanted = [_seen(glob, proof.nodes, last, faults) for glob in proof.topologies]
    return (*wanted, _failing(policy.max_failing_nodes, last))


def newest(receipts: Iterable[Receipt]) -> dict[str, Receipt]:
    """Return the newest receipt of each node."""
    return {one.node.name_hash: one for one in sorted(receipts, key=lambda one: (one.began, one.id))}


def faults_of(policy: Promotion, receipt: Receipt, now: datetime.datetime) -> Iterator[str]:
    """Yield why a receipt does not count."""
    age_days = (now - receipt.began).total_seconds() / 86400
    if age_days > policy.max_age_days:
        yield f"{age_days:.0f} days old, {policy.max_age_days} at most"
    if age_days < -1:
        yield f"dated {receipt.started}, which is still to come"
    made = {one.check.partition("/")[0] for one in receipt.outcomes if one.verdict is not Verdict.NOT_RUN}
    absent = [name for name in policy.phases if name not in made]
    if absent:
        yield f"phases without a check that was made: {', '.join(absent)}"
    yield from _verdict_faults(policy, receipt)


def _verdict_faults(policy: Promotion, receipt: Receipt) -> Iterator[str]:
    excused = [one for one in receipt.of(Verdict.NOT_RUN) if one.required and _any(one.check, policy.may_be_not_run)]
    rest = [one for one in receipt.outcomes if one.counts and one not in excused]
    for verdict in (Verdict.FAIL, Verdict.NOT_RUN):
        checks = dict.fromkeys(one.check for one in rest if one.verdict is verdict)
        if checks:
            more = f" and {len(checks) - _SHOWN} more" if len(checks) > _SHOWN else ""
            yield f"{verdict}: {', '.join([*checks][:_SHOWN])}{more}"
    # The whole may be worse than the checks that are told: a node that died in between.
    told = worst(one.verdict for one in rest)
    excuse = bool(excused) and receipt.verdict is Verdict.NOT_RUN
    if told in GOOD and receipt.verdict not in GOOD and not excuse:
        yield f"{receipt.verdict} as a whole"


def _seen(glob: str, nodes: int, last: Mapping[str, Receipt], faults: Mapping[str, tuple[str, ...]]) -> Clause:
    there = [node for node, one in last.items() if fnmatchcase(one.node.topology, glob)]
    good = [node for node in there if not faults[node]]
    bad = [f"{node} ({last[node].id}): {'; '.join(faults[node])}" for node in there if faults[node]]
    words = f"{nodes} node{'s' if nodes > 1 else ''} of topology {glob} with PASS or WARN"
    if len(good) >= nodes:
        return Clause(words, True, ", ".join(f"{node} {last[node].verdict} ({last[node].id})" for node in good))
    count = f"{len(good)} of {nodes}" if there else "no receipt of this digest"
    return Clause(words, False, "; ".join([count, *bad]))


def _failing(most: int, last: Mapping[str, Receipt]) -> Clause:
    failing = [f"{node} ({one.id})" for node, one in last.items() if one.verdict is Verdict.FAIL]
    words = f"at most {most} nodes whose last receipt is FAIL" if most else "no node whose last receipt is FAIL"
    return Clause(words, len(failing) <= most, ", ".join(failing) or "none")


def _any(name: str, globs: Iterable[str]) -> bool:
    return any(fnmatchcase(name, glob) for glob in globs)
