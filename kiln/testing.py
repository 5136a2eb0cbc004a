"""`inv test`: unit tests, tests with a real engine and registry, and the `ci` stack built and tested for every GPU."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from kiln.errors import CheckFailed
from kiln.run import attached
from kiln.settings import Settings


def test(settings: Settings, parts: Iterable[str]) -> None:
    """Run the chosen parts in order, all of them even if one fails. Raises CheckFailed naming those that failed."""
    failed = [part for part in ("unit", "engine", "image") if part in parts and not _run(settings, part)]
    if failed:
        raise CheckFailed(f"tests failed: {', '.join(failed)}")


def run_pytest(paths: Iterable[str]) -> int:
    """Run pytest on paths with its output on ours; returns its exit status."""
    return attached([sys.executable, "-m", "pytest", *paths])


def _run(settings: Settings, part: str) -> bool:
    if part == "unit":
        return run_pytest([str(settings.root / "tests" / "unit")]) == 0
    if part == "engine":
        _services(settings)
        return run_pytest([str(settings.root / "tests" / "engine")]) == 0
    return _images(settings)


def _services(settings: Settings) -> None:
    from kiln import building

    building.services_up(settings)


def _images(settings: Settings) -> bool:
    """Build stack `ci` for every GPU through all stages into the registry; its image tests are part of the build."""
    from kiln import building, cli, tables, versions
    from kiln.build import Options

    loaded = versions.load(settings.root / "versions.yaml")
    for gpu in (gpu for gpu in loaded.gpus if loaded.stack("ci").supports(gpu)):
        try:
            found = building.build(
                settings, gpu=gpu, stack="ci", kernel_set="", image="", options=Options(), quiet=False
            )
        except CheckFailed as error:
            cli.announce(f"error: {error}")
            return False
        tables.built(found)
    return True
