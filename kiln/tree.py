"""The tree of an image: paths and nodes, and what a layer changes in it. No content is held, only where it lies."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from kiln.errors import UserError
from kiln.sparse import Segment
from kiln.tarread import DIRECTORY, REGULAR, show

WHITEOUT = b".wh."
Equal = Callable[["Node", "Node"], bool]


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """An inode: two paths with the same Node are hard links. Content: `size` bytes at `offset` of raw layer `layer`."""

    kind: bytes
    mode: int
    uid: int
    gid: int
    size: int = 0
    link: bytes = b""
    xattrs: tuple[tuple[bytes, bytes], ...] = ()
    layer: int = -1
    offset: int = 0
    segments: tuple[Segment, ...] | None = None

    @property
    def meta(self) -> tuple[object, ...]:
        """Everything that counts but the content."""
        return (self.kind, self.mode, self.uid, self.gid, self.size, self.link, self.xattrs)


@dataclass(frozen=True)
class Scan:
    """What a raw layer says: nodes, hard links (path → target), hidden paths, directories emptied first."""

    label: str
    nodes: dict[bytes, Node]
    links: dict[bytes, bytes]
    whiteouts: frozenset[bytes]
    opaque: frozenset[bytes]

    def is_directory(self, path: bytes) -> bool:
        return path in self.nodes and self.nodes[path].kind == DIRECTORY


@dataclass(frozen=True, slots=True)
class Item:
    """One entry of a canonical layer: a node, a hard link to the earlier entry `leader`, or (no node) a whiteout."""

    name: bytes
    node: Node | None
    leader: bytes | None = None


@dataclass
class Tree:
    """Paths → nodes after the layers so far; `groups` has the paths of each node that has several."""

    nodes: dict[bytes, Node] = field(default_factory=dict)
    groups: dict[Node, set[bytes]] = field(default_factory=dict)
    _before: dict[bytes, Node | None] = field(default_factory=dict)

    def advance(self, scan: Scan, equal_content: Equal) -> tuple[Item, ...]:
        """Apply a raw layer and return the canonical one: the difference between the trees, no-op entries left out.

        `equal_content` compares two regular files of the same size. The tree becomes what the canonical layers give.
        """
        self._before = {}
        self._hide(scan)
        for path in sorted(scan.nodes, key=sort_key):
            self._add_parents(path, scan.label)
            self._put(path, scan.nodes[path])
        for path, target in scan.links.items():
            self._add_parents(path, scan.label)
            self._link(path, target, scan.label)
        changed = self._changed(equal_content)
        self._restore(changed)
        return self._items(changed)

    def _hide(self, scan: Scan) -> None:
        replaced = {
            path for path in (*scan.nodes, *scan.links)
            if not scan.is_directory(path) and (node := self.nodes.get(path)) and node.kind == DIRECTORY
        }  # fmt: skip
        gone = scan.whiteouts | replaced
        if gone or scan.opaque:
            for path in [path for path in self.nodes if _is_hidden(path, gone, scan.opaque)]:
                self._drop(path)

    def _add_parents(self, path: bytes, label: str) -> None:
        missing, above = [], parent(path)
        while above and (node := self.nodes.get(above)) is None:
            missing.append(above)
            above = parent(above)
        if above and node is not None and node.kind != DIRECTORY:
            message = f"lies below {show(above)} of a lower layer, which is no directory; links are not followed"
            raise UserError(message, source=f"{label}: {show(path)}")
        for name in reversed(missing):
            self._put(name, Node(DIRECTORY, 0o755, 0, 0))

    def _link(self, path: bytes, target: bytes, label: str) -> None:
        node = self.nodes.get(target)
        if node is None or node.kind == DIRECTORY or path == target:
            what = "itself" if path == target else "a directory" if node else "a path that does not exist"
            raise UserError(f"hard link to {what}: {show(target)}", source=f"{label}: {show(path)}")
        self.groups.setdefault(node, {target})
        self._put(path, node)

    def _put(self, path: bytes, node: Node) -> None:
        self._drop(path)
        self.nodes[path] = node
        if node in self.groups:
            self.groups[node].add(path)

    def _drop(self, path: bytes) -> None:
        node = self.nodes.pop(path, None)
        self._before.setdefault(path, node)
        if node is not None and node in self.groups:
            self.groups[node].discard(path)

    def _old(self, path: bytes) -> Node | None:
        return self._before[path] if path in self._before else self.nodes[path]

    def _changed(self, equal: Equal) -> set[bytes]:
        touched = {self.nodes[path] for path in self._before if path in self.nodes}
        grouped = {node for node in touched if len(self.groups.get(node, ())) > 1}
        changed: set[bytes] = set()
        for node in grouped:
            old = {self._old(path) for path in self.groups[node]}
            if len(old) != 1 or not _same(node, old.pop(), equal):
                changed |= self.groups[node]
        for path, before in self._before.items():
            after = self.nodes.get(path)
            if after is not None and after not in grouped and not _same(after, before, equal):
                changed.add(path)
        return changed

    def _restore(self, changed: set[bytes]) -> None:
        for path, before in list(self._before.items()):
            if before is not None and path in self.nodes and path not in changed:
                self._put(path, before)
        self.groups = {node: paths for node, paths in self.groups.items() if len(paths) > 1}

    def _items(self, changed: set[bytes]) -> tuple[Item, ...]:
        gone = {path for path, node in self._before.items() if node and path not in self.nodes}
        hidden = {path for path in gone if self._has_parent(path)}
        groups = {self.nodes[path] for path in changed} & self.groups.keys()
        leaders = {node: min(self.groups[node], key=sort_key) for node in groups}
        shown = changed | ancestors((*changed, *hidden))
        items = [Item(path, node, _leader(path, leaders.get(node))) for path in shown for node in [self.nodes[path]]]
        items += [Item(whiteout(path), None) for path in hidden]
        return tuple(sorted(items, key=lambda item: sort_key(item.name)))

    def _has_parent(self, path: bytes) -> bool:
        above = parent(path)
        return not above or (above in self.nodes and self.nodes[above].kind == DIRECTORY)


def parent(path: bytes) -> bytes:
    """Return the directory part, empty at the top."""
    return path[: max(path.rfind(b"/"), 0)]


def whiteout(path: bytes) -> bytes:
    """Return the name of the entry that hides `path`."""
    above, slash, name = path.rpartition(b"/")
    return above + slash + WHITEOUT + name


def sort_key(path: bytes) -> bytes:
    """Order by path component: a directory, then all that is below it."""
    return path.replace(b"/", b"\0")


def ancestors(paths: Iterable[bytes]) -> set[bytes]:
    """Return every directory above these paths."""
    found: set[bytes] = set()
    for path in paths:
        while (path := parent(path)) and path not in found:
            found.add(path)
    return found


def _leader(path: bytes, leader: bytes | None) -> bytes | None:
    return None if leader == path else leader


def _is_hidden(path: bytes, gone: frozenset[bytes] | set[bytes], opaque: frozenset[bytes]) -> bool:
    while path:
        if path in gone:
            return True
        path = parent(path)
        if path in opaque:
            return True
    return False


def _same(node: Node, old: Node | None, equal: Equal) -> bool:
    if node is old:
        return True
    if old is None or node.meta != old.meta:
        return False
    return node.kind != REGULAR or node.size == 0 or equal(node, old)
