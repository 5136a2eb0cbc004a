"""topologies/: good and bad files, and which one is for a node."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from kiln import check, topologies, versions
from kiln.errors import UserError
from kiln.settings import ROOT, from_env
from tests.madenodes import SERVER_EDITION

pytestmark = pytest.mark.unit

GOOD = """\
summary: "for a test"
match:
  gpu_names: ["NVIDIA H200"]
  count: "4"
gpus:
  count: "4"
  compute_capability: "9.0"
pcie: {generation: "5", width: "16"}
limits:
  h2d_gb_s: {warn: "52", fail: "45.5"}
  peer_latency_us: {warn: "2", fail: "10"}
server:
  floors: {glm5-nvfp4: "880"}
"""


def problems_of(root: Path, text: str, **others: str) -> list[str]:
    for name in ("topologies", "presets"):
        (root / name).mkdir(exist_ok=True)
    shutil.copy(ROOT / "versions.yaml", root)
    (root / "presets/glm5-nvfp4.yaml").touch()
    for name, words in {"h200-4x": text, **others}.items():
        (root / f"topologies/{name}.yaml").write_text(words, encoding="utf-8")
    return [str(one) for one in topologies.problems(root, versions.load(root / "versions.yaml"))]


def test_the_real_topologies_are_good() -> None:
    assert topologies.problems(ROOT, versions.load(ROOT / "versions.yaml")) == []


def test_a_good_topology_is_clean(tmp_path: Path) -> None:
    assert problems_of(tmp_path, GOOD) == []
    found = topologies.load_all(tmp_path)["h200-4x"]
    assert found.limits.h2d_gb_s == topologies.Limit(warn=52, fail=45.5)
    assert (found.shm_min_gib, found.outlier_fraction, found.heat.temperature_fail_c) == (16, 0.85, 88)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ('summary: "for a test"\n', "", "1: the key 'summary' is missing"),
        ('count: "4"\ngpus', 'count: "four"\ngpus', "4: match.count: 'four' is neither a number nor \"any\""),
        ("h2d_gb_s", "h2d_gbs", "10: limits: unknown key 'h2d_gbs'\n  hint: did you mean 'h2d_gb_s'?"),
        ('fail: "45.5"', 'fail: "fast"', "10: limits.h2d_gb_s.fail: input should be a valid number"),
        ('fail: "45.5"', 'fail: "60"', "9: limits: h2d_gb_s: `fail` is better than `warn`"),
        ('fail: "10"', 'fail: "1"', "9: limits: peer_latency_us: `fail` is better than `warn`"),
        ('fail: "45.5"', 'fail: "0"', "10: limits.h2d_gb_s.fail: input should be greater than 0"),
        ('warn: "52"', "warn: 52", "10: limits.h2d_gb_s.warn: 52 is read as a number"),
        ("NVIDIA H200", "NVIDIA H300", "3: match.gpu_names[0]: there is no GPU 'NVIDIA H300'\n  hint: did you mean"),
        ('"9.0"', '"12.0"', "7: gpus.compute_capability: '12.0'\n  hint: versions.yaml: NVIDIA H200 has 9.0"),
        ("{glm5-nvfp4:", "{glm5-nvfp8:", "13: server.floors.glm5-nvfp8: there is no preset 'glm5-nvfp8'"),
    ],
)
def test_a_bad_topology_is_refused_with_its_line(tmp_path: Path, old: str, new: str, expected: str) -> None:
    assert GOOD.count(old) == 1
    (found,) = problems_of(tmp_path, GOOD.replace(old, new))
    assert found.startswith(f"topologies/h200-4x.yaml:{expected}")


def test_inv_check_tells_what_is_wrong_with_a_topology(tmp_path: Path) -> None:
    problems_of(tmp_path, GOOD.replace("summary", "sumary"))
    heads = [str(one).splitlines()[0] for one in check.check(from_env({}, tmp_path))]
    assert "topologies/h200-4x.yaml:1: unknown key 'sumary'" in heads


def test_two_topologies_for_the_same_nodes_are_refused(tmp_path: Path) -> None:
    assert problems_of(tmp_path, GOOD, other=GOOD) == [
        "topologies/other.yaml:2: match: topologies/h200-4x.yaml is for the same nodes\n"
        "  hint: give one of them `sockets`, `switched` or another count"
    ]


@pytest.mark.parametrize(
    ("names", "count", "sockets", "switched", "expected"),
    [
        ([SERVER_EDITION], 8, 1, False, "rtx-pro-6000-8x-direct"),
        ([SERVER_EDITION], 8, 2, False, "rtx-pro-6000-8x-dual-socket"),
        ([SERVER_EDITION], 8, 2, True, "rtx-pro-6000-8x-switch"),
        ([SERVER_EDITION], 4, 1, False, "rtx-pro-6000"),
        (["NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition"], 2, 1, False, "rtx-pro-6000-max-q"),
        (["NVIDIA GeForce RTX 5090"], 8, 1, False, "rtx-5090-8x"),
        (["NVIDIA H200"], 1, None, None, "h200-1x"),
        (["NVIDIA H200"], 8, 2, True, "h200-8x"),
        (["NVIDIA H200", SERVER_EDITION], 8, 1, False, "any"),
        ([], 0, None, None, "any"),
    ],
)
def test_a_node_gets_the_topology_that_says_most_of_it(
    names: list[str], count: int, sockets: int | None, switched: bool | None, expected: str
) -> None:
    found = topologies.match(topologies.load_all(ROOT), names, count, sockets=sockets, switched=switched)
    assert found.name == expected


def test_a_node_that_none_is_for_is_told_with_the_known_ones() -> None:
    known = {"h200-1x": topologies.load_all(ROOT)["h200-1x"]}
    with pytest.raises(UserError, match="no topology is for 2 × NVIDIA H200\n  hint: name one: h200-1x"):
        topologies.match(known, ["NVIDIA H200"], 2)


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(UserError, match=r"there is no topology 'h200-1'\n  hint: did you mean 'h200-1x'\?"):
        topologies.get(topologies.load_all(ROOT), "h200-1")
