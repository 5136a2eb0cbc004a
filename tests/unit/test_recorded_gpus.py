"""Facts recorded on two real H200s with NVLink: healthy, and with a rank killed, hung, wrong, and P2P switched off."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kiln import checks, topologies
from kiln.facts import Facts
from kiln.facts.container import ContainerFacts
from kiln.facts.fabric import FabricFacts
from kiln.facts.node import NodeFacts
from kiln.facts.reading import read
from kiln.settings import ROOT
from kiln.verdict import Finding, Verdict

pytestmark = pytest.mark.unit
RECORDED = json.loads((ROOT / "tests/data/facts/h200-2x.json").read_text())
TOPOLOGY = topologies.load_all(ROOT)["h200-2x"]


def facts(allreduce: str = "allreduce") -> Facts:
    parts = {name: RECORDED[name]["facts"] for name in ("bandwidth", "peers", "ipc")}
    return Facts(
        node=read(json.dumps(RECORDED["node"]), NodeFacts),
        container=read(json.dumps(RECORDED["container"]), ContainerFacts),
        fabric=FabricFacts.model_validate({**parts, "allreduce": RECORDED[allreduce]["facts"]}),
    )


def judged(given: Facts, phase: str) -> dict[str, list[Finding]]:
    """Run the checks of a phase; returns what is neither PASS nor NOT_RUN, by check."""
    found = {check.name: check.run(given, TOPOLOGY) for check in checks.load_all() if check.phase == phase}
    bad = {name: [one for one in some if one.verdict in (Verdict.WARN, Verdict.FAIL)] for name, some in found.items()}
    return {name: some for name, some in bad.items() if some}


def test_the_topology_is_found_by_the_cards() -> None:
    node = facts().node
    assert node is not None
    assert topologies.match(topologies.load_all(ROOT), node.gpu_names, 2).name == "h200-2x"


def test_the_healthy_pair_has_two_small_faults_of_its_host() -> None:
    assert {*judged(facts(), "preflight")} == {"preflight/clock", "preflight/process-limits"}
    assert {*judged(facts(), "container")} == {"container/process-limits"}
    assert judged(facts(), "fabric") == {}


@pytest.mark.parametrize(
    ("recording", "message", "cause"),
    [
        ("rank killed", "killed by SIGKILL", "rank 1"),
        ("rank hangs", "hangs at 262144 bytes, killed after 40 s", ""),
        ("rank wrong", "wrong", ""),
    ],
)
def test_a_rank_that_fails_is_told_from_the_others(recording: str, message: str, cause: str) -> None:
    (finding,) = judged(facts(recording), "fabric")["fabric/allreduce"]
    assert finding.verdict is Verdict.FAIL
    assert message in f"{finding.message} {finding.cause}"
    assert cause in f"{finding.message} {finding.cause}"
    assert finding.cure


def test_all_reduce_through_host_memory_is_too_slow_and_its_cause_is_named() -> None:
    found = judged(facts("P2P off"), "fabric")
    assert [one.verdict for one in found["fabric/allreduce-speed"]] == [Verdict.FAIL]
    (transport,) = found["fabric/nccl-transport"]
    assert (transport.verdict, transport.cause) == (Verdict.WARN, "NCCL_P2P_DISABLE=1 is set in the environment")


def test_no_recording_names_a_card_or_a_host() -> None:
    for path in (ROOT / "tests/data/facts").glob("*.json"):
        text = path.read_text()
        assert "GPU-" not in text, path.name
        data: Any = json.loads(text)
        node = data.get("node", data)
        assert node["facts"]["host"]["hostname"] in ("node", "node-1"), path.name
