"""Made facts of GPUs at work: a healthy node of eight, and what to change in it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from kiln.facts import Facts
from kiln.facts.container import ContainerFacts
from kiln.facts.fabric import AllreduceFacts, BandwidthFacts, FabricFacts, HeatFacts, IpcFacts, PeersFacts
from kiln.facts.numerics import NumericsFacts
from kiln.facts.reading import Fact

NAME = "NVIDIA RTX PRO 6000 Blackwell Server Edition"
GPUS = range(8)
DONE = {"reason": "exit", "code": 0, "seconds": 9.0, "error": None, "not_run": None, "leftovers": 0}


def ended(reason: str = "exit", error: str | None = None, code: int | None = 0, not_run: str | None = None) -> Any:
    """Make how a child ended."""
    return {**DONE, "reason": reason, "error": error, "code": code, "not_run": not_run, "seconds": 120.0}


def hung() -> Any:
    """Make a child that was killed at its deadline."""
    return ended("deadline", "no end after 120 s; last words: ", -9)


def peer() -> Any:
    """Make a child that was killed since another one had ended."""
    return ended("peer", "killed, as another process of its group had ended", -9)


def bandwidth() -> dict[str, Any]:
    """Make copies at full speed over Gen5 x16."""
    row = {"name": NAME, "h2d_gb_s": 55.2, "d2h_gb_s": 56.4, "looks": 12, "link_generation": 5, "link_width": 16}
    return {"bytes": 1 << 28, "gpus": [{"gpu": gpu, **row} for gpu in GPUS]}


def peers() -> dict[str, Any]:
    """Make right copies between all pairs; GPUs 0 to 3 sit on one socket, 4 to 7 on the other."""
    pairs = [
        {
            "source": one, "target": other, "between": "system" if one // 4 != other // 4 else "NUMA node",
            "access": True, "bytes": 1 << 26, "wrong_words": 0, "gb_s": 44.0 if one // 4 != other // 4 else 55.0,
            "latency_us": 0.45,
        }
        for one in GPUS for other in GPUS if one != other
    ]  # fmt: skip
    together = {"pairs": 56, "bytes": 1 << 30, "wrong_words": 0, "wrong_pairs": [], "gb_s": 178.0,
                "slowest_pair": "0 -> 5", "slowest_gb_s": 3.1}  # fmt: skip
    return {"gpus": 8, "pairs": pairs, "concurrent": together}


def ipc() -> dict[str, Any]:
    """Make eight pairs of processes that share memory."""
    sides = {"owner": DONE, "opener": DONE}
    return {"pairs": [{"owner": gpu, "opener": (gpu + 1) % 8, "bytes": 1 << 24, "wrong_words": 0, "ended": sides}
                      for gpu in GPUS]}  # fmt: skip


def run(gpus: list[int], **change: Any) -> dict[str, Any]:
    """Make a run of a group that went well."""
    ranks = [{"rank": rank, "gpu": gpu, "step": "done", "wrong": 0, "ended": DONE} for rank, gpu in enumerate(gpus)]
    sizes = ((32 << 10, 41.0, 1.4), (256 << 10, 52.0, 8.8), (32 << 20, 1480.0, 39.7), (256 << 20, 11600.0, 40.5))
    numbers = [{"bytes": size, "latency_us": took, "busbw_gb_s": speed} for size, took, speed in sizes]
    nccl = {"version": "2.30.7", "channels": 8, "transports": {"P2P/CUMEM": 16}, "patterns": [], "warnings": []}
    return {"good": True, "ranks": ranks, "numbers": numbers, "nccl": nccl, **change}


def bad_run(gpus: list[int], ends: dict[int, Any], step: str = "32768 bytes", wrong: int = 0) -> dict[str, Any]:
    """Make a run in which ranks ended as `ends` says, and had wrong values."""
    found = run(gpus, good=False, numbers=[])
    for rank in found["ranks"]:
        rank["ended"] = ends.get(rank["rank"], DONE)
        rank["step"] = step if rank["ended"] is not DONE else "done"
        rank["wrong"] = wrong if rank["rank"] == 1 else 0
    return found


def allreduce() -> dict[str, Any]:
    """Make groups of 2, 4 and 8 that went well."""
    groups = ([0, 1], [3, 4], [0, 7], [0, 1, 2, 3], [4, 5, 6, 7], [*GPUS])
    return {
        "backend": "nccl", "device": "cuda", "gpus": 8, "environment": {}, "asked": [2, 4, 8], "not_run": [],
        "groups": [{"gpus": group, **run(group), "without_p2p": None} for group in groups],
    }  # fmt: skip


def heat(seconds: int = 20) -> dict[str, Any]:
    """Make a load of 570 W of 600 W and 71 C, after ten seconds in which libraries are loaded."""
    idle = {"power_w": 82.0, "temperature_c": 34.0, "utilization_percent": 0.0, "sm_clock_mhz": 180.0,
            "memory_used_mib": 600.0, "throttle": ["gpu_idle"]}  # fmt: skip
    busy = {"power_w": 570.0, "temperature_c": 71.0, "utilization_percent": 100.0, "sm_clock_mhz": 2280.0,
            "memory_used_mib": 2200.0, "throttle": ["sw_power_cap"]}  # fmt: skip
    samples = [
        {"time_s": second, "gpu": gpu, **(idle if second < 10 else busy)}
        for second in range(seconds + 10) for gpu in GPUS
    ]  # fmt: skip
    rows = [
        {"gpu": gpu, "name": NAME, "power_limit_w": 600.0, "tflops": [380.0] * seconds, "wrong": 0, "ended": DONE}
        for gpu in GPUS
    ]
    return {"seconds": seconds, "stopped": None, "gpus": rows, "samples": samples}


def container() -> dict[str, Any]:
    """Make what programs get in a good image on a good node."""
    return {
        "gpus": [{"gpu": gpu, "name": NAME, "compute_capability": "12.0", "memory_bytes": 96 << 30} for gpu in GPUS],
        "driver": "580.159.04",
        "libcuda": {"path": "/usr/lib/libcuda.so.580.159.04", "version": "580.159.04", "cuda": "13.0"},
        "torch": {"version": "2.14.1", "cuda": "13.0", "archs": ["sm_90", "sm_120"], "gpus": ["12.0"] * 8,
                  "error": None},
        "nccl": [{"path": "/opt/kiln/lib/libnccl.so.2", "version": "2.30.7"}],
        "flashinfer": {"version": "0.7.2+kiln", "archs": ["12.0f"]},
        "packages": {"torch": "2.14.1", "flashinfer-python": "0.7.2+kiln"},
        "shm": {"total_mib": 128000.0, "free_mib": 127000.0, "stale_nccl": []},
        "limits": {"memlock_bytes": -1, "nofile": 1048576, "stack_bytes": 8388608},
        "cache": {"path": "/root/.cache/flashinfer", "kind": "overlay", "writable": True, "error": None},
        "compilers": [
            {"path": "/opt/cuda/bin/nvcc", "version": "13.0.88", "archs": ["sm_90", "sm_120", "sm_120a"]},
            {"path": "/opt/cuda/bin/ptxas", "version": "13.0.88", "archs": ["sm_90a", "sm_120a"]},
        ],
        "environment": {"FLASHINFER_CUDA_ARCH_LIST": "12.0f"},
    }  # fmt: skip


def point(rows: int, **change: Any) -> dict[str, Any]:
    """Make a row count for which a kernel is right."""
    good = {"refused": None, "cosine": 0.999998, "worst_row": 0.99999, "relative_error": 0.002, "not_finite": 0,
            "zero_rows": 0, "all_zero": False}  # fmt: skip
    return {"rows": rows, **good, **change}


def numerics(**cases: Any) -> dict[str, Any]:
    """Make right kernels; `cases` are further ones by name, "__" stands for "/"."""
    right = {name: {"points": [point(1), point(128)]} for name in ("rmsnorm/flashinfer", "fp4_gemm/cutlass")}
    more = {name.replace("__", "/"): case for name, case in cases.items()}
    return {"gpu": NAME, "asked": [], "unknown": [], "cases": [{"name": n, **c} for n, c in {**right, **more}.items()]}


_KINDS: dict[str, tuple[type[Fact], Callable[[], dict[str, Any]]]] = {
    "bandwidth": (BandwidthFacts, bandwidth), "peers": (PeersFacts, peers), "ipc": (IpcFacts, ipc),
    "allreduce": (AllreduceFacts, allreduce), "heat": (HeatFacts, heat), "container": (ContainerFacts, container),
    "numerics": (NumericsFacts, numerics),
}  # fmt: skip


@cache
def _healthy(name: str) -> Any:
    kind, make = _KINDS[name]
    return kind.model_validate(make())


def facts(**parts: Any) -> Facts:
    """Make facts from the probes' answers, as changed by a test; parts that are not named are healthy."""
    made: dict[str, Any] = {
        name: kind.model_validate(parts[name]) if name in parts else _healthy(name)
        for name, (kind, _) in _KINDS.items()
    }
    fabric = FabricFacts(**{name: made[name] for name in FabricFacts.model_fields})
    return Facts(container=made["container"], numerics=made["numerics"], fabric=fabric)
