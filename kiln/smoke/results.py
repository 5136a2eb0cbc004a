"""What `inv smoke` prints at its end: a line for each node, then what is wrong with it, why, and what to do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich.table import Table
from rich.text import Text

from kiln.errors import CheckFailed
from kiln.receipt import Outcome, Receipt
from kiln.report.terminal import STYLES, told
from kiln.smoke.job import Job
from kiln.smoke.runner import Ran
from kiln.tables import console
from kiln.verdict import GOOD, Verdict
from kiln.view import clock

_COUNTED = (Verdict.FAIL, Verdict.NOT_RUN, Verdict.WARN, Verdict.PASS)


def show(found: Iterable[Ran]) -> None:
    """Print the table of nodes, what is wrong with each, and the files."""
    ran, out = list(found), console()
    table = Table(box=None, pad_edge=False)
    for heading in ("node", "verdict", *(one.lower() for one in _COUNTED), "time", "topology", "cards"):
        table.add_column(heading, justify="right" if heading in ("fail", "not_run", "warn", "pass", "time") else "left")
    for one in ran:
        table.add_row(*_cells(one))
    out.print(table)
    for one in ran:
        bad = [*_bad(one.receipt)]
        if bad:
            out.print(Text(f"\n{one.job.node}", style="bold"))
        for group in bad:
            out.print(told(group[0], len(group) - 1), soft_wrap=True)
    out.print()
    for one in ran:
        out.print(f"receipt  {one.path}", markup=False, soft_wrap=True)
        out.print(f"junit    {one.job.junit}", markup=False, soft_wrap=True)


def _cells(one: Ran) -> tuple[Text | str, ...]:
    receipt = one.receipt
    counts = (str(len(receipt.of(verdict)) or "") for verdict in _COUNTED)
    verdict = Text(receipt.verdict, style=STYLES[receipt.verdict])
    return (one.job.node, verdict, *counts, clock(receipt.seconds), receipt.node.topology or "–", receipt.node.cards)


def _bad(receipt: Receipt) -> Iterator[list[Outcome]]:
    """Yield what keeps a node from PASS, the worst first; what is NOT_RUN for one reason comes as one group."""
    for verdict in (Verdict.FAIL, Verdict.WARN):
        yield from ([one] for one in receipt.of(verdict))
    groups: dict[str, list[Outcome]] = {}
    for one in receipt.of(Verdict.NOT_RUN):
        if one.counts:
            groups.setdefault(one.message, []).append(one)
    yield from groups.values()


def data(found: Iterable[Ran]) -> list[dict[str, object]]:
    """Return it for machines: each node's receipt, where it lies, and the report of its tests."""
    return [
        {"node": one.job.node, "verdict": one.receipt.verdict, "receipt": one.receipt.as_dict(),
         "receipt_file": str(one.path), "junit_file": str(one.job.junit)}
        for one in found
    ]  # fmt: skip


def require_good(found: Iterable[Ran]) -> None:
    """Raise CheckFailed unless every node is PASS or WARN."""
    bad = [f"{one.job.node} {one.receipt.verdict}" for one in found if one.receipt.verdict not in GOOD]
    if bad:
        raise CheckFailed(f"not fit to serve: {', '.join(bad)}")


def show_jobs(jobs: Iterable[Job]) -> None:
    """Print what would be run."""
    for job in jobs:
        words = {
            "image": job.image or "none", "python": job.python, "preset": job.preset, "weights": job.weights,
            "topology": job.topology or "by the node's GPUs", "phases": ", ".join(job.phases),
            "deadline": f"{job.seconds:.0f} s", "registry": job.image_fault,
        }  # fmt: skip
        console().print(Text(job.node, style="bold"))
        for name, text in words.items():
            if text:
                console().print(f"  {name:<9}{text}", markup=False, soft_wrap=True)
