"""The GPU probes themselves: without a GPU nothing is measured, and what needs none of it is right."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from kiln.facts import reading
from kiln.facts.container import ContainerFacts
from kiln.facts.fabric import AllreduceFacts, BandwidthFacts, HeatFacts, IpcFacts, PeersFacts
from kiln.facts.numerics import NumericsFacts
from kiln.facts.reading import Fact
from kiln.facts.server import ReachFacts
from kiln.probe import allreduce, container, nccllog, sampler
from kiln.settings import ROOT

pytestmark = pytest.mark.unit

TORCH = os.environ.get("KILN_TORCH_PYTHON", "")
needs_torch = pytest.mark.skipif(not TORCH, reason="NOT_RUN: KILN_TORCH_PYTHON names no Python with torch")
without_gpu = pytest.mark.skipif(Path("/dev/nvidia0").exists(), reason="this machine has a GPU")
PROBES: dict[str, type[Fact]] = {
    "bandwidth": BandwidthFacts, "peers": PeersFacts, "ipc": IpcFacts, "allreduce": AllreduceFacts,
    "heat": HeatFacts, "numerics": NumericsFacts, "container": ContainerFacts,
    "reach": ReachFacts,
}  # fmt: skip


def probe(name: str, *argv: str, python: str = sys.executable, **env: str) -> str:
    """Run a probe as a node does and return its line."""
    done = subprocess.run(
        [python, "-m", "kiln.probe", name, *argv], cwd=ROOT, env={**os.environ, **env}, capture_output=True, text=True,
        check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@without_gpu
@pytest.mark.parametrize("name", sorted(PROBES))
def test_without_a_gpu_a_probe_measures_nothing_and_says_why(name: str) -> None:
    found: Any = reading.read(probe(name), PROBES[name])
    assert any(fault.error.startswith("no CUDA driver: libcuda.so.1") for fault in found.faults)
    measured = {
        key: value for key, value in found.model_dump().items() if key in ("gpus", "pairs", "groups", "samples")
    }
    assert not any(measured.values())


def test_groups_of_two_cross_every_boundary_and_larger_ones_follow_each_other() -> None:
    eight = list(range(8))
    assert allreduce.groups(eight, 2) == [[0, 1], [3, 4], [0, 7]]
    assert allreduce.groups(eight, 4) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert allreduce.groups(eight, 8) == [eight]
    assert allreduce.groups([0, 1], 2) == [[0, 1]]


class Nvml:
    """A driver that knows two GPUs, the second of which tells no power."""

    NVMLError = RuntimeError
    NVML_TEMPERATURE_GPU = NVML_CLOCK_SM = 0

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:  # noqa: N802
        return uuid

    def nvmlDeviceGetPowerUsage(self, handle: str) -> int:  # noqa: N802
        if handle == "GPU-b":
            raise RuntimeError("not supported")
        return 571000

    def nvmlDeviceGetTemperature(self, handle: str, _kind: int) -> int:  # noqa: N802
        return 71

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: str) -> int:  # noqa: N802
        return 0x4 | 0x40


def test_samples_are_taken_while_the_block_runs_and_what_is_not_told_is_none() -> None:
    seen: list[dict[str, Any]] = []
    gpus = [{"gpu": 0, "uuid": "GPU-a"}, {"gpu": 1, "uuid": "GPU-b"}]
    with sampler.sampling(Nvml(), gpus, 0.01, seen.append) as samples:
        time.sleep(0.2)
    count = len(samples)
    time.sleep(0.05)
    assert count == len(samples) == len(seen) > 4
    assert {key: samples[0][key] for key in ("gpu", "power_w", "temperature_c", "throttle", "sm_clock_mhz")} == {
        "gpu": 0, "power_w": 571.0, "temperature_c": 71, "throttle": ["sw_power_cap", "hw_thermal_slowdown"],
        "sm_clock_mhz": None,
    }  # fmt: skip
    assert samples[1]["power_w"] is None


NCCL = """
node:711:711 [0] NCCL INFO NCCL version 2.30.7+cuda13.0
node:711:761 [0] NCCL INFO Pattern 4, crossNic 0, nChannels 2, bw 0.100000/0.100000, type SYS/SYS, sameChannels 1
node:711:761 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM
node:711:761 [0] NCCL INFO Channel 01/0 : 0[0] -> 1[1] via P2P/CUMEM
node:712:762 [1] NCCL INFO Channel 00/0 : 1[1] -> 0[0] via SHM/direct/direct
node:711:761 [0] NCCL INFO 2 coll channels, 2 collnet channels, 0 nvls channels, 2 p2p channels, 2 p2p channels per peer
node:712:762 [1] include/shm.h:48 NCCL WARN Error while creating shared memory segment /dev/shm/nccl-x (size 9637888)
"""


def test_nccl_is_read_for_version_channels_transports_and_warnings() -> None:
    assert nccllog.read(["", NCCL]) == {
        "version": "2.30.7", "channels": 2, "transports": {"P2P/CUMEM": 2, "SHM/direct": 1},
        "patterns": ["Pattern 4, crossNic 0, nChannels 2, bw 0.100000/0.100000, type SYS/SYS"],
        "warnings": ["Error while creating shared memory segment /dev/shm/nccl-x (size 9637888)"],
    }  # fmt: skip


def test_a_silent_nccl_is_not_known() -> None:
    assert nccllog.read([""])["version"] is None
    assert nccllog.read([""])["channels"] is None


def test_every_compiler_is_found_once(tmp_path: Path) -> None:
    for name in ("cuda/bin/nvcc", "cuda/bin/ptxas", "triton/bin/ptxas", "triton/bin/ptxas-blackwell"):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("#!/bin/sh\n", encoding="utf-8")
        file.chmod(0o755)
    (tmp_path / "link").symlink_to(tmp_path / "cuda")
    environment = {
        "PATH": f"{tmp_path}/link/bin:{tmp_path}/nothing", "CUDA_HOME": f"{tmp_path}/cuda",
        "TRITON_PTXAS_PATH": f"{tmp_path}/cuda/bin/ptxas",
    }  # fmt: skip
    found = container.compilers(environment, [tmp_path / "triton"])
    assert sorted(str(path.relative_to(tmp_path)) for path in found) == [
        "link/bin/nvcc", "link/bin/ptxas", "triton/bin/ptxas", "triton/bin/ptxas-blackwell",
    ]  # fmt: skip


@needs_torch
@pytest.mark.parametrize(
    ("fault", "good", "reasons", "wrong"),
    [
        ("", True, ["exit", "exit"], 0),
        ("wrong:1", False, ["exit", "exit"], 1),
        ("hang:0", False, ["deadline", "deadline"], 0),
        ("kill:1", False, None, 0),
    ],
)
def test_a_group_of_real_ranks_is_judged_by_what_each_did(
    fault: str, good: bool, reasons: list[str] | None, wrong: int
) -> None:
    deadline = "25" if fault == "hang:0" else "200"
    argv = ("--ranks", "2", "--backend", "gloo", "--device", "cpu", "--deadline", deadline, "--fault", fault)
    found = reading.read(probe("allreduce", *argv, python=TORCH), AllreduceFacts)
    (group,) = found.groups
    ends = [rank.ended.reason for rank in group.ranks]
    assert (group.good, group.wrong, found.device) == (good, wrong, "cpu")
    assert ends == reasons or (fault == "kill:1" and ends[1] == "signal")
    assert group.without_p2p is None


@needs_torch
@without_gpu
def test_a_torch_without_cuda_measures_nothing() -> None:
    found = json.loads(probe("container", python=TORCH))["facts"]
    assert found["torch"]["gpus"] == []
    assert found["torch"]["error"]


@needs_torch
def test_block_scales_are_read_out_of_their_tiles() -> None:
    source = """
