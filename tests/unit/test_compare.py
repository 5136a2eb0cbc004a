"""Two layouts side by side: every way in which they can differ is told with its path, and nothing else is."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from pathlib import Path

import pytest

from kiln import canon, compare, diffoscope, oci
from kiln.canon import ConfigOverrides, Origin
from kiln.compression import Compression
from kiln.errors import UserError
from kiln.settings import Settings, from_env
from tests import madeimages as made
from tests.madeimages import EPOCH, Entry

pytestmark = pytest.mark.unit
BASE = [Entry("etc", "dir", mode=0o755), Entry("etc/passwd", data=b"root\n"), Entry("bin", "symlink", link="usr/bin")]
FILE = Entry("opt/lib.so", data=b"\x7fELF" + bytes(5000), mode=0o755, xattrs=(("user.a", "1"),))
TOP = [
    Entry("opt", "dir", mode=0o755),
    FILE,
    Entry("opt/link", "symlink", link="lib.so"),
    Entry("opt/other", data=b"2"),
]


def canonical(
    path: Path, *layers: list[Entry], epoch: int = EPOCH, compression: Compression = "zstd", label: str = "1"
) -> Path:
    raw = made.layout(path.with_name(f"{path.name}-raw"), [made.layer(entries) for entries in layers])
    origins = [Origin("", epoch + number) for number in range(len(layers))]
    config = ConfigOverrides(labels={"kiln.test": label})
    canon.canonicalise(raw, path, epoch=epoch, compression=compression, origins=origins, config=config)
    return path


@pytest.fixture
def first(tmp_path: Path) -> Path:
    return canonical(tmp_path / "a", BASE, TOP)


def test_equal_layouts_are_identical_to_the_last_byte(first: Path, tmp_path: Path) -> None:
    found = compare.compare(first, canonical(tmp_path / "b", BASE, TOP))
    assert found.level == "identical"
    assert (found.files_percent, found.bytes_percent, found.keys) == (100, 100, {})
    assert all(layer.same for layer in found.layers)


def test_another_compression_is_told_from_another_image(first: Path, tmp_path: Path) -> None:
    found = compare.compare(first, canonical(tmp_path / "b", BASE, TOP, compression="gzip"))
    assert found.level == "recompressed"
    assert found.configs[0] == found.configs[1]
    assert found.manifests[0] != found.manifests[1]
    assert found.files_percent == 100


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        (replace(FILE, data=b"\x7fELF" + bytes(4999) + b"\1"), ("content",)),
        (replace(FILE, data=b"\x7fELF" + bytes(5001)), ("size",)),
        (replace(FILE, mode=0o4755), ("mode",)),
        (replace(FILE, uid=1), ("owner",)),
        (replace(FILE, uid=1, gid=1, mode=0o700), ("mode", "owner")),
        (replace(FILE, xattrs=()), ("xattrs",)),
        (
            replace(FILE, kind="symlink", data=b"", xattrs=(), link="x", mode=0o755),
            ("type", "mode", "size", "xattrs", "link"),
        ),
        (replace(FILE, kind="hardlink", data=b"", xattrs=(), link="etc/passwd", mode=0o755), None),
    ],
)
@pytest.mark.parametrize("compression", ["zstd", "gzip"])
def test_what_differs_in_a_path_is_named(
    tmp_path: Path, changed: Entry, what: tuple[str, ...] | None, compression: Compression
) -> None:
    one = canonical(tmp_path / "a", BASE, TOP, compression=compression)
    other = canonical(tmp_path / "b", BASE, [changed if entry is FILE else entry for entry in TOP])
    found = compare.compare(one, other)
    assert found.level == "different"
    assert [layer.same for layer in found.layers] == [True, False]
    (about,) = [each for each in found.layers[1].differences if each.path == FILE.path]
    assert what is None or about.what == what
    assert found.files_percent < 100
    assert found.keys == {}


def test_paths_on_one_side_only_are_told_with_their_side(first: Path, tmp_path: Path) -> None:
    other = canonical(
        tmp_path / "b", BASE, [entry for entry in TOP if entry is not FILE] + [Entry("opt/zz", data=b"z")]
    )
    (layer,) = [layer for layer in compare.compare(first, other).layers if not layer.same]
    assert [(each.path, each.what) for each in layer.differences] == [
        ("opt/lib.so", ("only in A",)), ("opt/zz", ("only in B",)),
    ]  # fmt: skip
    assert (layer.files, layer.same_files, layer.kinds) == (4, 2, {"only in A": 1, "only in B": 1})
    assert (layer.bytes, layer.same_bytes) == (5004 + 1 + 1, 1)


def test_another_time_is_one_difference_a_path_and_leaves_the_bytes_identical(first: Path, tmp_path: Path) -> None:
    found = compare.compare(first, canonical(tmp_path / "b", BASE, TOP, epoch=EPOCH + 60))
    assert {each.what for layer in found.layers for each in layer.differences} == {("mtime",)}
    assert (found.files_percent, found.bytes_percent) == (0, 100)
    assert set(found.keys) == {"config: created"}


def test_a_label_is_a_key_of_the_config_and_no_difference_of_layers(first: Path, tmp_path: Path) -> None:
    found = compare.compare(first, canonical(tmp_path / "b", BASE, TOP, label="2"))
    assert found.level == "different"
    assert found.keys == {"config: config.Labels.kiln.test": ('"1"', '"2"')}
    assert all(layer.same for layer in found.layers)


def test_layers_are_paired_by_their_content_when_one_is_missing(first: Path, tmp_path: Path) -> None:
    extra = [Entry("extra", data=b"1")]
    other = canonical(tmp_path / "b", BASE, TOP)
    longer = canonical(tmp_path / "c", BASE, TOP, extra)
    found = compare.compare(other, longer)
    assert [layer.same for layer in found.layers] == [True, True, False]
    assert (found.layers[2].a, found.layers[2].kinds) == ("", {"only in B": 1})


def test_a_layout_that_is_not_canonical_is_refused_with_the_entry(first: Path, tmp_path: Path) -> None:
    raw = made.layout(tmp_path / "raw", [made.layer([Entry("b"), Entry("a")])])
    with pytest.raises(UserError, match="a: not in canonical order"):
        compare.compare(first, raw)


def test_only_the_first_differences_are_kept_and_all_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compare, "LISTED", 3)
    many = [Entry(f"f{number:04}", data=b"1") for number in range(50)]
    one, other = (
        canonical(tmp_path / "a", many),
        canonical(tmp_path / "b", [replace(each, mode=0o600) for each in many]),
    )
    (layer,) = compare.compare(one, other).layers
    assert (layer.count, len(layer.differences), layer.kinds) == (50, 3, {"mode": 50})


def test_memory_stays_bounded_whatever_the_size_of_a_file(tmp_path: Path) -> None:
    big = Entry("big", data=bytes(24 << 20))
    one, other = canonical(tmp_path / "a", [big]), canonical(tmp_path / "b", [replace(big, mode=0o600)])
    tracemalloc.start()
    try:
        found = compare.compare(one, other)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()
    assert found.bytes_percent == 100


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return from_env({"KILN_HOME": str(tmp_path / "home"), "KILN_NO_INSTALL": "1"})


def test_without_diffoscope_the_report_says_how_to_get_it(
    first: Path, tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kiln.host.which", lambda program: None if program == "diffoscope" else Path("/usr/bin/env"))
    other = canonical(
        tmp_path / "b", BASE, [replace(entry, data=b"3") if entry.data == b"2" else entry for entry in TOP]
    )
    (about,) = diffoscope.explain(settings, first, other, compare.compare(first, other))
    assert about.path == "opt/other"
    assert "diffoscope did not run: this host lacks diffoscope-minimal" in about.text


def test_the_differing_files_are_handed_to_diffoscope_one_by_one(
    first: Path, tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "bin" / "diffoscope"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\nfor file; do :; done\necho "$(basename "$file"): $(cat "$file")"; exit 1\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    changed = [Entry("opt", "dir", mode=0o755), Entry("opt/other", data=b"3"), Entry("etc/passwd", data=b"toor\n")]
    one = canonical(tmp_path / "x", BASE, [Entry("opt", "dir", mode=0o755), Entry("opt/other", data=b"2")])
    other = canonical(tmp_path / "b", BASE, changed)
    found = diffoscope.explain(settings, one, other, compare.compare(one, other))
    assert [(each.path, each.text) for each in found] == [("opt/other", "other: 3")]
    assert list(settings.home.iterdir()) == []


def test_a_comparison_is_plain_data(first: Path, tmp_path: Path) -> None:
    data = compare.compare(first, canonical(tmp_path / "b", BASE)).as_dict()
    assert oci.canonical_json(data)
    assert data["level"] == "different"
