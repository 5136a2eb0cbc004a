"""The canonicaliser: one tree, one digest, and nothing lost; whatever could lead out of the tree is refused by name."""

from __future__ import annotations

import fcntl
import gzip
import io
import json
import os
import random
import tarfile
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from kiln import canon, fixedpoint, imageconfig, layerscan, oci, recompress, spool
from kiln.canon import ConfigOverrides, Origin
from kiln.compression import Compression
from kiln.errors import UserError
from tests import madeimages as made
from tests.madeimages import EPOCH, Entry

NAMES = ("a", "b", "c.so", "ü", "\udcff")


@dataclass(frozen=True, eq=False)
class Inode:
    """A file of the model; two paths with the same one are hard links."""

    entry: Entry


Model = dict[str, Inode]


def parents(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[:count]) for count in range(1, len(parts))]


def remove(model: Model, path: str) -> None:
    for known in [known for known in model if known == path or known.startswith(path + "/")]:
        del model[known]


def put(model: Model, path: str, inode: Inode) -> None:
    for above in parents(path):
        if above not in model or model[above].entry.kind != "dir":
            remove(model, above)
            model[above] = Inode(Entry(above, "dir", mode=0o755))
    if inode.entry.kind != "dir" or (path in model and model[path].entry.kind != "dir"):
        remove(model, path)
    model[path] = inode


paths = st.lists(st.sampled_from(NAMES), min_size=1, max_size=4).map("/".join)
fresh = st.builds(
    Entry, path=st.just(""), kind=st.sampled_from(["file", "file", "dir", "symlink", "fifo"]),
    data=st.one_of(st.sampled_from([b"", b"1", b"2"]), st.binary(max_size=600)),
    mode=st.sampled_from([0o644, 0o755, 0o4755, 0o1777]), uid=st.sampled_from([0, 1000, 3_000_000]),
    gid=st.sampled_from([0, 1000]), link=st.sampled_from(["a", "../../../etc/x", "/" + "long/" * 30]),
    xattrs=st.sampled_from([(), (("security.capability", "\x01\x00v"), ("user.b", "1")), (("user.a", "=\n"),)]),
)  # fmt: skip
operations = st.one_of(
    st.tuples(st.just("put"), paths, fresh), st.tuples(st.just("remove"), paths, st.none()),
    st.tuples(st.just("link"), paths, paths), st.tuples(st.just("empty"), paths, st.none()),
)  # fmt: skip
histories = st.lists(st.lists(operations, max_size=6), min_size=1, max_size=4)


def perform(model: Model, operation: tuple[str, str, object]) -> None:
    verb, path, what = operation
    if verb == "put" and isinstance(what, Entry):
        data, link = what.data if what.kind == "file" else b"", what.link if what.kind == "symlink" else ""
        put(model, path, Inode(replace(what, path=path, data=data, link=link)))
    elif verb == "link" and what in model and not f"{what}/".startswith(path + "/") and what not in parents(path):
        if model[str(what)].entry.kind != "dir":
            inode = model[str(what)]
            put(model, path, inode)
            if str(what) not in model:
                remove(model, path)
    elif verb == "remove":
        remove(model, path)
    elif verb == "empty" and path in model and model[path].entry.kind == "dir":
        inode = model[path]
        remove(model, path)
        model[path] = inode


