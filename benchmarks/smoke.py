"""How long preflight takes, on one node and on four side by side: `python benchmarks/smoke.py [ROUNDS]`, as root.

The nodes are sshd in network namespaces of this machine, so four share its cores, which real ones do not. Therefore
twice: as it is, and with a probe that waits ten seconds, as those that load GPUs do for minutes. `node` is a node's own
time (`seconds` of its receipt), `wall` all of it. Bars: 10 s and 30 round trips for a node's preflight, and four nodes
in 1.3 times the time of one.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from kiln.settings import ROOT, Settings, from_env
from kiln.smoke import runner
from kiln.smoke.options import Options
from tests.sshnodes import HERE, Wanted, nodes

NAMES = ("n1", "n2", "n3", "n4")
WAITS = (
    f'case "$*" in *probe.pyz*) sleep "$(cat {HERE}/wait 2> /dev/null || echo 0)";; esac; exec /usr/bin/python3 "$@"'
)
PROGRAMS = (("docker", "exit 1"), ("podman", "exit 1"), ("python3", WAITS))


def smoke(settings: Settings, hosts: tuple[str, ...]) -> tuple[float, float, float, float]:
    """Smoke some nodes; returns wall time, then the worst of them: its time, preflight's, round trips."""
    began = time.monotonic()
    found = runner.smoke(settings, runner.plan(settings, Options(hosts=hosts, phases=("preflight",))), quiet=True)
    wall_s = time.monotonic() - began
    receipts = [one.receipt for one in found]
    preflight_s = max(phase.start_s + phase.seconds for one in receipts for phase in one.phases[:1])
    trips = max(outcome.numbers.get("round_trips") or 0 for one in receipts for outcome in one.outcomes)
    return wall_s, max(one.seconds for one in receipts), preflight_s, trips


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    with tempfile.TemporaryDirectory() as folder:
        root, cluster = Path(folder) / "checkout", Path(folder) / "cluster"
        root.mkdir()
        cluster.mkdir()
        for name in ("topologies", "presets"):
            (root / name).symlink_to(ROOT / name)
        settings = replace(from_env(), root=root, home=Path(folder) / "home")
        with nodes(cluster, [Wanted(name, programs=PROGRAMS) for name in NAMES]) as found:
            os.environ["HOME"] = str(cluster / "home")
            smoke(settings, NAMES[:1])
            for wait_s in (0, 10):
                for node in found.values():
                    (node.folder / "wait").write_text(f"{wait_s}\n")
                print(f"a probe that waits {wait_s} s")
                for _ in range(rounds):
                    measure(settings)


def measure(settings: Settings) -> None:
    """Smoke one node, then four, and print both and their ratio."""
    one, four = smoke(settings, NAMES[:1]), smoke(settings, NAMES)
    for label, (wall_s, node_s, preflight_s, trips) in (("1 node ", one), ("4 nodes", four)):
        print(f"  {label}  wall {wall_s:5.1f} s  node {node_s:5.1f} s  preflight {preflight_s:4.1f} s  "
              f"{trips:.0f} round trips")  # fmt: skip
    print(f"  ratio    wall {four[0] / one[0]:5.2f}    node {four[1] / one[1]:5.2f}")


if __name__ == "__main__":
    main()
