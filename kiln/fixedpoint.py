"""Is a layout canonical? Canonicalised again it must come out byte for byte: the proof that nothing was slipped in."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import cast

from kiln import canon, compare, oci
from kiln.compression import Compression
from kiln.errors import UserError
from kiln.oci import LayerInfo, Layout
from kiln.tarread import members, show

_SHOWN = 3


@dataclass(frozen=True)
class FixedPoint:
    """Whether a layout is a fixed point, and if not, what its canonical form has otherwise."""

    holds: bool
    why: str


def test(layout: Layout, work: Path) -> FixedPoint:
    """Canonicalise a layout below `work`, with the epochs that its own entries have. Raises UserError if it can't be.

    The raw layers are spooled there and removed again.
    """
    with tempfile.TemporaryDirectory(dir=work, prefix="fixed-point-") as folder:
        again = canon.canonicalise(
            layout.path,
            Path(folder) / "layout",
            epoch=_created(layout),
            compression=_compression(layout),
            origins=[canon.Origin("", _epoch(layout.path, layer)) for layer in layout.layers],
            expected_bytes=sum(layer.raw_bytes for layer in layout.layers),
        )
        if again.manifest_digest == layout.manifest_digest:
            return FixedPoint(True, f"{len(layout.layers)} layers come out as they went in")
        return FixedPoint(False, "; ".join(_differences(layout, again)))


def _created(layout: Layout) -> int:
    config = json.loads(oci.blob_path(layout.path, layout.config_digest).read_bytes())
    try:
        return int(datetime.strptime(str(config.get("created")), "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC).timestamp())
    except ValueError:
        message = f"created is {config.get('created')!r}, a canonical config has whole seconds of UTC"
        raise UserError(message, source="image config") from None


def compressions(layout: Layout) -> set[str]:
    """Return the compressions of the layers, as their media types have it."""
    manifest = oci.read_json(lambda name: layout.path / name, {"digest": layout.manifest_digest})
    return {oci.LAYERS.get(str(layer.get("mediaType")), "unknown") for layer in manifest["layers"]}


def _compression(layout: Layout) -> Compression:
    found = compressions(layout)
    if found not in ({"zstd"}, {"gzip"}):
        raise UserError(f"layers of compression {sorted(found)}; a canonical image has zstd or gzip", source="manifest")
    return cast(Compression, found.pop())


def _epoch(layout: Path, layer: LayerInfo) -> int:
    """Return the time of a layer's first entry; a canonical layer has it in all."""
    with compare.open_source(layout, layer) as source:
        first = next(members(source), None)
    if first is None:
        raise UserError("a layer without entries; a canonical image has none", source=layer.digest)
    if first.mtime is None:
        raise UserError(
            "a time in another form than canonical layers have", source=f"{layer.digest}: {show(first.name)}"
        )
    return first.mtime


def _differences(layout: Layout, again: Layout) -> Iterator[str]:
    try:
        found = compare.compare(layout.path, again.path)
    except UserError as error:
        yield str(error)
        return
    told = 0
    for layer in found.layers:
        for one in layer.differences[:_SHOWN]:
            told += 1
            yield f"layer {layer.number}: {one.path}: {', '.join(one.what)}"
    for key, (has, canonical) in list(found.keys.items())[:_SHOWN]:
        told += 1
        yield f"{key}: {has or 'nothing'} instead of {canonical or 'nothing'}"
    if not told:
        yield f"the blobs or the JSON are written in another way; canonical, it is {again.manifest_digest}"
