"""Run the image tests: the very layout that will be pushed, loaded into the engine, tested by testinfra, no GPU."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from kiln import context
from kiln.engines import Engine
from kiln.errors import CheckFailed
from kiln.plan import Plan
from kiln.result import Result
from kiln.run import stream
from kiln.settings import Settings
from kiln.store import Store

_SUMMARY = re.compile(r"(?P<text>\d+ (?:passed|failed|error|skipped).*?) in [\d.]+s")


def test_layout(settings: Settings, plan: Plan, built: Result, engine: Engine, log: Path) -> str:
    """Load the layout as `kiln-test/…`, run tests/image on it, remove it again; returns pytest's summary.

    Raises CheckFailed with the log's name if a test fails.
    """
    log.unlink(missing_ok=True)
    ref = f"kiln-test/{plan.image}:{plan.id[:12]}"
    engine.load(Path(built.layout), ref)
    try:
        return _pytest(settings, plan, engine, ref, log)
    finally:
        engine.remove(ref)


def _pytest(settings: Settings, plan: Plan, engine: Engine, ref: str, log: Path) -> str:
    folder = settings.builds / plan.id[:12]
    tools = folder / "tools"
    for name in ("uv", "nvidia-cuda-cuobjdump"):
        context.tool(plan.lock.tools, name, Store(settings.store), tools)
    argv: list[str | Path] = [
        sys.executable, "-m", "pytest", settings.root / "tests" / "image", "-q", "-p", "no:cacheprovider",
        f"--kiln-image={ref}", f"--kiln-runtime={engine.runtime}",
        f"--kiln-plan={folder / 'plan.json'}", f"--kiln-tools={tools}",
        f"--junit-xml={log.with_suffix('.xml')}",
    ]  # fmt: skip
    done = stream(argv, log=log, cwd=settings.root, env=engine.variables)
    found = _SUMMARY.search(done.stdout)
    # Tests that were all skipped are no verdict.
    if done.returncode != 0 or not found or "passed" not in found["text"]:
        tail = "\n".join(done.stdout.splitlines()[-25:])
        raise CheckFailed(f"the image tests failed, log: {log}\n{tail}")
    return found["text"].strip()
