"""Two canonical layouts → what differs: manifest, config, layers, and in the layers which paths, and how."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from difflib import SequenceMatcher
from io import BytesIO
from itertools import zip_longest
from pathlib import Path
from typing import Literal

from kiln import documents, oci
from kiln.compression import open_layer
from kiln.errors import UserError
from kiln.oci import LayerInfo, Layout
from kiln.tarread import DIRECTORY, REGULAR, Member, Source, members, show
from kiln.tree import sort_key

Level = Literal["identical", "recompressed", "different"]
"""Same manifest digest · same config, so same image ID and diffIDs, but other blobs · anything else."""

LISTED = 1000
_CHUNK = 1 << 20
_ASPECTS: Mapping[str, str] = {
    "kind": "type", "mode": "mode", "uid": "owner", "gid": "owner", "mtime": "mtime", "size": "size",
    "xattrs": "xattrs", "linkname": "link",
}  # fmt: skip


@dataclass(frozen=True)
class Difference:
    """A path and what differs in it; `a` and `b` show the entry, empty on the side that lacks it."""

    path: str
    what: tuple[str, ...]
    a: str
    b: str


@dataclass(frozen=True)
class LayerDifference:
    """Two layers. Files are all but directories; bytes are content, of equal layers the whole tar.

    `differences` has the first `LISTED` of `count`.
    """

    number: int
    a: str
    b: str
    files: int
    same_files: int
    bytes: int
    same_bytes: int
    count: int = 0
    kinds: Mapping[str, int] = field(default_factory=dict)
    differences: tuple[Difference, ...] = ()

    @property
    def same(self) -> bool:
        return self.a == self.b


@dataclass(frozen=True)
class Comparison:
    """What two layouts have in common. `keys`: JSON keys of manifest and config with other values, each as (a, b)."""

    level: Level
    manifests: tuple[str, str]
    configs: tuple[str, str]
    keys: Mapping[str, tuple[str, str]]
    layers: tuple[LayerDifference, ...]

    @property
    def files_percent(self) -> float:
        return _percent(sum(one.same_files for one in self.layers), sum(one.files for one in self.layers))

    @property
    def bytes_percent(self) -> float:
        return _percent(sum(one.same_bytes for one in self.layers), sum(one.bytes for one in self.layers))

    def as_dict(self) -> dict[str, object]:
        """Return the comparison as plain data."""
        return {**asdict(self), "files_percent": self.files_percent, "bytes_percent": self.bytes_percent}


def compare(one: Path, other: Path) -> Comparison:
    """Compare the images of two canonical layouts; nothing is unpacked, and content is read in chunks.

    Raises UserError for a layout that is damaged, or whose entries are not in canonical order.
    """
    a, b = oci.read(one), oci.read(other)
    layers = tuple(
        _same(number, x) if x and y and x.diff_id == y.diff_id else _layers(number, (a.path, x), (b.path, y))
        for number, (x, y) in enumerate(_pairs(a.layers, b.layers))
    )
    digests = (a.manifest_digest, b.manifest_digest), (a.config_digest, b.config_digest)
    return Comparison(_level(a, b), *digests, documents.differing_keys(a, b), layers)


def _level(a: Layout, b: Layout) -> Level:
    if a.manifest_digest == b.manifest_digest:
        return "identical"
    return "recompressed" if a.config_digest == b.config_digest else "different"


def _percent(part: int, whole: int) -> float:
    """Return percent, cut and not rounded: 100 means all."""
    return int(10_000 * part / whole) / 100 if whole else 100.0


def _pairs(a: Sequence[LayerInfo], b: Sequence[LayerInfo]) -> Iterator[tuple[LayerInfo | None, LayerInfo | None]]:
    """Pair equal layers in order, and those between them one by one."""
    ids = [layer.diff_id for layer in a], [layer.diff_id for layer in b]
    for _, a_from, a_to, b_from, b_to in SequenceMatcher(None, *ids, autojunk=False).get_opcodes():
        yield from zip_longest(a[a_from:a_to], b[b_from:b_to])


def _same(number: int, layer: LayerInfo) -> LayerDifference:
    numbers = layer.files, layer.files, layer.raw_bytes, layer.raw_bytes
    return LayerDifference(number, layer.diff_id, layer.diff_id, *numbers)


Side = tuple[Path, LayerInfo | None]


def _layers(number: int, a: Side, b: Side) -> LayerDifference:
    count = _Count()
    with ExitStack() as stack:
        sources = [stack.enter_context(open_source(path, layer)) for path, layer in (a, b)]
        for one, other in _join(*(_ordered(source) for source in sources)):
            count.add(one, other, _what(one, other, *sources))
    x, y = (layer.diff_id if layer else "" for _, layer in (a, b))
    totals = count.files, count.same_files, count.bytes, count.same_bytes
    kinds = dict(sorted(count.kinds.items()))
    return LayerDifference(number, x, y, *totals, count.count, kinds, tuple(count.listed))


@dataclass
class _Count:
    """What was seen of two layers so far."""

    files: int = 0
    same_files: int = 0
    bytes: int = 0
    same_bytes: int = 0
    count: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    listed: list[Difference] = field(default_factory=list)

    def add(self, one: Member | None, other: Member | None, what: tuple[str, ...]) -> None:
        entry = one or other
        assert entry is not None
        size = max(member.size for member in (one, other) if member)
        is_file = entry.kind != DIRECTORY
        self.files += is_file
        self.same_files += is_file and not what
        self.bytes += size
        self.same_bytes += size if one and other and not {"content", "size", "type"} & set(what) else 0
        if what:
            self.count += 1
            self.kinds.update(what)
            if len(self.listed) < LISTED:
                self.listed.append(Difference(show(entry.name), what, _shown(one), _shown(other)))


def _shown(member: Member | None) -> str:
    if member is None:
        return ""
    kind = {DIRECTORY: "directory", REGULAR: "file"}.get(member.kind, f"type {member.kind.decode()}")
    link = f" -> {show(member.linkname)}" if member.linkname else ""
    return f"{kind} {member.mode:04o} {member.uid}:{member.gid} {member.size} B, {member.mtime}{link}"


@contextmanager
def open_source(layout: Path, layer: LayerInfo | None) -> Iterator[Source]:
    """Open a layer's entries for one pass; None is a layer without entries."""
    if layer is None:
        yield Source(BytesIO(), "no layer")
        return
    with open_layer(oci.blob_path(layout, layer.digest)) as raw:
        yield Source(raw, layer.digest[:19], forward=True)  # gzip's stream seeks by unpacking all of it again