def raw_layer(before: Model, after: Model, seed: int) -> bytes:
    """Write the step from one tree to the other as some engine might: an order, opaque marks, no-op entries, clocks."""
    dice = random.Random(seed)
    inodes = {after[path] for path in after if before.get(path) is not after[path]}
    shown = {path for path in after if after[path] in inodes or dice.random() < 0.2}
    shown |= {above for path in shown for above in parents(path)}
    whiteouts, opaque = set(), set()
    for path in before:
        folder = path.rpartition("/")[0]
        if path not in after and (not folder or (folder in after and after[folder].entry.kind == "dir")):
            if folder and dice.random() < 0.3:
                opaque.add(folder)
            else:
                whiteouts.add(f"{folder}/.wh.{path.rpartition('/')[2]}".lstrip("/"))
    shown |= {path for path in after if any(path.startswith(folder + "/") for folder in opaque)} | opaque
    entries, first = [], dict[Inode, str]()
    for path in sorted(shown, key=lambda path: dice.random()):
        inode, clock = after[path], dice.randrange(2**36)
        if inode.entry.kind != "dir" and inode in first:
            entries.append(Entry(path, "hardlink", link=first[inode], mtime=clock))
            continue
        first[inode] = path
        prefix = dice.choice(["", "./"])
        entries.append(replace(inode.entry, path=prefix + path, mtime=clock, owner=dice.choice(["", "root", "me"])))
    whiteouts |= {f"{dice.choice(NAMES)}/.wh.never", ".wh.never"} if dice.random() < 0.2 else set()
    marks = [Entry(path) for path in whiteouts] + [Entry(emptied(folder, dice)) for folder in opaque]
    entries = marks + entries if dice.random() < 0.5 else entries + marks
    has_xattrs = any(entry.xattrs for entry in entries)
    return made.layer(entries, tarfile.PAX_FORMAT if has_xattrs or dice.random() < 0.5 else tarfile.GNU_FORMAT)


def emptied(folder: str, dice: random.Random) -> str:
    """Name the entry that hides all that a directory had: an opaque mark, or a whiteout of the directory itself."""
    above, _, name = folder.rpartition("/")
    return dice.choice([f"{folder}/.wh..wh..opq", f"{above}/.wh.{name}".lstrip("/")])


def layers_of(history: list[list[tuple[str, str, object]]], seed: int) -> tuple[list[bytes], Model]:
    layers, model = [], Model()
    for number, step in enumerate(history):
        before = dict(model)
        for operation in step:
            perform(model, operation)
        layers.append(raw_layer(before, model, seed + number))
    return layers, model


def run(layers: list[bytes], folder: Path, name: str = "out", **options: object) -> oci.Layout:
    return canon.canonicalise(io.BytesIO(made.docker_archive(layers)), folder / name, epoch=EPOCH, **options)  # type: ignore[arg-type]


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(histories, st.integers(0, 1000))
def test_the_tree_is_the_same_before_and_after_and_the_engine_leaves_no_trace(
    history: list[list[tuple[str, str, object]]], seed: int
) -> None:
    one, model = layers_of(history, seed)
    other, _ = layers_of(history, seed + 5000)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        first, second = run(one, folder, "one"), run(other, folder, "other")
        expected = {path: replace(inode.entry, path=path) for path, inode in model.items()}
        assert made.stripped(made.tree_of(first.path)) == made.stripped(expected)
        assert first.manifest_digest == second.manifest_digest
        again = canon.canonicalise(first.path, folder / "again", epoch=EPOCH)
        assert again.manifest_digest == first.manifest_digest
        assert files(again.path) == files(first.path)
        assert {file.name for file in folder.rglob("*") if file.parent.name == "sha256"} == {
            file.name for file in (first.path / "blobs" / "sha256").iterdir()
        }


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(histories, st.integers(0, 1000), st.lists(st.integers(0, 2**33 - 1), min_size=4, max_size=4),
       st.sampled_from(["zstd", "gzip"]))  # fmt: skip
def test_a_canonical_image_made_canonical_again_has_the_same_bytes_whatever_the_epochs_of_its_layers(
    history: list[list[tuple[str, str, object]]], seed: int, epochs: list[int], compression: Compression
) -> None:
    layers, _ = layers_of(history, seed)
    origins = [Origin(f"image {epoch}", epoch) for epoch in epochs[: len(layers)]]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        first = run(layers, folder, "one", origins=origins, compression=compression)
        assume(first.layers)
        assert fixedpoint.test(first, folder).holds
        other = recompress.recompress(first.path, folder / "other", "gzip" if compression == "zstd" else "zstd")
        assert other.config_digest == first.config_digest
        assert oci.verify(other.path).manifest_digest != first.manifest_digest
        assert files(recompress.recompress(other.path, folder / "back", compression).path) == files(first.path)


