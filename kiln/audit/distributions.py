"""Installed distributions, as their metadata in the target tells."""

from __future__ import annotations

import base64
import contextlib
import csv
import posixpath
import re
from collections.abc import Iterator
from dataclasses import dataclass
from email.parser import HeaderParser

from packaging.utils import canonicalize_name

from kiln.audit.records import Target

# Directly below site-packages, or at the top of a wheel: what setuptools vendors is not installed.
_METADATA = re.compile(r"(?P<root>(?:.*/)?(?:site|dist)-packages/|)(?P<info>[^/]+\.dist-info)/METADATA")
_PYTHON = re.compile(r"python(\d+\.\d+)/site-packages")
_FULL_VERSION = re.compile(r"^version(?:_info)?\s*=\s*(\d+\.\d+\.\d+)", re.MULTILINE)
_DEFAULT_PYTHON = "3.11"


@dataclass(frozen=True)
class Distribution:
    """One distribution. `files`: path in the target → sha256 in hex, of those that RECORD has a hash of.

    Without bytecode, which the installation compiles anew.
    """

    name: str
    version: str
    requires: tuple[str, ...]
    files: dict[str, str]

    @property
    def local(self) -> str:
        """The part of the version behind the plus."""
        return self.version.partition("+")[2]


def find(target: Target) -> tuple[Distribution, ...]:
    """Return all distributions, sorted by name."""
    found = [
        _read(target, match["root"], match["info"]) for path in target.records if (match := _METADATA.fullmatch(path))
    ]
    return tuple(sorted(found, key=lambda one: (one.name, one.version)))


def environment(target: Target) -> dict[str, str]:
    """Return the marker environment of the target's Python on Linux x86-64."""
    short = next((match[1] for path in target.records if (match := _PYTHON.search(path))), _DEFAULT_PYTHON)
    full = next((match[1] for one in target.matching("*pyvenv.cfg") if (match := _FULL_VERSION.search(one.text))), "")
    return {
        "implementation_name": "cpython", "implementation_version": full or f"{short}.0", "os_name": "posix",
        "platform_machine": "x86_64", "platform_python_implementation": "CPython", "platform_release": "",
        "platform_system": "Linux", "platform_version": "", "python_full_version": full or f"{short}.0",
        "python_version": short, "sys_platform": "linux",
    }  # fmt: skip


def _read(target: Target, root: str, info: str) -> Distribution:
    fields = HeaderParser().parsestr(target.records[f"{root}{info}/METADATA"].text)
    record = target.records.get(f"{root}{info}/RECORD")
    files = dict(_files(root, record.text)) if record else {}
    requires = tuple(str(one) for one in fields.get_all("Requires-Dist") or ())
    return Distribution(canonicalize_name(str(fields["Name"])), str(fields["Version"]), requires, files)


def _files(root: str, text: str) -> Iterator[tuple[str, str]]:
    for row in csv.reader(text.splitlines()):
        if len(row) == 3 and row[1].startswith("sha256=") and not row[0].endswith(".pyc"):
            digest = row[1].removeprefix("sha256=")
            with contextlib.suppress(ValueError):  # no base64: as good as no hash
                raw = base64.urlsafe_b64decode(digest + "=" * (-len(digest) % 4))
                yield posixpath.normpath(root + row[0]), raw.hex()
