"""`inv test`: unit tests, tests with a real engine and registry, and the `ci` stack built and tested for every GPU."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING

from kiln.errors import CheckFailed
from kiln.run import attached
from kiln.settings import Settings
from kiln.store import Store

if TYPE_CHECKING:
    from kiln.digests import Digests
    from kiln.plan import Plan


def test(settings: Settings, parts: Iterable[str]) -> None:
    """Run the chosen parts in order, all of them even if one fails. Raises CheckFailed naming those that failed."""
    failed = [part for part in ("unit", "engine", "image") if part in parts and not _run(settings, part)]
    if failed:
        raise CheckFailed(f"tests failed: {', '.join(failed)}")


def run_pytest(paths: Iterable[str]) -> int:
    """Run pytest on paths with its output on ours; returns its exit status."""
    return attached([sys.executable, "-m", "pytest", *paths])


def _run(settings: Settings, part: str) -> bool:
    if part == "unit":  # most of them wait for a process or a clock: a worker for each CPU
        return run_pytest([str(settings.root / "tests" / "unit"), "-n", "auto", "--dist", "worksteal"]) == 0
    if part == "engine":
        _services(settings)
        return run_pytest([str(settings.root / "tests" / "engine")]) == 0
    return _images(settings)


def _services(settings: Settings) -> None:
    from kiln import building

    building.services_up(settings)


def _images(settings: Settings) -> bool:
    """Build stack `ci` through all stages, by both engines, and hold each digest against the committed one.

    Docker builds it for every GPU, with the image tests and the push. buildah, from nothing and in a home of its own,
    builds it for one: what differs between GPUs is the compiler's flags, and those are not the engine's.
    """
    from kiln import cli, digests, versions

    loaded = versions.load(settings.root / "versions.yaml")
    gpus = [gpu for gpu in loaded.gpus if loaded.stack("ci").supports(gpu)]
    again = loaded.defaults.gpu if loaded.defaults.gpu in gpus else gpus[0]
    expected = digests.load(settings.root)
    try:
        faults = [_fault(settings, gpu, "docker", expected) for gpu in gpus]
        faults.append(_fault(settings, again, "buildah", expected))
    except CheckFailed as error:
        faults = [str(error)]
    for fault in filter(None, faults):
        cli.announce(f"error: {fault}")
    return not any(faults)


def _fault(settings: Settings, gpu: str, engine: str, expected: Digests) -> str:
    """Build and return what is wrong with the digest, empty for nothing. Raises CheckFailed."""
    from kiln import building, digests, inventory, tables
    from kiln.build import Options

    plan = inventory.plan_for(settings, gpu=gpu, stack="ci", kernel_set="", image="")
    second = engine != "docker"
    with _home(settings, plan, engine) if second else nullcontext(settings) as place:
        found = building.build(
            place, gpu=gpu, stack="ci", kernel_set="", image="", quiet=False, engine_name=engine,
            options=Options(test=not second, push=not second),
        )  # fmt: skip
    tables.built(found)
    return digests.fault(expected, plan, found.digest, engine)


@contextmanager
def _home(settings: Settings, plan: Plan, engine: str) -> Iterator[Settings]:
    """Give a second engine a home of its own, with the store shared; its images go at the end, its results stay."""
    from kiln import reproduce

    place = replace(settings, home=settings.home / "reproduce" / f"test-{engine}")
    reproduce.share_store(plan, Store(settings.store), place.store)
    try:
        yield place
    finally:
        reproduce.discard(place)