def files(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def test_the_digest_is_the_one_of_every_earlier_run(tmp_path: Path) -> None:
    layers = [
        made.layer(
            [Entry("usr", "dir", mode=0o755), Entry("usr/a", data=b"hello"), Entry("usr/b", "hardlink", link="usr/a")]
        )
    ]
    found = run(layers, tmp_path)
    assert found.layers[0].diff_id == "sha256:d7bc754353e75c4ac0314f4bdd263aa7a9262d6636fab975ad9592d3fe09b942"
    assert found.manifest_digest == "sha256:3cf55a45d1fb5289bf4abd5f2c65fbc5aef898d4e59fb69d6a04c0a40a571996"


def test_entries_are_sorted_flat_and_without_names_and_every_ancestor_is_there(tmp_path: Path) -> None:
    layers = [
        made.layer(
            [Entry("z/y/x", data=b"1", mtime=2**35, owner="me"), Entry("a.b", data=b"2"), Entry("a/b", data=b"3")]
        )
    ]
    (entries,) = made.entries_of(run(layers, tmp_path).path)
    assert [entry.name for entry in entries] == ["a", "a/b", "a.b", "z", "z/y", "z/y/x"]
    assert {(entry.mtime, entry.uname, entry.gname) for entry in entries} == {(EPOCH, "", "")}
    assert {entry.mode for entry in entries if entry.isdir()} == {0o755}


def test_the_smallest_path_leads_a_group_of_hard_links(tmp_path: Path) -> None:
    layers = [made.layer([Entry("b", data=b"x"), Entry("a", "hardlink", link="b"), Entry("c", "hardlink", link="a")])]
    (entries,) = made.entries_of(run(layers, tmp_path).path)
    assert [(entry.name, entry.linkname) for entry in entries] == [("a", ""), ("b", "a"), ("c", "a")]


def test_a_hard_link_to_a_file_of_a_lower_layer_brings_that_file_along(tmp_path: Path) -> None:
    layers = [made.layer([Entry("a", data=b"x")]), made.layer([Entry("b", "hardlink", link="a")])]
    _, entries = made.entries_of(run(layers, tmp_path).path)
    assert [(entry.name, entry.linkname) for entry in entries] == [("a", ""), ("b", "a")]


def test_a_hard_link_to_a_file_that_is_left_out_becomes_the_file(tmp_path: Path) -> None:
    links = [Entry("opt/b", "hardlink", link="tmp/x"), Entry("opt/a", "hardlink", link="tmp/x")]
    found = run([made.layer([Entry("tmp/x", data=b"x", mode=0o755), *links])], tmp_path)
    (entries,) = made.entries_of(found.path)
    assert [(entry.name, entry.linkname) for entry in entries] == [("opt", ""), ("opt/a", ""), ("opt/b", "opt/a")]
    assert made.tree_of(found.path)["opt/b"].data == b"x"


def test_a_symbolic_link_has_the_mode_that_linux_shows(tmp_path: Path) -> None:
    layers = [made.layer([Entry("a", "symlink", link="b", mode=mode)]) for mode in (0o777, 0o755)]
    (entries,) = made.entries_of(run(layers, tmp_path).path)
    assert [entry.mode for entry in entries] == [0o777]


@pytest.mark.parametrize("first", [True, False], ids=["before", "after"])
def test_a_whiteout_hides_what_is_below_and_not_what_its_own_layer_brings(first: bool, tmp_path: Path) -> None:
    lower = made.layer([Entry("d", "dir", mode=0o700), Entry("d/old", data=b"x"), Entry("d/sub/x", data=b"x")])
    mark, new = [Entry(".wh.d")], [Entry("d", "dir", mode=0o755), Entry("d/new", data=b"n")]
    found = run([lower, made.layer(mark + new if first else new + mark)], tmp_path)
    _, entries = made.entries_of(found.path)
    assert [entry.name for entry in entries] == ["d", "d/.wh.old", "d/.wh.sub", "d/new"]
    assert made.tree_of(found.path)["d"].mode == 0o755


def test_a_whiteout_of_what_is_not_there_changes_nothing(tmp_path: Path) -> None:
    marks = [Entry(".wh.b"), Entry("x/.wh.y"), Entry("tmp/.wh.z")]
    found = run([made.layer([Entry("a")]), made.layer(marks)], tmp_path)
    assert len(found.layers) == 1


def test_a_path_as_deep_as_linux_allows_is_kept(tmp_path: Path) -> None:
    path = "/".join(["d"] * 2048)
    found = run([made.layer([Entry(path, data=b"x")])], tmp_path)
    assert path in made.tree_of(found.path)


def test_a_layer_that_changes_nothing_is_left_out(tmp_path: Path) -> None:
    layers = [
        made.layer([Entry("a", data=b"x")]),
        made.layer([Entry("a", data=b"x", mtime=77)]),
        made.layer([Entry("a", data=b"y")]),
    ]
    found = run(layers, tmp_path)
    assert [layer.created_by for layer in found.layers] == ["RUN step 0", "RUN step 2"]


def test_a_copy_of_one_of_two_hard_links_changes_nothing_then_or_later(tmp_path: Path) -> None:
    pair = [Entry("a", data=b"x"), Entry("b", "hardlink", link="a")]
    layers = [made.layer(pair), made.layer([Entry("a", data=b"x")]), made.layer([*pair, Entry("c", data=b"c")])]
    _, entries = made.entries_of(run(layers, tmp_path).path)
    assert [entry.name for entry in entries] == ["c"]


def test_what_a_file_hid_comes_back_when_the_directory_does(tmp_path: Path) -> None:
    folder = made.layer([Entry("d", "dir", mode=0o755), Entry("d/x", data=b"x")])
    found = run([folder, made.layer([Entry("d", data=b"file")]), folder], tmp_path)
    assert made.tree_of(found.path)["d/x"].data == b"x"
    assert len(found.layers) == 3


def test_a_layer_that_stands_twice_in_the_archive_is_a_link_there(tmp_path: Path) -> None:
    one, two = made.layer([Entry("a", data=b"x")]), made.layer([Entry("a", data=b"y")])
    assert len(run([one, two, one], tmp_path).layers) == 3


def test_an_opaque_directory_becomes_explicit_whiteouts(tmp_path: Path) -> None:
    layers = [
        made.layer([Entry("d", "dir", mode=0o755), Entry("d/old", data=b"x"), Entry("d/kept", data=b"k")]),
        made.layer([Entry("d", "dir", mode=0o755), Entry("d/.wh..wh..opq"), Entry("d/kept", data=b"k")]),
    ]
    _, entries = made.entries_of(run(layers, tmp_path).path)
    assert [entry.name for entry in entries] == ["d", "d/.wh.old"]


@pytest.mark.parametrize("path", ["dev/null", "etc/passwd-", "var/log/dpkg.log", "etc/hosts", "tmp/x/y", "run/secret",
                                  "root/.cache/pip/x", "var/cache/apt/pkgcache.bin", ".dockerenv"])  # fmt: skip
def test_volatile_files_are_dropped(path: str, tmp_path: Path) -> None:
    found = run([made.layer([Entry("a", data=b"x"), Entry(path, data=b"clock")])], tmp_path)
    assert path not in made.tree_of(found.path)


@pytest.mark.parametrize("path", ["etc/passwd", "run/lock", "var/log/other.log", "opt/tmp/x", "a/__pycache__/m.pyc"])
def test_all_other_files_stay(path: str, tmp_path: Path) -> None:
    assert path in made.tree_of(run([made.layer([Entry(path, data=b"x")])], tmp_path).path)


@pytest.mark.parametrize("form", ["S", "1.0", "0.1"])
def test_a_sparse_file_is_stored_whole(form: str, tmp_path: Path) -> None:
    content = bytes(300_000) + b"middle" + bytes(1_000_000) + b"end"
    (tmp_path / "big").write_bytes(content)
    found = run([sparse_layer(content, form)], tmp_path)
    assert made.tree_of(found.path)["big"].data == content


def sparse_layer(content: bytes, form: str) -> bytes:
    parts = [(300_000, b"middle"), (1_300_006, b"end")]
    table = [number for at, data in parts for number in (at, len(data))]
    stored = b"".join(data for _, data in parts)
    info = tarfile.TarInfo("big")
    if form == "S":
        info.type, info.size = b"S", len(stored)
        block = bytearray(info.tobuf(tarfile.GNU_FORMAT))
        block[386 : 386 + 12 * len(table)] = b"".join(b"%011o\0" % number for number in table)
        block[483:495] = b"%011o\0" % len(content)
        block[148:156] = b" " * 8
        block[148:156] = b"%06o\0 " % sum(block)
        return bytes(block) + stored.ljust(512, b"\0") + bytes(1024)
    if form == "1.0":
        text = "".join(f"{number}\n" for number in [len(parts), *table]).encode().ljust(512, b"\0")
        headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": "big"}
        headers |= {"GNU.sparse.realsize": str(len(content))}
        stored, info.name = text + stored, "GNUSparseFile.0/big"
    else:
        headers = {"GNU.sparse.map": ",".join(map(str, table)), "GNU.sparse.size": str(len(content))}
    info.size, info.pax_headers = len(stored), headers
    return info.tobuf(tarfile.PAX_FORMAT) + stored.ljust(1024, b"\0")[: 512 * -(-len(stored) // 512)] + bytes(1024)


def broken(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 0x55]) + data[at + 1 :]


def linked(target: str) -> bytes:
    return made.layer([Entry("a", "hardlink", link=target)])


def symlink(target: bytes) -> bytes:
    """Write a symbolic link whose target stands in a PAX record, where any byte may."""
    info = tarfile.TarInfo("a")
    info.type, info.pax_headers = tarfile.SYMTYPE, {"linkpath": target.decode()}
    return info.tobuf(tarfile.PAX_FORMAT) + bytes(1024)


BAD_LAYERS: dict[str, tuple[Callable[[], bytes], str]] = {
    "absolute": (lambda: made.layer([Entry("/etc/x")]), "layer 0: /etc/x: an absolute path"),
    "traversal": (lambda: made.layer([Entry("a/../../x")]), "layer 0: a/../../x: `..` in a path"),
    "whiteout traversal": (lambda: made.layer([Entry("../.wh.x")]), "../.wh.x: `..` in a path"),
    "link out": (lambda: linked("../../etc/shadow"), "a: hard link to ../../etc/shadow: `..`"),
    "absolute link": (lambda: linked("/etc/shadow"), "a: hard link to /etc/shadow: an absolute"),
    "dangling link": (lambda: linked("b"), "a: hard link to a path that does not exist: b"),
    "link to itself": (lambda: linked("a"), "a: hard link to"),
    "link to a directory": (lambda: made.layer([Entry("d", "dir"), Entry("a", "hardlink", link="d")]), "directory: d"),
    "through a link": (lambda: made.layer([Entry("a", "symlink", link="/"), Entry("a/x")]), "a/x: lies below a"),
    "device": (lambda: made.layer([Entry("opt/mem", "chardev")]), "opt/mem: a device node"),
    "twice": (lambda: made.layer([Entry("a"), Entry("a", data=b"2")]), "layer 0: a: twice in the layer"),
    "deep": (lambda: made.layer([Entry("/".join(["d"] * 10_000))]), "longer than Linux allows"),
    "long name": (lambda: made.layer([Entry("n" * 256)]), "longer than Linux allows"),
    "truncated data": (lambda: made.layer([Entry("a", data=bytes(9000))])[:4096], "layer 0: a: truncated"),
    "truncated header": (lambda: made.layer([Entry("a")])[:300], "truncated"),
    "corrupt header": (lambda: broken(made.layer([Entry("a"), Entry("b")]), 520), "wrong checksum"),
    "no tar": (lambda: b"not a tar at all" * 64, "checksum"),
    "below a whiteout": (lambda: made.layer([Entry(".wh.d/x")]), "layer 0: .wh.d/x: lies below a whiteout"),
    "whiteout of nothing": (lambda: made.layer([Entry("d/.wh.")]), "layer 0: d/.wh.: a whiteout of no name"),
    "whiteout of dots": (lambda: made.layer([Entry("d/.wh...")]), "layer 0: d/.wh...: a whiteout of no name"),
    "link to a whiteout": (lambda: linked(".wh.x"), "a: hard link to a path that does not exist: .wh.x"),
    "huge uid": (lambda: made.layer([Entry("a", uid=2**32)]), "layer 0: a: owner 4294967296:0, more than Linux has"),
    "no target": (lambda: made.layer([Entry("a", "symlink")]), "layer 0: a: a symbolic link to nothing"),
    "NUL in a link": (lambda: symlink(b"x\0y"), "layer 0: a: a NUL byte in a link"),
    "long link": (lambda: symlink(b"x" * 4096), "layer 0: a: a symbolic link longer than Linux allows (4095 bytes)"),
    "empty archive with junk": (lambda: bytes(100), "layer 0: truncated"),
    "odd type": (lambda: made.layer([Entry("a")]).replace(b"0\0\0", b"Q\0\0", 1), "layer 0"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_LAYERS)
def test_a_bad_layer_is_refused_with_the_name_of_the_entry_and_nothing_is_left(name: str, tmp_path: Path) -> None:
    make, message = BAD_LAYERS[name]
    with pytest.raises(UserError) as caught:
        run([make()], tmp_path)
    assert message in str(caught.value)
    assert list(tmp_path.iterdir()) == []


SOUND = made.docker_archive([made.layer([Entry("d/a", data=b"x"), Entry("b", "hardlink", link="d/a")])])


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.integers(0, len(SOUND) - 1), st.integers(0, 255)), min_size=1, max_size=4), st.booleans())
def test_damage_anywhere_is_refused_or_does_no_harm(changes: list[tuple[int, int]], cut: bool) -> None:
    data = bytearray(SOUND)
    for at, value in changes:
        data[at] = value
    with tempfile.TemporaryDirectory() as name:
        try:
            archive = io.BytesIO(data[: changes[0][0]] if cut else data)
            found = canon.canonicalise(archive, Path(name) / "out", epoch=EPOCH)
        except UserError:
            assert list(Path(name).iterdir()) == []
        else:
            assert made.tree_of(found.path).keys() == {"d", "d/a", "b"}


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3071), st.integers(0, 255)), min_size=1, max_size=4))
def test_a_layer_with_any_bytes_in_its_headers_is_read_or_refused(changes: list[tuple[int, int]]) -> None:
    layer = bytearray(
        made.layer([Entry("d/a", data=b"x"), Entry("n" * 120, data=b"y"), Entry("b", "hardlink", link="d/a")])
    )
    for at, value in changes:
        layer[at] = value
        start = at - at % 512
        layer[start + 148 : start + 156] = b" " * 8
        layer[start + 148 : start + 156] = b"%06o\0 " % sum(layer[start : start + 512])
    with tempfile.TemporaryDirectory() as name, suppress(UserError):
        found = run([bytes(layer)], Path(name))
        assert canon.canonicalise(found.path, Path(name) / "2", epoch=EPOCH).manifest_digest == found.manifest_digest


