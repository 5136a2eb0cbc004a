"""From the engine's image to the canonical OCI layout of a plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from kiln import canon, recompress
from kiln.engines import Engine
from kiln.plan import Plan
from kiln.result import Layer, Result
from kiln.settings import Settings


def write(settings: Settings, plan: Plan, engine: Engine, say: Callable[[str], None]) -> Result:
    """Stream the last image out of the engine and write `images/<plan12>`; known layers are not compressed again."""
    target = path(settings, plan)
    with engine.save(plan.chain[-1].ref) as stream:
        written = canon.canonicalise(
            stream,
            target,
            epoch=plan.epoch,
            origins=_origins(plan, engine),
            config=canon.ConfigOverrides(labels=plan.labels(), healthcheck=plan.healthcheck()),
            cache=settings.home / "layers",
            on_progress=lambda done: say(f"{done / 1e9:.1f} GB"),
        )
    layers = tuple(
        Layer(layer.digest, layer.size_bytes, layer.raw_bytes, layer.files, layer.created_by)
        for layer in written.layers
    )
    return Result(plan.id, plan.tag, written.manifest_digest, plan.repository, str(target), layers)


def write_gzip(settings: Settings, built: Result, say: Callable[[str], None] | None = None) -> Result:
    """Write the gzip variant beside the layout, unless it lies there: the same image id, for engines without zstd."""
    if built.gzip and (Path(built.gzip_layout) / "index.json").exists():
        return built
    written = recompress.recompress(
        Path(built.layout),
        Path(built.gzip_layout),
        "gzip",
        cache=settings.home / "layers",
        on_progress=(lambda done: say(f"gzip: {done / 1e9:.1f} GB")) if say else None,
    )
    return replace(built, gzip=written.manifest_digest)


def path(settings: Settings, plan: Plan) -> Path:
    """Where the plan's layout lies."""
    return settings.home / "images" / plan.id[:12]


def _origins(plan: Plan, engine: Engine) -> list[canon.Origin]:
    """Give each layer of the last image to the image of the chain that added it."""
    found: list[canon.Origin] = []
    for image in plan.chain:
        added = engine.layer_count(image.ref) - len(found)
        found += [canon.Origin(image.name, image.epoch)] * added
    return found
