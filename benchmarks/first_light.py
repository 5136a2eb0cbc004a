"""Measure what a user waits for: `inv -l`, `inv check`, a build that has nothing to do, and what the last build cost.

    .venv/bin/python benchmarks/first_light.py [--gpu sm120] [--stack current] [--repeat 5]

Prints medians of wall time on this machine, next to the budgets, and the stage and layer table of the last build.
A speed claim stands here and never in a test: machines differ, budgets are for 2 cores.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def seconds(argv: list[str], repeat: int) -> float:
    """Return the median wall time of a command that must succeed."""
    times = []
    for _ in range(repeat):
        start = time.monotonic()
        subprocess.run(argv, cwd=ROOT, check=True, capture_output=True)
        times.append(time.monotonic() - start)
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpu", default="sm120")
    parser.add_argument("--stack", default="current")
    parser.add_argument("--repeat", type=int, default=5)
    options = parser.parse_args()
    target = ["--gpu", options.gpu, "--stack", options.stack]
    budgets = [
        ("inv -l", ["./inv", "-l"], 0.5),
        ("inv check", ["./inv", "check"], 1.0),
        ("inv show", ["./inv", "show", *target], 1.0),
        ("inv build, nothing to do", ["./inv", "build", *target], 3.0),
    ]
    print(f"{'command':<28}{'median':>10}{'budget':>10}")
    for name, argv, budget_s in budgets:
        print(f"{name:<28}{seconds(argv, options.repeat):>9.2f}s{budget_s:>9.1f}s")
    subprocess.run(["./inv", "build", *target], cwd=ROOT, check=True)


if __name__ == "__main__":
    sys.exit(main())