def test_what_a_killed_run_left_is_removed_by_the_next_and_a_living_ones_is_not(tmp_path: Path) -> None:
    dead, alive = tmp_path / ".canon-dead", tmp_path / ".canon-alive"
    for folder in (dead, alive):
        folder.mkdir()
        os.utime(folder, (1, 1))
    handle = os.open(alive, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    run([made.layer([Entry("a")])], tmp_path)
    os.close(handle)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".canon-alive", "out"]


def test_two_runs_at_once_share_the_cache(tmp_path: Path) -> None:
    layers = [made.layer([Entry(f"{number}", data=bytes([number]) * 200_000)]) for number in range(6)]
    with ThreadPoolExecutor(4) as pool:
        runs = [pool.submit(run, layers, tmp_path, str(number), cache=tmp_path / "cache") for number in range(4)]
        found = {run.result().manifest_digest for run in runs}
    assert len(found) == 1
    assert not list((tmp_path / "cache").rglob(".*"))


def test_an_entry_below_a_link_of_a_lower_layer_is_refused(tmp_path: Path) -> None:
    layers = [made.layer([Entry("lib", "symlink", link="usr/lib")]), made.layer([Entry("lib/x", data=b"x")])]
    with pytest.raises(UserError, match="layer 1: lib/x: lies below lib of a lower layer"):
        run(layers, tmp_path)


