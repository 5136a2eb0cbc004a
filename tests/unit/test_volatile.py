"""Volatile paths: what is dropped is documented, and nothing else is dropped."""

from __future__ import annotations

import re

import pytest

from kiln.settings import ROOT
from kiln.volatile import HOST_XATTRS, KEPT, VOLATILE, is_host_xattr, is_volatile

pytestmark = pytest.mark.unit
ROW = re.compile(r"^\| `(?P<name>[^`]+)` \| (?P<why>.+) \|$", re.MULTILINE)


def test_the_documented_lists_are_those_of_the_code() -> None:
    page = (ROOT / "docs" / "canonical-images.md").read_text(encoding="utf-8")
    assert [(row["name"], row["why"]) for row in ROW.finditer(page)] == [*VOLATILE, *KEPT, *HOST_XATTRS]


@pytest.mark.parametrize("glob", [glob for glob, _ in VOLATILE])
def test_each_glob_drops_what_it_names_and_what_is_below(glob: str) -> None:
    path = glob.replace("*", "x")
    assert is_volatile(path.encode())
    assert is_volatile(f"{path}/y".encode()) == glob.endswith("*")
    assert not is_volatile(f"opt/{path}".encode())


@pytest.mark.parametrize("path", [
    "tmp", "run", "dev", "proc", "var/tmp", "run/lock", "etc/passwd", "var/log/apt", "etc/hostname.d/x",
    "root/.profile", "opt/dev/x", "var/cache/apt/archives/x.deb",
])  # fmt: skip
def test_what_the_lists_do_not_name_stays(path: str) -> None:
    assert not is_volatile(path.encode())


def test_attributes_of_the_builder_are_told_from_those_of_a_file() -> None:
    assert is_host_xattr(b"security.selinux")
    assert is_host_xattr(b"trusted.overlay.opaque")
    assert not is_host_xattr(b"security.capability")
    assert not is_host_xattr(b"user.mime_type")
