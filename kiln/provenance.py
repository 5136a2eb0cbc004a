"""Where an image comes from: SLSA provenance v1. It stands outside the image, since builder and time differ."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kiln import locks, run, statement
from kiln.plan import RECIPE, Plan
from kiln.result import Layer, Result
from kiln.settings import Settings

BUILD_TYPE = "urn:kiln:build:v1"
BUILDER = "urn:kiln:builder:v1"


@dataclass(frozen=True)
class Circumstances:
    """What no plan holds: the engine in words ("" if not known), the times, and the checkout with its state."""

    engine: str
    started: datetime | None
    finished: datetime
    commit: str
    dirty: bool


def observe(root: Path, engine: str, started: datetime | None, finished: datetime) -> Circumstances:
    """Ask git about the checkout; one that is no repository has the commit ""."""
    head = run.run(["git", "-C", root, "rev-parse", "--verify", "HEAD"], check=False)
    status = run.run(["git", "-C", root, "status", "--porcelain"], check=False)
    commit = head.stdout.strip() if head.returncode == 0 else ""
    return Circumstances(engine, started, finished, commit, bool(status.stdout.strip()))


def make(settings: Settings, plan: Plan, built: Result, seen: Circumstances) -> bytes:
    """Return the statement that this image was made by this builder from these inputs."""
    return statement.make(
        built.repository,
        built.digest,
        statement.PROVENANCE,
        {"buildDefinition": _definition(settings.root, plan, seen), "runDetails": _details(built, seen)},
    )


def _definition(root: Path, plan: Plan, seen: Circumstances) -> dict[str, Any]:
    return {
        "buildType": BUILD_TYPE,
        "externalParameters": {
            "gpu": plan.gpu.name, "stack": plan.stack.name, "kernels": plan.kernels, "image": plan.image,
            **{label.removeprefix("kiln."): names for label, names in plan.choice.labels().items()},
        },
        "internalParameters": {"plan": plan.id, "epoch": plan.epoch, "local_version": plan.local_version},
        "resolvedDependencies": [*_checkout(seen), *_files(root, plan), *_patches(plan)],
    }  # fmt: skip


def _checkout(seen: Circumstances) -> Iterator[dict[str, Any]]:
    """The commit, and whether the tree held changes that it does not."""
    if seen.commit:
        yield {"name": "kiln", "digest": {"gitCommit": seen.commit}, "annotations": {"dirty": seen.dirty}}


def _files(root: Path, plan: Plan) -> Iterator[dict[str, Any]]:
    names = [locks.path_of(plan.stack.name, part) for part in locks.PARTS]
    for name in ("versions.yaml", *names, locks.path_of("", "tools")):
        yield {"name": name, "digest": {"sha256": hashlib.sha256((root / name).read_bytes()).hexdigest()}}
    for image in plan.chain:
        name = f"images/{image.name}/Dockerfile"
        yield {"name": name, "digest": {"sha256": hashlib.sha256(image.dockerfile.encode()).hexdigest()}}


def _patches(plan: Plan) -> Iterator[dict[str, Any]]:
    for patch in plan.patches:
        yield {"name": f"patches/{patch.label}.patch", "digest": {"sha256": patch.sha256}}


def _details(built: Result, seen: Circumstances) -> dict[str, Any]:
    times = {"startedOn": seen.started, "finishedOn": seen.finished}
    versions = {"recipe": RECIPE, **({"engine": seen.engine} if seen.engine else {})}
    return {
        "builder": {"id": BUILDER, "version": versions},
        "metadata": {
            "invocationId": f"urn:kiln:plan:{built.plan}",
            **{key: _rfc3339(time) for key, time in times.items() if time},
        },
        "byproducts": [_layer(number, layer) for number, layer in enumerate(built.layers)],
    }


def _layer(number: int, layer: Layer) -> dict[str, Any]:
    return {
        "name": f"layer {number}",
        "digest": {"sha256": layer.digest.removeprefix("sha256:")},
        "annotations": {
            "image": layer.image, "files": layer.files, "size_bytes": layer.size_bytes, "raw_bytes": layer.raw_bytes,
        },
    }  # fmt: skip


def _rfc3339(time: datetime) -> str:
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
