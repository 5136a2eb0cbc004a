"""What `inv build` and `inv push` need around the build itself: host, engine, registry, plan."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from kiln import build as builds
from kiln import engines, estimate, host, inventory, result, services
from kiln.build import Build, Options
from kiln.cli import announce
from kiln.engines import Engine
from kiln.errors import UserError
from kiln.plan import Plan
from kiln.registry import Registry
from kiln.result import Result
from kiln.settings import Settings
from kiln.store import Store
from kiln.view import View

PROGRAMS = ("skopeo", "mmdebstrap", "git")


def build(settings: Settings, *, gpu: str, stack: str, kernel_set: str, image: str, options: Options,
          quiet: bool) -> Result:  # fmt: skip
    """Plan, bring engine and registry up, build, test and push. A finished plan costs one question to the registry."""
    plan = inventory.plan_for(settings, gpu=gpu, stack=stack, kernel_set=kernel_set, image=image)
    builds.write_plan(settings, plan)
    registry = _registry(settings) if options.push else None
    found = finished(settings, plan, registry, options)
    if found:
        return found
    engine = engine_up(settings)
    estimate.require_disk(settings, plan, engine, Store(settings.store))
    with View(builds.stages(plan), quiet=quiet) as view:
        return Build(settings, plan, engine, registry, options, view).run()


def finished(settings: Settings, plan: Plan, registry: Registry | None, options: Options) -> Result | None:
    """Return the plan's result if nothing is left to do: built, tested, and still in the registry."""
    found = result.load(settings, plan.id)
    if found is None or options.no_cache or (options.test and not found.tests):
        return None
    if registry and not (found.pushed and registry.exists(found.repository, found.digest)):
        return None
    return replace(found, stages=tuple(replace(cost, state="cached") for cost in found.stages))


def push(settings: Settings, *, gpu: str, stack: str, kernel_set: str, image: str) -> str:
    """Push a plan's layout; returns `registry/repository@digest`. Raises UserError if it is not built."""
    plan = inventory.plan_for(settings, gpu=gpu, stack=stack, kernel_set=kernel_set, image=image)
    found = result.load(settings, plan.id)
    if found is None:
        command = f"inv build --gpu {plan.gpu.name} --stack {plan.stack.name} --kernels {plan.kernels}"
        raise UserError(f"plan {plan.id[:12]} is not built", hint=command)
    registry = _registry(settings)
    registry.push(Path(found.layout), found.repository, found.tag)
    pushed = f"{registry.address}/{found.repository}@{found.digest}"
    result.save(settings, replace(found, pushed=pushed))
    return pushed


def services_up(settings: Settings) -> None:
    """Bring engine and registry up for tests, and lead clients of this process and its children to them."""
    engine_up(settings)
    _registry(settings)


def engine_up(settings: Settings) -> Engine:
    """Install what the host lacks and bring an engine up; its address enters our environment for testinfra and SDK."""
    host.ensure(settings, PROGRAMS, announce)
    engine = engines.up(settings, announce)
    os.environ.update(engine.variables)
    return engine


def _registry(settings: Settings) -> Registry:
    host.ensure(settings, ("skopeo",) if settings.registry else ("skopeo", "docker-registry"), announce)
    return Registry(services.registry_up(settings, announce).address, announce)