def _key(member: Member) -> bytes:
    return sort_key(member.name.rstrip(b"/"))


def _ordered(source: Source) -> Iterator[Member]:
    last = None
    for member in members(source):
        if last is not None and _key(member) <= last:
            source.refuse(member.name, "not in canonical order, so that it cannot be compared in one pass")
        last = _key(member)
        yield member


def _join(a: Iterator[Member], b: Iterator[Member]) -> Iterator[tuple[Member | None, Member | None]]:
    """Walk two sorted lists side by side."""
    one, other = next(a, None), next(b, None)
    while one or other:
        behind = not other or (one is not None and _key(one) < _key(other))
        if one and behind:
            yield one, None
            one = next(a, None)
        elif not one or (other and _key(other) < _key(one)):
            yield None, other
            other = next(b, None)
        else:
            yield one, other
            one, other = next(a, None), next(b, None)


def _what(one: Member | None, other: Member | None, a: Source, b: Source) -> tuple[str, ...]:
    if one is None or other is None:
        return ("only in A" if one else "only in B",)
    found = dict.fromkeys(word for name, word in _ASPECTS.items() if getattr(one, name) != getattr(other, name))
    if one.kind == other.kind == REGULAR and one.size == other.size and not _equal(one, other, a, b):
        found["content"] = None
    return tuple(found)


def _equal(one: Member, other: Member, a: Source, b: Source) -> bool:
    """Compare the content of two entries that were just read."""
    if one.segments is not None or other.segments is not None:
        raise UserError("a sparse file, which a canonical layer never has", source=f"{a.label}: {show(one.name)}")
    left = one.size
    while left:
        size = min(_CHUNK, left)
        if a.read(size) != b.read(size):
            return False
        left -= size
    return True
