"""Raw layers, scanned into nodes, nothing extracted: what could leave the tree or break an engine is refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kiln.tarread import BLOCKDEV, CHARDEV, DIRECTORY, HARDLINK, REGULAR, SYMLINK, Member, Source, members, show
from kiln.tree import WHITEOUT, Node, Scan, parent
from kiln.volatile import is_host_xattr, is_volatile

MAX_FILE_BYTES = 64 << 30
MAX_UNPACKED_BYTES = 128 << 30
"""All files of one layer, holes of sparse ones included: what a small blob may make an engine write."""
MAX_ENTRIES = 300_000
"""Entries of one layer: each takes about 600 bytes of memory (benchmarks/canon.py has what a layer takes)."""
_OPAQUE = b".wh..wh..opq"
_PATH_MAX, _NAME_MAX, _ID_MAX = 4095, 255, 2**32 - 2


def scan(path: Path, index: int, label: str) -> Scan:
    """Read the headers of a raw layer. Volatile paths are left out; whatever could escape the tree is refused."""
    found = _Entries(index)
    with path.open("rb") as file:
        source = Source(file, label)
        for member in members(source):
            found.add(member, source)
        found.check_parents(source)
    found.adopt()
    return Scan(label, found.nodes, found.links, frozenset(found.whiteouts), frozenset(found.opaque))


@dataclass
class _Entries:
    """The entries of one raw layer. `left_out` has the volatile files, which links may name (of a link, its target)."""

    index: int
    count: int = 0
    unpacked_bytes: int = 0
    nodes: dict[bytes, Node] = field(default_factory=dict)
    links: dict[bytes, bytes] = field(default_factory=dict)
    left_out: dict[bytes, Node | bytes] = field(default_factory=dict)
    whiteouts: set[bytes] = field(default_factory=set)
    opaque: set[bytes] = field(default_factory=set)

    def add(self, member: Member, source: Source) -> None:
        name = _clean(member.name, source, member.name)
        above, _, base = name.rpartition(b"/")
        self._count(name, member, source)
        if base == _OPAQUE:
            self.opaque.add(above)
        elif base.startswith(WHITEOUT):
            self.whiteouts.add(above + b"/" * bool(above) + base[len(WHITEOUT) :])
        elif is_volatile(name):
            self._leave_out(name, member, source)
        elif name:
            self._check(name, member, source)
            if member.kind == HARDLINK:
                self.links[name] = _clean(member.linkname, source, name)
            else:
                self.nodes[name] = _node(member, self.index)

    def check_parents(self, source: Source) -> None:
        """Refuse an entry below one that is no directory."""
        for name in (*self.nodes, *self.links):
            above = parent(name)
            if above in self.links or (above in self.nodes and self.nodes[above].kind != DIRECTORY):
                source.refuse(name, f"lies below {show(above)}, which is no directory; links are not followed")

    def adopt(self) -> None:
        """Let the first hard link to a file that is left out be the file, and the others be links to it."""
        heirs: dict[Node, bytes] = {}
        for name, target in sorted(self.links.items()):
            found = self._resolve(target)
            if not isinstance(found, Node):
                self.links[name] = found
            elif heirs.setdefault(found, name) == name:
                self.nodes[name] = found
                del self.links[name]
            else:
                self.links[name] = heirs[found]

    def _leave_out(self, name: bytes, member: Member, source: Source) -> None:
        if member.kind == REGULAR:
            self.left_out.setdefault(name, _node(member, self.index))
        elif member.kind == HARDLINK and (target := _clean(member.linkname, source, name)) != name:
            self.left_out.setdefault(name, target)

    def _resolve(self, target: bytes) -> Node | bytes:
        """Follow links among what is left out; each names an earlier entry, so this ends."""
        found: Node | bytes = target
        while isinstance(found, bytes) and found in self.left_out:
            found = self.left_out[found]
        return found

    def _count(self, name: bytes, member: Member, source: Source) -> None:
        self.count += 1
        self.unpacked_bytes += member.size
        if self.count > MAX_ENTRIES:
            source.refuse(name, f"more than {MAX_ENTRIES} entries in one layer")
        if member.size > MAX_FILE_BYTES:
            source.refuse(name, f"{member.size} bytes, more than {MAX_FILE_BYTES}")
        if self.unpacked_bytes > MAX_UNPACKED_BYTES:
            size = f"{self.unpacked_bytes} bytes by now, more than {MAX_UNPACKED_BYTES}"
            source.refuse(name, f"the layer unpacks to {size}")

    def _check(self, name: bytes, member: Member, source: Source) -> None:
        if member.kind in (CHARDEV, BLOCKDEV):
            source.refuse(name, "a device node outside /dev; what a rootless engine builds or unpacks has none")
        known = self.nodes.get(name)
        if name in self.links or (known and not known.kind == member.kind == DIRECTORY):
            source.refuse(name, "twice in the layer")
        if member.uid > _ID_MAX or member.gid > _ID_MAX:
            source.refuse(name, f"owner {member.uid}:{member.gid}, more than Linux has")
        if member.kind == SYMLINK:
            _check_target(name, member.linkname, source)


def _clean(name: bytes, source: Source, entry: bytes) -> bytes:
    parts = [part for part in name.split(b"/") if part not in (b"", b".")]
    what = "" if name is entry else f"hard link to {show(name)}: "
    if name.startswith(b"/"):
        source.refuse(entry, f"{what}an absolute path in a layer")
    if b".." in parts:
        source.refuse(entry, f"{what}`..` in a path of a layer")
    if b"\0" in name:
        source.refuse(entry, f"{what}a NUL byte in a path")
    if len(name) > _NAME_MAX and _is_too_long(name, parts):
        source.refuse(entry, f"{what}longer than Linux allows ({_PATH_MAX} bytes a path, {_NAME_MAX} a name)")
    if WHITEOUT in name:
        _check_whiteout(parts, source, entry)
    return b"/".join(parts)


def _is_too_long(name: bytes, parts: Sequence[bytes]) -> bool:
    return len(name) > _PATH_MAX or any(len(part.removeprefix(WHITEOUT)) > _NAME_MAX for part in parts)


def _check_whiteout(parts: Sequence[bytes], source: Source, entry: bytes) -> None:
    if any(part.startswith(WHITEOUT) for part in parts[:-1]):
        source.refuse(entry, "lies below a whiteout")
    if parts[-1] in (WHITEOUT, WHITEOUT + b".", WHITEOUT + b".."):
        source.refuse(entry, "a whiteout of no name")


def _check_target(name: bytes, target: bytes, source: Source) -> None:
    if not target:
        source.refuse(name, "a symbolic link to nothing")
    if b"\0" in target:
        source.refuse(name, "a NUL byte in a link")
    if len(target) > _PATH_MAX:
        source.refuse(name, f"a symbolic link longer than Linux allows ({_PATH_MAX} bytes)")


def _node(member: Member, index: int) -> Node:
    xattrs = tuple(pair for pair in member.xattrs if not is_host_xattr(pair[0]))
    link, mode = (member.linkname, 0o777) if member.kind == SYMLINK else (b"", member.mode)
    where = (index, member.offset, member.segments)
    return Node(member.kind, mode, member.uid, member.gid, member.size, link, xattrs, *where)
