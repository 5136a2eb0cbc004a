"""Manifest and config of two images: which keys of the JSON differ."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kiln import oci
from kiln.oci import Layout

# What a comparison of layers tells, and would say the same again as a key of the JSON.
_TOLD = ("rootfs.diff_ids", "layers", "config.digest", "config.size", "history")


def differing_keys(a: Layout, b: Layout) -> dict[str, tuple[str, str]]:
    """Return the dotted keys with other values, as JSON of each or empty; what layers tell is left out."""
    found: dict[str, tuple[str, str]] = {}
    for label, one, other in (
        ("manifest", a.manifest_digest, b.manifest_digest), ("config", a.config_digest, b.config_digest),
    ):  # fmt: skip
        values = [dict(_flat(_document(path, digest))) for path, digest in ((a.path, one), (b.path, other))]
        for key in sorted(values[0].keys() | values[1].keys()):
            pair = (values[0].get(key, ""), values[1].get(key, ""))
            if pair[0] != pair[1] and not key.startswith(_TOLD):
                found[f"{label}: {key}"] = pair
    return found


def _document(path: Path, digest: str) -> dict[str, Any]:
    return oci.read_json(lambda name: path / name, {"digest": digest})


def _flat(value: object, key: str = "") -> Iterator[tuple[str, str]]:
    """Yield dotted keys and their values, as JSON."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _flat(inner, f"{key}.{name}" if key else str(name))
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from _flat(inner, f"{key}[{number}]")
    else:
        yield key, oci.canonical_json(value).decode()