@pytest.mark.parametrize(
    ("limit", "value", "message"),
    [
        (layerscan, ("MAX_ENTRIES", 2), "layer 0: c: more than 2 entries in one layer"),
        (layerscan, ("MAX_FILE_BYTES", 2999), "layer 0: a: 3000 bytes, more than 2999"),
        (layerscan, ("MAX_UNPACKED_BYTES", 5999), "layer 0: b: the layer unpacks to 6000 bytes by now, more than 5999"),
        (spool, ("MAX_LAYER_BYTES", 6000), "unpacks to more than 6000 bytes"),
        (canon, ("MAX_STORED_BYTES", 1000), "a layer of RUN step 0 takes 0.00 GB, more than"),
    ],
)
def test_a_layer_beyond_a_limit_is_refused_with_its_name(
    limit: ModuleType, value: tuple[str, int], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limit, *value)
    content = random.Random(0).randbytes(3000)
    layer = made.layer([Entry("a", data=content), Entry("b", data=content[::-1]), Entry("c")])
    blob = gzip.compress(layer)
    layout = made.layout(tmp_path / "in", [blob], [f"{oci.LAYER}+gzip"], rootfs={"diff_ids": [oci.digest_of(layer)]})
    with pytest.raises(UserError) as caught:
        canon.canonicalise(layout, tmp_path / "out", epoch=EPOCH)
    assert message in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


