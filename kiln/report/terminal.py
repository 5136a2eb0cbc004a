"""Receipts on a terminal: a fleet, one receipt, the difference of two, a promotion. Plain text when nobody looks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal

from rich.table import Table
from rich.text import Text

from kiln.receipt import Outcome, Receipt
from kiln.report import bars
from kiln.report.fleet import Fleet, numbers, rate
from kiln.tables import console, rows
from kiln.verdict import Verdict

if TYPE_CHECKING:
    from kiln.promote import Promoted
    from kiln.receiptdiff import Difference, Moved

STYLES = {Verdict.PASS: "green", Verdict.WARN: "yellow", Verdict.NOT_RUN: "magenta", Verdict.FAIL: "red"}
_RIGHT = ("tok/s", "floor", "W")
_WHOLE = ("node", "verdict", *_RIGHT)
Cell = str | Text


def show(fleet: Fleet) -> None:
    """Print the fleet, then what somebody has to look at on each node."""
    out = console()
    _table(("node", "verdict", "found", "topology", "tok/s", "floor", "W"), (
        (node.name, word(node.receipt.verdict), node.counts(), node.receipt.node.topology, rate(node.receipt),
         *_server(node.receipt))
        for node in fleet.nodes
    ))  # fmt: skip
    for node in fleet.nodes:
        receipt = node.receipt
        about = (receipt.node.cards, f"image {receipt.image.digest[7:19] or 'none'}", receipt.preset, receipt.started)
        out.print(Text(f"\n{node.name}", style="bold"), Text(", ".join(filter(None, about))), soft_wrap=True)
        for one in node.troubles():
            out.print(told(one), soft_wrap=True)
        out.print(f"  receipt {receipt.id}", markup=False)
    out.print(Text("\nverdict  ").append(word(fleet.verdict)))


def show_receipt(receipt: Receipt, compared: Iterable[Outcome]) -> None:
    """Print one receipt: conditions, every outcome, phases, GPUs, the server."""
    out, node = console(), receipt.node
    driver = f"{node.driver or 'unknown'}, CUDA {node.cuda_of_driver or 'unknown'}, Linux {node.kernel or 'unknown'}"
    took = f"{receipt.started}, took {bars.seconds(receipt.seconds)}, kiln {receipt.kiln}"
    words = {
        "receipt": receipt.id, "started": took,
        "node": f"{node.name_hash}, topology {node.topology}", "GPUs": f"{node.cards}, power limit {node.power_limit}",
        "driver": driver, "image": receipt.image.digest or "none", "plan": receipt.image.plan, "preset": receipt.preset,
    }  # fmt: skip
    for name, text in words.items():
        if text:
            out.print(f"{name:<9}{text}", markup=False, soft_wrap=True)
    found = (*receipt.outcomes, *compared)
    _table(("verdict", "check", "subject", "what", "numbers"), (
        (word(one.verdict), one.check, one.subject, one.message, numbers(one)) for one in found
    ))  # fmt: skip
    for one in (one for one in found if one.cause or one.cure):
        out.print(told(one), soft_wrap=True)
    _table(("phase", "start", "took", "worst"), (
        (one.name, bars.seconds(one.start_s), bars.seconds(one.seconds), word(one.verdict)) for one in receipt.phases
    ))  # fmt: skip
    for bar in (*bars.rates([receipt]), *(bars.states(receipt.server) if receipt.server else ())):
        out.print(f"{bar.label:<24}{bar.words}", markup=False, soft_wrap=True)
    out.print(Text("verdict  ").append(word(receipt.verdict)))


def show_diff(found: Difference, above_percent: float) -> None:
    """Print what differs between two receipts, numbers from a change in percent on."""
    out = console()
    out.print(f"receipts {found.old} -> {found.new}: {found.verdicts[0]} -> {found.verdicts[1]}", markup=False)
    _table(("condition", "before", "after"), ((one.what, one.old, one.new) for one in found.conditions))
    _table(("check", "subject", "before", "after", "what"), (
        (one.check, one.subject, one.old, one.new, one.why) for one in found.changed
    ))  # fmt: skip
    far = [one for one in found.moved if one.percent is None or abs(one.percent) >= above_percent]
    _table(("check", "subject", "number", "before", "after", "change", ""), (
        (*one.key, f"{one.old:.4g}", f"{one.new:.4g}", _percent(one), one.word) for one in far
    ))  # fmt: skip
    near = len(found.moved) - len(far)
    less = f"{near} numbers by less than {above_percent:g} %"
    out.print(f"{len(found.changed)} verdicts and {len(far)} numbers changed, {less}")
    for what, keys in (("gone", found.gone), ("new", found.added)):
        if keys:
            out.print(f"{what:<9}{', '.join(map(str, keys))}", markup=False, soft_wrap=True)


def show_promoted(found: Promoted) -> None:
    """Print which clauses of the policy are met by what, and the tags."""
    from kiln.promote import HEADINGS

    rows(HEADINGS, found.rows())
    for one in found.tags:
        moved = f", it named {one.before}" if one.before not in ("", found.digest) else ""
        said = "would name" if found.dry else "names"
        console().print(f"tag {one.tag} {said} {found.digest}{moved}", markup=False, soft_wrap=True)


def word(verdict: Verdict) -> Text:
    """Return a verdict in its colour."""
    return Text(verdict, style=STYLES[verdict])


def told(one: Outcome, others: int = 0) -> Text:
    """Return an outcome with its cause and cure, in lines; `others` say the same."""
    text = Text(f"  {one.verdict:<8}", style=STYLES[one.verdict])
    more = f" and {others} {'other' if others == 1 else 'others'}" if others else ""
    text.append(f"{one.check}{more}  {f'{one.subject}: ' if one.subject else ''}{one.message}", style="default")
    for name, said in (("cause", one.cause), ("cure ", one.cure)):
        if said:
            text.append(f"\n          {name} {said}", style="default")
    return text


def _server(receipt: Receipt) -> tuple[str, str]:
    """Return floor and power."""
    server = receipt.server
    return (_whole(server.floor_tok_s), _whole(server.power_w)) if server else ("–", "–")


def _percent(moved: Moved) -> str:
    return f"{moved.percent:+.1f} %" if moved.percent is not None else "from 0"


def _whole(value: float | None) -> str:
    return f"{value:,.0f}" if value is not None else "–"


def _table(headings: tuple[str, ...], lines: Iterable[tuple[Cell, ...]]) -> None:
    """Print a table unless it has no line; texts fold, and brackets in them are not markup."""
    found = [*lines]
    table = Table(box=None, pad_edge=False)
    for heading in headings:
        justify: Literal["left", "right"] = "right" if heading in _RIGHT else "left"
        table.add_column(heading, overflow="fold", justify=justify, no_wrap=heading in _WHOLE)
    for line in found:
        table.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in line))
    if found:
        console().print(table)
