"""Python resolution by uv for one interpreter and one platform, and which image each wheel belongs to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cache

import requests
from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import canonicalize_name, parse_wheel_filename

from kiln import family, indexes
from kiln.errors import UserError, raise_all
from kiln.images import Image
from kiln.indexes import Places
from kiln.intent import Stack
from kiln.locks import Wheel, sources_of
from kiln.uv import File, Package, Rules, Target, compile_roots

# glibc 2.N of the suites that a base may be made of; another base gets what every wheel builder supports.
GLIBC_MINOR = {"bookworm": 36, "trixie": 41}
_GLIBC_MINOR_ELSEWHERE = 28
_LEGACY = {17: "manylinux2014_x86_64", 12: "manylinux2010_x86_64", 5: "manylinux1_x86_64"}


@dataclass(frozen=True)
class Resolution:
    """The wheels of a stack, and the time of the newest upload."""

    wheels: tuple[Wheel, ...]
    epoch: int


def resolve(
    stack: Stack, chain: Sequence[Image], places: Places, prefer: Mapping[str, str], upgrade: tuple[str, ...]
) -> Resolution:
    """Resolve all images of a stack together and group the wheels by image. Raises UserError, Problems."""
    target = target_of(stack)
    rules = Rules(stack.constraints, stack.overrides, stack.as_of, prefer=prefer, upgrade=upgrade)
    roots = [root for image in chain for root in stack.requirements(image.name)]
    packages = {package.name: package for package in compile_roots(roots, target, places, rules)}
    bare = _without_deps(stack, chain, target, places, rules)
    owners = {**_owners(stack, chain, target, places, rules, packages), **{name: owner for owner, name in bare}}
    packages |= {package.name: package for package in bare.values()}
    built = {canonicalize_name(project) for project in sources_of(stack, chain)}
    kept = [package for name, package in sorted(packages.items()) if name not in built]
    raise_all(family.problems(stack, {package.name: package.version for package in packages.values()}))
    chosen = [(package, choose(package, target)) for package in kept]
    wheels = tuple(_wheel(package, file, owners[package.name]) for package, file in chosen)
    return Resolution(wheels, max((file.uploaded for _, file in chosen), default=0))


def target_of(stack: Stack) -> Target:
    """Return what the stack's wheels must fit."""
    return Target(stack.python, GLIBC_MINOR.get(stack.base.suite or "", _GLIBC_MINOR_ELSEWHERE))


def choose(package: Package, target: Target) -> File:
    """Return the wheel that fits best: the order in which pip would take them. Raises UserError if none fits."""
    ranks = {tag: rank for rank, tag in enumerate(_tags(target))}
    fitting = [(_rank(file, ranks), file.name, file) for file in package.wheels]
    fitting = [entry for entry in fitting if entry[0] < len(ranks)]
    if not fitting:
        found = ", ".join(file.name for file in package.wheels) or "none"
        wanted = f"python {target.python} and glibc 2.{target.glibc_minor}"
        raise UserError(f"{package.name} {package.version} has no wheel for {wanted}; it has: {found}")
    best = min(fitting)[2]
    if best.size:
        return best
    with requests.Session() as session:
        return replace(best, size=indexes.size_of(session, best.url))


def _without_deps(
    stack: Stack, chain: Sequence[Image], target: Target, places: Places, rules: Rules
) -> dict[tuple[str, str], Package]:
    """Resolve the roots that are installed alone; keyed by image and name."""
    alone = replace(rules, deps=False)
    roots = {image.name: stack.no_deps_requirements(image.name) for image in chain}
    found = {image: compile_roots(lines, target, places, alone) for image, lines in roots.items()}
    return {(image, package.name): package for image, packages in found.items() for package in packages}


def _owners(
    stack: Stack, chain: Sequence[Image], target: Target, places: Places, rules: Rules, packages: Mapping[str, Package]
) -> dict[str, str]:
    """Give each package to the image whose globs match it, else to the first whose roots need it, else to the last."""
    owners = {name: image.name for image in reversed(chain) for name in packages if _matches(name, image)}
    pins = replace(rules, constraints=tuple(f"{one.name}=={one.version}" for one in packages.values()), prefer=None)
    for image in chain[:-1]:
        for package in compile_roots(stack.requirements(image.name), target, places, pins):
            owners.setdefault(package.name, image.name)
    return {**dict.fromkeys(packages, chain[-1].name), **owners}


def _matches(name: str, image: Image) -> bool:
    return any(fnmatchcase(name, glob) for glob in image.python_globs)


def _wheel(package: Package, file: File, image: str) -> Wheel:
    return Wheel(package.name, package.version, file.name, file.size, file.sha256, image, file.uploaded)


@cache
def _tags(target: Target) -> tuple[Tag, ...]:
    """Return the tags that fit, best first; computed for the target, not for this machine."""
    version = tuple(int(part) for part in target.python.split("."))
    platforms = [tag for minor in range(target.glibc_minor, 4, -1) for tag in _manylinux(minor)] + ["linux_x86_64"]
    interpreter = f"cp{version[0]}{version[1]}"
    return (*cpython_tags(version, platforms=platforms), *compatible_tags(version, interpreter, platforms))


def _manylinux(minor: int) -> Iterable[str]:
    return filter(None, (f"manylinux_2_{minor}_x86_64", _LEGACY.get(minor, "")))


def _rank(file: File, ranks: Mapping[Tag, int]) -> int:
    return min((ranks.get(tag, len(ranks)) for tag in parse_wheel_filename(file.name)[3]), default=len(ranks))
