"""An OCI layout as records: its layers are streamed, never unpacked, and remembered by digest."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO, cast

from kiln import oci, whole
from kiln.audit.reader import Reader
from kiln.audit.records import Record, Target, pack, unpack
from kiln.compression import open_layer
from kiln.tarread import HARDLINK, REGULAR, SYMLINK, Member, Source, members
from kiln.tree import WHITEOUT

_OPAQUE = ".wh..wh..opq"


@dataclass
class Layer:
    """The files of one layer, and what it hides: paths, and folders (`opaque`) emptied before."""

    records: dict[str, Record] = field(default_factory=dict)
    hidden: list[str] = field(default_factory=list)
    opaque: list[str] = field(default_factory=list)


def read(layout: Path, reader: Reader, say: Callable[[str], None]) -> Target:
    """Read an image; layers in parallel, the largest first."""
    image = oci.read(layout)
    largest = sorted(image.layers, key=lambda layer: -layer.size_bytes)
    with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
        read_one = {layer.digest: pool.submit(_layer, layout, layer, reader, say) for layer in largest}
        found = [read_one[layer.digest].result() for layer in image.layers]
    return Target(str(layout), True, merge(found))


def labels(layout: Path) -> dict[str, str]:
    """Return the image's labels."""
    config = json.loads(oci.blob_path(layout, oci.read(layout).config_digest).read_bytes())
    return dict(config.get("config", {}).get("Labels") or {})


def merge(layers: list[Layer]) -> dict[str, Record]:
    """Lay layers on each other: a file hides whatever lay below its path."""
    found: dict[str, Record] = {}
    for layer in layers:
        gone, emptied = {*layer.hidden, *layer.records}, set(layer.opaque)
        found = {path: record for path, record in found.items() if not _is_hidden(path, gone, emptied)}
        found |= layer.records
    return found


def _is_hidden(path: str, gone: set[str], emptied: set[str]) -> bool:
    while path:
        if path in gone:
            return True
        path = path.rpartition("/")[0]
        if path in emptied:
            return True
    return False


def _layer(layout: Path, layer: oci.LayerInfo, reader: Reader, say: Callable[[str], None]) -> Layer:
    cached = reader.home / "audit" / "layers" / f"{layer.digest[7:]}-{reader.key}.json.zst"
    if cached.exists():
        return _load(cached)
    say(f"reading layer {layer.digest[7:19]}, {layer.size_bytes / 1e6:,.0f} MB")
    with open_layer(oci.blob_path(layout, layer.digest)) as raw:
        found = _scan(Source(raw, layer.digest), reader)
    _save(cached, found)
    return found


def _scan(source: Source, reader: Reader) -> Layer:
    found = Layer()
    for member in members(source):
        path = _path(member.name)
        above, _, base = path.rpartition("/")
        if base == _OPAQUE:
            found.opaque.append(above)
        elif base.startswith(WHITEOUT.decode()):
            found.hidden.append(f"{above}/{base[len(WHITEOUT) :]}".lstrip("/"))
        elif (record := _record(path, member, source, reader, found)) is not None:
            found.records[path] = record
    return found


def _record(path: str, member: Member, source: Source, reader: Reader, found: Layer) -> Record | None:
    if member.kind == REGULAR and member.segments is None:
        return reader.read(path, cast(BinaryIO, source), member.size)
    if member.kind == SYMLINK:
        return Record(path, link=_text(member.linkname))
    if member.kind == HARDLINK:
        leader = found.records.get(_path(member.linkname))
        return replace(leader, path=path) if leader else None
    return None


def _path(name: bytes) -> str:
    return "/".join(part for part in _text(name).split("/") if part not in ("", "."))


def _text(name: bytes) -> str:
    return name.decode("utf-8", "backslashreplace")


def _load(path: Path) -> Layer:
    import zstandard

    data: dict[str, Any] = json.loads(zstandard.ZstdDecompressor().decompress(path.read_bytes()))
    records = [unpack(one) for one in data["records"]]
    return Layer({record.path: record for record in records}, data["hidden"], data["opaque"])


def _save(path: Path, layer: Layer) -> None:
    import zstandard

    records = [pack(record) for record in layer.records.values()]
    data = json.dumps({"records": records, "hidden": layer.hidden, "opaque": layer.opaque})
    whole.write(path, zstandard.ZstdCompressor().compress(data.encode()))
