"""What lies in the layers themselves: an engine mounts over some paths, so a container would not show all of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kiln import oci
from kiln.compression import open_layer
from kiln.tarread import DIRECTORY, REGULAR, Source, members
from kiln.volatile import is_volatile

_HEAD = 16
# Debian's packages bring state and empty logs of their own; all of it is the same in every build.
_LOGS_OF_DEBIAN = ("var/log/apt", "var/log/btmp", "var/log/faillog", "var/log/lastlog", "var/log/wtmp")
_PYTHON_TREES = ("opt/kiln/lib/python", "usr/lib/python3", "usr/share/")


@dataclass(frozen=True)
class File:
    """An entry of a layer: `head` has its first bytes."""

    layer: int
    path: str
    mtime: int | None
    is_directory: bool
    size: int
    head: bytes

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]


@pytest.fixture(scope="module")
def files(request: pytest.FixtureRequest, plan: dict[str, Any]) -> list[File]:
    """All entries of all layers of the layout that was loaded."""
    made = json.loads((Path(request.config.getoption("--kiln-plan")).parent / "result.json").read_text())
    assert made["plan"] == plan["id"]
    layout = oci.read(Path(made["layout"]))
    return [file for number, layer in enumerate(layout.layers) for file in entries(layout, layer, number)]


def entries(layout: oci.Layout, layer: oci.LayerInfo, number: int) -> Iterator[File]:
    with open_layer(oci.blob_path(layout.path, layer.digest)) as raw:
        source = Source(raw, layer.digest, forward=True)
        for member in members(source):
            head = source.read(min(_HEAD, member.stored)) if member.kind == REGULAR else b""
            path = member.name.decode("utf-8", "backslashreplace").rstrip("/")
            yield File(number, path, member.mtime, member.kind == DIRECTORY, member.size, head)


def paths(files: list[File], wanted: Callable[[File], bool]) -> list[str]:
    return [file.path for file in files if not file.is_directory and wanted(file)]


def test_no_volatile_path_is_in_any_layer(files: list[File]) -> None:
    assert [file.path for file in files if is_volatile(file.path.encode())] == []


def test_every_layer_has_one_time_and_none_is_newer_than_the_plan_s_epoch(
    files: list[File], plan: dict[str, Any]
) -> None:
    times: dict[int, set[int | None]] = {}
    for file in files:
        times.setdefault(file.layer, set()).add(file.mtime)
    assert {len(found) for found in times.values()} == {1}
    assert max(time or 0 for found in times.values() for time in found) == plan["epoch"]


def test_packages_were_installed_by_name(files: list[File]) -> None:
    assert paths(files, lambda file: file.name in {"direct_url.json", "uv_cache.json"}) == []


def test_all_bytecode_is_checked_by_hash_and_lies_where_python_looks(files: list[File]) -> None:
    compiled = [file for file in files if file.name.endswith(".pyc")]
    assert compiled
    assert [file.path for file in compiled if not file.head[4] & 1] == []
    assert [file.path for file in compiled if not file.path.startswith(_PYTHON_TREES)] == []


def test_builds_left_no_logs_and_no_state_of_ninja_or_compilers(files: list[File]) -> None:
    left = {".ninja_log", ".ninja_deps", "ccache.conf", "CMakeCache.txt"}
    assert paths(files, lambda file: file.name in left or file.name.endswith((".log", ".gcda"))) == []
    logs = paths(files, lambda file: file.path.startswith("var/log/"))
    assert [path for path in logs if path not in _LOGS_OF_DEBIAN] == []


def test_package_managers_left_no_caches(files: list[File]) -> None:
    roots = ("var/cache/apt/archives/", "var/lib/apt/lists/", "root/.", "cache/")
    allowed = {"root/.bashrc", "root/.profile"}
    left = paths(files, lambda file: file.size > 0 and file.path.startswith(roots))
    assert [path for path in left if path not in allowed] == []
