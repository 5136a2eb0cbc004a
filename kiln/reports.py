"""What `inv reproduce` and `inv verify` print for people."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich.console import Console
from rich.table import Table
from rich.text import Text

from kiln.compare import Comparison, LayerDifference
from kiln.reproduce import Report as Reproduction
from kiln.tables import console
from kiln.verify import HEADINGS
from kiln.verify import Report as Verification
from kiln.view import clock

PATHS = 40
VERDICTS = {
    "identical": "IDENTICAL: the same manifest, so every byte",
    "recompressed": "RECOMPRESSED: the same image ID and diffIDs, layers compressed in another way",
    "different": "DIFFERENT",
}


def reproduced(report: Reproduction) -> None:
    """Print the conditions of a rebuild and what it gave."""
    out = console()
    _table(out, "conditions", ("condition", "state", "first build", "rebuild"), (
        (one.name, f"{one.state}{f' ({one.why})' if one.why else ''}", one.here, one.there) for one in report.conditions
    ))  # fmt: skip
    compared(report.comparison, "first build", "rebuild")
    for one in report.explanations:
        out.print(f"diffoscope {one.path}", markup=False)
        out.print(one.text, markup=False)
    out.print(f"plan     {report.plan[:12]}  {report.tag}")
    out.print(f"engines  first build: {report.engines[0]}; rebuild: {report.engines[1]}, {clock(report.wall_s)}")
    if report.kept:
        out.print(f"kept     {report.kept}")
    out.print(f"verdict  {VERDICTS[report.comparison.level]}")


def compared(found: Comparison, a: str, b: str) -> None:
    """Print a comparison: digests, keys, layers, and the first paths of each layer that differs."""
    out = console()
    digests = (("manifest", *found.manifests), ("config", *found.configs))
    _table(out, "digests", ("what", a, b), digests)
    if found.keys:
        _table(out, "JSON keys that differ", ("key", a, b), ((key, *values) for key, values in found.keys.items()))
    _table(out, "layers", ("layer", a, b, "files", "identical", "what differs"), map(_layer, found.layers))
    for layer in found.layers:
        if layer.count:
            _table(out, f"layer {layer.number}: {layer.count} paths differ", ("path", "what", a, b), _paths(layer))
    out.print(f"files    {found.files_percent:.2f} % identical")
    out.print(f"bytes    {found.bytes_percent:.2f} % identical")


def verified(report: Verification) -> None:
    """Print the checks of an image."""
    out = console()
    _table(out, "checks", HEADINGS, report.rows())
    out.print(f"image    {report.subject}", markup=False)
    out.print(f"digest   {report.digest or 'not known'}")
    out.print(f"verdict  {'FAILED: ' + ', '.join(report.failed) if report.failed else 'OK'}")


def _layer(layer: LayerDifference) -> tuple[str, ...]:
    kinds = ", ".join(f"{count} × {kind}" for kind, count in layer.kinds.items()) or "nothing"
    a, b = (name[7:19] or "none" for name in (layer.a, layer.b))
    return (str(layer.number), a, b, str(layer.files), str(layer.same_files), kinds)


def _paths(layer: LayerDifference) -> Iterator[tuple[str, ...]]:
    for one in layer.differences[:PATHS]:
        yield (one.path, ", ".join(one.what), one.a, one.b)
    if layer.count > PATHS:
        yield (f"… {layer.count - PATHS} more", "", "", "")


def _table(out: Console, title: str, headings: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> None:
    table = Table(box=None, pad_edge=False, title=title, title_justify="left")
    for heading in headings:
        table.add_column(heading, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    out.print(table)