@pytest.mark.parametrize(
    ("archive", "message"),
    [
        (b"", "empty or not a tar"),
        (made.docker_archive([made.layer([Entry("a", data=bytes(5000))])])[:4000], "truncated"),
        (made.docker_archive([], rootfs={"diff_ids": ["sha256:0"]}), "0 layers, but the config names 1"),
        (made.docker_archive([b"x"], rootfs={"diff_ids": ["sha256:0"]}), "layer 0: the layer is sha256:"),
        (made.layer([Entry("manifest.json", data=b"[]")]), "holds 0 images"),
        (made.layer([Entry("manifest.json", data=b"[{]")]), "broken JSON"),
        (made.layer([Entry("manifest.json", data=b'[{"Config": "../../etc/passwd"}]')]), "../../etc/passwd: missing"),
        (made.docker_archive([], architecture=""), "the image is for linux/?, linux/amd64 is needed"),
        (made.docker_archive([], architecture="arm64"), "the image is for linux/arm64, linux/amd64 is needed"),
    ],
)
def test_a_bad_archive_is_refused_and_nothing_is_left(archive: bytes, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        canon.canonicalise(io.BytesIO(archive), tmp_path / "out", epoch=EPOCH)
    assert message in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_seen_before_it_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool, "RESERVE_BYTES", 1 << 60)
    with pytest.raises(UserError, match="disk too small"):
        run([made.layer([Entry("a")])], tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_an_older_result_is_replaced_whole_and_survives_a_failure(tmp_path: Path) -> None:
    old = run([made.layer([Entry("a", data=b"1")])], tmp_path)
    with pytest.raises(UserError):
        run([made.layer([Entry("/a", data=b"2")])], tmp_path)
    assert oci.verify(tmp_path / "out").manifest_digest == old.manifest_digest
    new = run([made.layer([Entry("a", data=b"2")])], tmp_path)
    assert oci.verify(tmp_path / "out").manifest_digest == new.manifest_digest != old.manifest_digest


def test_gzip_and_zstd_have_the_same_image_id(tmp_path: Path) -> None:
    layers = [made.layer([Entry("a", data=b"x" * 5000)])]
    one, other = run(layers, tmp_path, "zstd"), run(layers, tmp_path, "gzip", compression="gzip")
    assert one.config_digest == other.config_digest
    assert one.manifest_digest != other.manifest_digest
    assert canon.canonicalise(other.path, tmp_path / "back", epoch=EPOCH).manifest_digest == one.manifest_digest


def test_the_config_keeps_what_a_runtime_reads_and_takes_the_overrides(tmp_path: Path) -> None:
    runtime = {"User": "", "WorkingDir": "/", "Labels": {"b": "2"}, "Hostname": "h", "Entrypoint": ["/x"]}
    archive = made.docker_archive([], config=runtime)
    changes = ConfigOverrides(labels={"a": "1"}, cmd=("serve",))
    found = canon.canonicalise(io.BytesIO(archive), tmp_path / "out", epoch=0, config=changes)
    assert oci.blob_path(found.path, found.config_digest).read_text() == (
        '{"architecture":"amd64","config":{"Cmd":["serve"],"Entrypoint":["/x"],"Labels":{"a":"1","b":"2"}},'
        '"created":"1970-01-01T00:00:00Z","history":[],"os":"linux","rootfs":{"diff_ids":[],"type":"layers"}}'
    )


def test_the_order_in_which_an_engine_lists_variables_is_left_out() -> None:
    base = {"architecture": "amd64", "os": "linux"}
    docker, buildah = ({"Env": names} for names in (["PATH=/b", "LANG=C"], ["PATH=/a", "LANG=C", "PATH=/b"]))
    made = [imageconfig.canonical({**base, "config": one}, ConfigOverrides(), 0, []) for one in (docker, buildah)]
    assert made[0] == made[1]
    assert json.loads(made[0])["config"]["Env"] == ["LANG=C", "PATH=/b"]


def test_layers_of_an_earlier_run_are_linked_from_the_cache_and_a_damaged_one_is_made_again(tmp_path: Path) -> None:
    layers = [made.layer([Entry("a", data=b"1")]), made.layer([Entry("b", data=b"2")])]
    cache = tmp_path / "cache"
    first = run(layers, tmp_path, cache=cache)
    second = run([*layers, made.layer([Entry("c", data=b"3")])], tmp_path, "more", cache=cache)
    assert second.layers[:2] == first.layers
    assert oci.blob_path(second.path, first.layers[0].digest).samefile(cache / "blobs" / first.layers[0].digest[7:])
    damaged = cache / "blobs" / first.layers[1].digest[7:]
    damaged.unlink()
    damaged.write_bytes(b"zeros")
    assert oci.verify(run(layers, tmp_path, "again", cache=cache).path).manifest_digest == first.manifest_digest


def test_the_progress_grows_to_the_bytes_read_and_written(tmp_path: Path) -> None:
    seen: list[int] = []
    found = run([made.layer([Entry("a", data=bytes(3_000_000))])], tmp_path, on_progress=seen.append)
    assert seen == sorted(seen)
    assert seen[-1] >= 6_000_000 > found.layers[0].size_bytes
