"""What `inv build` and `inv push` need around the build itself: host, engine, registry, plan."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from kiln import attest, engines, estimate, host, inventory, layout, result, services
from kiln import build as builds
from kiln.build import Build, Options
from kiln.cli import announce
from kiln.compression import Compression
from kiln.engines import Engine
from kiln.errors import UserError
from kiln.patches import DEFAULT, Choice
from kiln.plan import Plan
from kiln.registry import Registry
from kiln.result import Result
from kiln.settings import Settings
from kiln.store import Store
from kiln.view import View

PROGRAMS = ("skopeo", "mmdebstrap", "git")


def build(settings: Settings, *, gpu: str, stack: str, kernel_set: str, image: str, options: Options,
          quiet: bool, engine_name: str = "auto", choice: Choice = DEFAULT) -> Result:  # fmt: skip
    """Plan, bring engine and registry up, build, test and push. A finished plan costs one question to the registry."""
    plan = inventory.plan_for(settings, gpu=gpu, stack=stack, kernel_set=kernel_set, image=image, choice=choice)
    builds.write_plan(settings, plan)
    if options.push:
        attest.load_signer(settings)  # a wrong password is told now, not after the build
    registry = _registry(settings) if options.push else None
    found = finished(settings, plan, registry, options)
    if found:
        if registry and settings.signing_key:
            attest.publish(settings, registry, plan, found, found.digest)
        return found
    engine = engine_up(settings, engine_name)
    estimate.require_disk(settings, plan, engine, Store(settings.store))
    with View(builds.stages(plan), quiet=quiet) as view:
        return Build(settings, plan, engine, registry, options, view).run()


def finished(settings: Settings, plan: Plan, registry: Registry | None, options: Options) -> Result | None:
    """Return the plan's result if nothing is left to do: built, tested, and still in the registry."""
    found = result.load(settings, plan.id)
    if found is None or options.no_cache or (options.test and not found.tests):
        return None
    if options.compression == "gzip" and not _has_gzip(found, registry):
        return None
    if registry and not (found.pushed and registry.exists(found.repository, found.digest)):
        return None
    return replace(found, stages=tuple(replace(cost, state="cached") for cost in found.stages))


def _has_gzip(found: Result, registry: Registry | None) -> bool:
    there = bool(found.gzip) and (Path(found.gzip_layout) / "index.json").exists()
    return there and (registry is None or registry.exists(found.repository, found.gzip))


def push(settings: Settings, *, gpu: str, stack: str, kernel_set: str, image: str,
         compression: Compression = "zstd", choice: Choice = DEFAULT) -> tuple[str, ...]:  # fmt: skip
    """Push a plan's layout, with gzip also that variant; returns `registry/repository@digest` of each.

    Raises UserError if it is not built.
    """
    plan = inventory.plan_for(settings, gpu=gpu, stack=stack, kernel_set=kernel_set, image=image, choice=choice)
    found = result.load(settings, plan.id)
    if found is None:
        command = f"inv build --gpu {plan.gpu.name} --stack {plan.stack.name} --kernels {plan.kernels}"
        raise UserError(f"plan {plan.id[:12]} is not built", hint=command)
    attest.load_signer(settings)
    registry = _registry(settings)
    registry.push(Path(found.layout), found.repository, found.tag)
    attest.publish(settings, registry, plan, found, found.digest)
    name = f"{registry.address}/{found.repository}"
    found = replace(found, pushed=f"{name}@{found.digest}")
    result.save(settings, found)
    if compression != "gzip":
        return (found.pushed,)
    announce("making the gzip variant, unless it lies there")
    found = layout.write_gzip(settings, found)
    result.save(settings, found)
    digest = registry.push(Path(found.gzip_layout), found.repository, found.gzip_tag)
    attest.publish(settings, registry, plan, found, digest)
    return found.pushed, f"{name}@{digest}"


def services_up(settings: Settings) -> None:
    """Bring engine and registry up for tests, and lead clients of this process and its children to them."""
    os.environ.update(engine_up(settings).variables)
    _registry(settings)


def engine_up(settings: Settings, name: str = "auto") -> Engine:
    """Install what the host lacks and bring an engine up."""
    host.ensure(settings, PROGRAMS, announce)
    return engines.up(settings, announce, name)


def _registry(settings: Settings) -> Registry:
    host.ensure(settings, ("skopeo",) if settings.registry else ("skopeo", "docker-registry"), announce)
    return Registry(services.registry_up(settings, announce).address, announce)
