"""`inv check`: everything that a person or a command wrote, validated without network or engine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import TypeVar

from kiln import images as images_module
from kiln import logrules, names, presets, topologies, versions
from kiln.errors import Problem, UserError
from kiln.images import Image
from kiln.locks import Artifact
from kiln.patches import Patch
from kiln.settings import Settings
from kiln.versions import Versions

Result = TypeVar("Result")
_CHECKS = Path(__file__).parent / "checks"


def check(settings: Settings) -> list[Problem]:
    """Return every problem, sorted; an empty list is a good repository."""
    root, problems = settings.root, [*logrules.problems(settings.root)]
    intent = _collect(problems, partial(versions.load, root / "versions.yaml"))
    images = _collect(problems, partial(images_module.load_all, root))
    if intent is not None:
        problems += patch_problems(root, intent)
        problems += kernel_problems(root, intent)
        problems += presets.problems(root, intent)
        problems += promotion_problems(root, intent)
        problems += topologies.problems(root, intent)
    if intent is not None and images is not None:
        references = [*reference_problems(intent, images)]
        problems += references or [*written_problems(root, intent, images)]
    return sorted(set(problems))


def reference_problems(intent: Versions, images: Mapping[str, Image]) -> Iterator[Problem]:
    """Yield what versions.yaml and images/ say about each other and does not fit."""
    yield from _unknown_images(intent, images)
    components = {name for stack in intent.stacks.values() for name in stack.components}
    for image in images.values():
        for project, component in image.sources.items():
            if component not in components:
                where = f"images/{image.name}/image.yaml"
                yield names.unknown("component", component, components, where, f"sources.{project}")


def patch_problems(root: Path, intent: Versions) -> list[Problem]:
    """Return what is wrong with patches/: headers, and names that versions.yaml does not have."""
    from kiln import patches

    problems: list[Problem] = []
    loaded = _collect(problems, partial(patches.load_all, root))
    components = {name for stack in intent.stacks.values() for name in stack.components}
    problems += patches.reference_problems(root, loaded or (), components, set(intent.gpus))
    return [*problems, *_pinned_problems(root, intent, loaded or ())]


def _pinned_problems(root: Path, intent: Versions, loaded: Iterable[Patch]) -> Iterator[Problem]:
    """Yield stale locks of patched files, and patches to what no stack pins: they would be named and never applied."""
    from kiln import patchlocks

    pinned: dict[tuple[str, str], Artifact] = {}
    for name, stack in intent.stacks.items():
        try:
            found = patchlocks.read_pinned(root, name, stack.components)
        except UserError:
            return  # told where the locks are looked at
        pinned |= {(component, stack.components[component]): source for component, source in found.items()}
    yield from patchlocks.problems(root, pinned, loaded)
    known = sorted({component for component, _ in pinned})
    for patch in loaded:
        if patch.component not in known:
            where = str(patch.path.relative_to(root))
            yield Problem(
                where, f"no stack locks a source or wheel of {patch.component}", f"locked: {', '.join(known)}"
            )


def promotion_problems(root: Path, intent: Versions) -> Iterator[Problem]:
    """Yield phases, topologies and checks that the policy of promotion names and that are not there.

    The checks are told by their files: importing them would take longer than all else that is looked at.
    """
    policy = intent.promotion
    if policy is None:
        return
    checks = [f"{file.parent.name}/{file.stem.replace('_', '-')}" for file in _CHECKS.glob("*/[!_]*.py")]
    phases = sorted(file.parent.name for file in _CHECKS.glob("*/__init__.py"))
    topologies = [file.stem for file in (root / "topologies").glob("*.yaml")]
    yield from _unmatched(intent, "phase", "phases", policy.phases, phases)
    yield from _unmatched(intent, "check", "may_be_not_run", policy.may_be_not_run, checks)
    for gpu, proof in policy.gpus.items():
        yield from _unmatched(intent, "topology", f"gpus.{gpu}.topologies", proof.topologies, topologies)


def _unmatched(intent: Versions, kind: str, key: str, globs: Iterable[str], known: Iterable[str]) -> Iterator[Problem]:
    there = tuple(known)
    for index, glob in enumerate(globs):
        path = f"promotion.{key}[{index}]"
        if not any(fnmatchcase(name, glob) for name in there):
            yield names.unknown(kind, glob, there, intent.at(path), path)


def kernel_problems(root: Path, intent: Versions) -> list[Problem]:
    """Return each glob that matches no module: every stack's own set, and every set on the default target.

    A table that is not there yet is no problem of the data: `inv show` and `inv build` ask for it.
    """
    from kiln import kernels

    problems: list[Problem] = []
    for (version, gpu), kernel_sets in _kernel_uses(intent).items():
        if not (root / kernels.table_file(version, gpu)).exists():
            continue
        table = _collect(problems, partial(kernels.load_table, root, version, gpu))
        if table is None:
            continue
        for name in sorted(kernel_sets):
            faults: list[Problem] = []
            _collect(faults, partial(kernels.select, table, intent.globs(name, gpu)))
            problems += [_in_set(intent, name, fault) for fault in faults]
    return problems


def _kernel_uses(intent: Versions) -> dict[tuple[str, str], set[str]]:
    """Return the kernel sets to look at for each FlashInfer version and GPU."""
    uses: dict[tuple[str, str], set[str]] = {}
    default = (intent.defaults.stack, intent.defaults.gpu)
    for stack in intent.stacks.values():
        version = stack.components.get("flashinfer", "")
        for gpu in (name for name in intent.gpus if version and stack.supports(name)):
            wanted = intent.kernel_sets if (stack.name, gpu) == default else {stack.kernels}
            uses.setdefault((version, gpu), set()).update(wanted)
    return uses


def _in_set(intent: Versions, kernel_set: str, fault: Problem) -> Problem:
    path = f"kernel_sets.{kernel_set}"
    return Problem(intent.at(f"{path}.modules"), f"{path}: {fault.message} of {fault.source}", fault.hint)


def written_problems(root: Path, intent: Versions, images: Mapping[str, Image]) -> Iterator[Problem]:
    """Yield each lock and each Dockerfile that no longer says what the data says."""
    from kiln import locks, render

    for stack in intent.stacks:
        yield from locks.problems(root, intent, tuple(images.values()), stack)
    try:
        yield from render.problems(root, intent)
    except UserError as error:
        yield from error.problems


def _unknown_images(intent: Versions, images: Iterable[str]) -> Iterator[Problem]:
    paths = {"defaults.image": intent.defaults.image}
    for stack in intent.stacks.values():
        for field in ("python_packages", "no_deps"):
            paths |= {f"stacks.{stack.name}.{field}.{image}": image for image in getattr(stack, field)}
    for path, image in paths.items():
        if image not in images:
            yield names.unknown("image", image, images, intent.at(path), path)


def _collect(problems: list[Problem], load: Callable[[], Result]) -> Result | None:
    try:
        return load()
    except UserError as error:
        problems += error.problems
        return None