import torch
from kiln.probe import nvfp4
rows, columns = 130, 6
want = torch.rand(rows, columns).to(torch.float8_e4m3fn)
tall, wide = 2, 2
tiles = torch.zeros(tall * wide * 512, dtype=torch.uint8)
for row in range(rows):
    for column in range(columns):
        tile = (row // 128 * wide + column // 4) * 512
        tiles[tile + row % 32 * 16 + row % 128 // 32 * 4 + column % 4] = want.view(torch.uint8)[row, column]
assert torch.equal(nvfp4.linear(torch, tiles, rows, columns), want.double())
packed = torch.tensor([[0x21, 0xF9] + [0] * 6], dtype=torch.uint8)
ones = torch.full((512,), 1.0).to(torch.float8_e4m3fn)
got = nvfp4.dequantize(torch, packed, ones, torch.tensor([2.0]))
assert got[0, :4].tolist() == [0.25, 0.5, -0.25, -3.0], got
"""
    done = subprocess.run([TORCH, "-c", source], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@needs_torch
def test_a_result_is_compared_as_a_whole_and_row_by_row() -> None:
    source = """
import json, torch
from kiln.probe import numerics
want = torch.randn(64, 256, dtype=torch.float64)
bad = want.clone(); bad[7] = 0; bad[9, 3] = float("nan")
print(json.dumps([numerics.compare(torch, one, want) for one in (want.bfloat16(), bad, torch.zeros_like(want))]))
"""
    done = subprocess.run([TORCH, "-c", source], cwd=ROOT, capture_output=True, text=True, check=False)
    right, broken, zero = json.loads(done.stdout)
    assert right["cosine"] > 0.9999
    assert (right["not_finite"], right["zero_rows"], right["all_zero"]) == (0, 0, False)
    assert (broken["not_finite"], broken["zero_rows"], broken["worst_row"]) == (1, 1, 0.0)
    assert (zero["all_zero"], zero["zero_rows"], zero["cosine"]) == (True, 64, 0.0)
