"""Image configs, cut to what a runtime reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from kiln.errors import UserError
from kiln.oci import HISTORY, canonical_json

RUNTIME_KEYS = (
    "Cmd", "Entrypoint", "Env", "ExposedPorts", "Healthcheck", "Labels", "StopSignal", "User", "Volumes", "WorkingDir",
)  # fmt: skip


@dataclass(frozen=True)
class ConfigOverrides:
    """Replacements for what the engine wrote; `labels` are added to the image's, an empty `healthcheck` is none.

    Docker takes a HEALTHCHECK from the Dockerfile and from an image below; buildah's OCI images have none.
    """

    labels: Mapping[str, str] = field(default_factory=dict)
    env: tuple[str, ...] | None = None
    entrypoint: tuple[str, ...] | None = None
    cmd: tuple[str, ...] | None = None
    user: str | None = None
    working_dir: str | None = None
    healthcheck: Mapping[str, object] | None = None


def canonical(raw: Mapping[str, Any], changes: ConfigOverrides, epoch: int, diff_ids: Sequence[str]) -> bytes:
    """Return the canonical config: one made-up history entry per layer, times = epoch, empty fields left out."""
    created = datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    for key in ("architecture", "os"):
        if not isinstance(raw.get(key), str) or not raw[key]:
            raise UserError(f"the image config has no {key}")
    value: dict[str, object] = {
        "architecture": raw["architecture"],
        "config": _runtime(raw.get("config") or {}, changes),
        "created": created,
        "history": [{"created": created, "created_by": HISTORY} for _ in diff_ids],
        "os": raw["os"],
        "rootfs": {"diff_ids": list(diff_ids), "type": "layers"},
    }
    return canonical_json(value | ({"variant": raw["variant"]} if raw.get("variant") else {}))


def created_by(raw: Mapping[str, Any], count: int) -> tuple[str, ...]:
    """Return the step that made each of `count` layers, in the engine's words; empty where it doesn't say."""
    steps = [str(entry.get("created_by", "")) for entry in raw.get("history") or [] if not entry.get("empty_layer")]
    return tuple(steps) if len(steps) == count else ("",) * count


def _runtime(raw: Mapping[str, Any], changes: ConfigOverrides) -> dict[str, object]:
    given = {
        "Cmd": changes.cmd, "Entrypoint": changes.entrypoint, "Env": changes.env,
        "Healthcheck": changes.healthcheck, "User": changes.user, "WorkingDir": changes.working_dir,
    }  # fmt: skip
    kept = {key: raw.get(key) for key in RUNTIME_KEYS}
    kept |= {key: value for key, value in given.items() if value is not None}
    kept["Labels"] = {**(raw.get("Labels") or {}), **changes.labels}
    # A variable that is set again keeps its place in one engine and moves to the end in another.
    kept["Env"] = sorted({entry.partition("=")[0]: entry for entry in kept["Env"] or ()}.values())
    if kept["WorkingDir"] == "/":
        del kept["WorkingDir"]  # what an empty one means; engines write either
    return {key: value for key, value in kept.items() if value}
