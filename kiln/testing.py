"""`inv test`: unit tests, tests with a real engine and registry, and the `ci` stack built and tested for every GPU."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from kiln import run
from kiln.errors import CheckFailed
from kiln.settings import Settings
from kiln.store import Store

if TYPE_CHECKING:
    from kiln.plan import Plan

_AGAIN_S = 3600.0


def test(settings: Settings, parts: Iterable[str]) -> None:
    """Run the chosen parts in order, all of them even if one fails. Raises CheckFailed naming those that failed."""
    failed = [part for part in ("unit", "engine", "image") if part in parts and not _run(settings, part)]
    if failed:
        raise CheckFailed(f"tests failed: {', '.join(failed)}")


def run_pytest(paths: Iterable[str]) -> int:
    """Run pytest on paths with its output on ours; returns its exit status."""
    return run.attached([sys.executable, "-m", "pytest", *paths])


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

    Docker builds it for every GPU, with the image tests and the push. Beside it buildah, from nothing and in a home of
    its own, builds it for one: what differs between GPUs is the compiler's flags, and those are not the engine's.
    """
    from kiln import cli, digests, inventory, versions

    loaded = versions.load(settings.root / "versions.yaml")
    gpus = [gpu for gpu in loaded.gpus if loaded.stack("ci").supports(gpu)]
    plans = [inventory.plan_for(settings, gpu=gpu, stack="ci", kernel_set="", image="") for gpu in gpus]
    again = next((plan for plan in plans if plan.gpu.name == loaded.defaults.gpu), plans[0])
    expected = digests.load(settings.root)
    try:
        _prepared(settings, again)
        with _beside(settings, again, "buildah") as second:
            faults = [digests.fault(expected, plan, _built(settings, plan), "docker") for plan in plans]
            faults.append(digests.fault(expected, again, second(), "buildah"))
    except (CheckFailed, run.CutOff) as error:
        faults = [str(error)]
    for fault in filter(None, faults):
        cli.announce(f"error: {fault}")
    return not any(faults)


def _prepared(settings: Settings, plan: Plan) -> None:
    """Install what both engines need and fetch what both builds need: side by side each would do it."""
    from kiln import building, cli, fetching, host, reproduce

    host.ensure(settings, (*building.PROGRAMS, *reproduce.PROGRAMS_OF["buildah"]), cli.announce)
    for line in fetching.fetch_stacks(settings, [plan.stack.name], export="", import_=""):
        cli.announce(line)


def _built(settings: Settings, plan: Plan) -> str:
    """Build with Docker, test and push; returns the digest. Raises CheckFailed."""
    from kiln import building, tables
    from kiln.build import Options

    found = building.build(
        settings, gpu=plan.gpu.name, stack=plan.stack.name, kernel_set="", image="", quiet=False,
        engine_name="docker", options=Options(),
    )  # fmt: skip
    tables.built(found)
    return found.digest


@contextmanager
def _beside(settings: Settings, plan: Plan, engine: str) -> Iterator[Callable[[], str]]:
    """Build with another engine while the block runs; gives what waits for its digest.

    That raises CheckFailed and run.CutOff. The engine has a home of its own, with the store shared; its images go at
    the end, its results stay.
    """
    from kiln import reproduce

    stop = threading.Event()
    place = replace(settings, home=settings.home / "reproduce" / f"test-{engine}")
    reproduce.share_store(plan, Store(settings.store), place.store)
    try:
        with ThreadPoolExecutor(1) as pool:
            again = pool.submit(_built_again, place, plan, engine, stop)
            try:
                yield lambda: _told(place, plan, again.result())
            finally:
                stop.set()
    finally:
        reproduce.discard(place)


def _built_again(place: Settings, plan: Plan, engine: str, stop: threading.Event) -> run.Completed:
    from kiln import reproduce

    words: list[str | Path] = [
        sys.executable, "-m", "invoke", "--search-root", place.root, "build", *reproduce.words(plan),
        f"--engine={engine}", "--no-test", "--no-push",
    ]  # fmt: skip
    return run.bounded(words, timeout_s=_AGAIN_S, stop=stop, cwd=place.root, env={"KILN_HOME": str(place.home)})


def _told(place: Settings, plan: Plan, done: run.Completed) -> str:
    """Print what another process said and return the digest that it built. Raises CheckFailed if it built none."""
    from kiln import result

    sys.stderr.write(done.stderr)
    sys.stdout.write(done.stdout)
    found = result.load(place, plan.id)
    if done.returncode != 0 or found is None:
        raise CheckFailed(f"the second build ended with {done.returncode}, see above")
    return found.digest
