"""Made receipts of nodes with eight GPUs: healthy, failing, half run, with nothing in it. No number is measured."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from kiln.receipt import Receipt

CARD = "NVIDIA RTX PRO 6000 Blackwell Server Edition"
DIGEST = "sha256:" + "5a" * 32
PLAN = "b7" * 32
NODE = "3fa1c09be275"
PHASES = ("preflight", "pull", "container", "fabric", "numerics", "server", "after")
LOG = (
    "[2026-09-01 12:03:11 TP0] Capture CUDA graph end. Time elapsed: 21.4 s",
    "[2026-09-01 12:03:40 TP0] Decode batch. #running-req: 64, #token: 412311, gen throughput (token/s): 3740.12",
)


def data(**changes: Any) -> dict[str, Any]:
    """Return a healthy node's receipt as plain data, with some keys changed."""
    found: dict[str, Any] = {
        "schema": "kiln/receipt/1",
        "id": "a1b2c3d4e5f6",
        "started": "2026-09-01T12:00:00Z",
        "seconds": 412.0,
        "kiln": "0.1.0",
        "verdict": "PASS",
        "preset": "tiny",
        "image": {"ref": f"kiln/sglang@{DIGEST}", "digest": DIGEST, "plan": PLAN, "labels": {"kiln.gpu": "sm120"}},
        "node": node(),
        "phases": [*phases()],
        "outcomes": [*outcomes()],
        "peer_gb_s": peers(),
        "samples": [*samples(120, 3.0)],
        "server": server(),
    }
    return {**found, **changes}


def receipt(**changes: Any) -> Receipt:
    """Return a healthy node's receipt, with some keys changed."""
    return Receipt.model_validate(data(**changes))


def failing(**changes: Any) -> Receipt:
    """Return the receipt of a node with a slow GPU, a dead pair and a server that never got ready."""
    bad: list[dict[str, Any]] = [
        {
            "check": "fabric/peers",
            "verdict": "FAIL",
            "subject": "GPU 2 -> 5",
            "message": "the copy arrived with 4096 wrong bytes",
            "cause": "the IOMMU translates peer traffic, or ACS redirects it to the root complex",
            "cure": "boot with iommu=pt, switch ACS redirect off on the bridges, then inv smoke again",
            "numbers": {"peer_gb_s": 3.1},
        },
        {
            "check": "fabric/heat",
            "verdict": "WARN",
            "subject": "GPU 5",
            "message": "125 W of 600 W at 100 % utilisation",
            "cause": "the GPU waits for something else than its own arithmetic",
            "cure": "look at the PCIe width of the slot",
            "numbers": {"power_w": 125.0},
        },
        {
            "check": "numerics/moe",
            "verdict": "NOT_RUN",
            "message": "the fused MoE kernels were not tried: the child was killed after 60 s",
        },
    ]
    dead = {
        **server(),
        "throughput_tok_s": None,
        "timeline": [
            {"time_s": 0, "state": "STARTING"},
            {"time_s": 31, "state": "WARMING", "why": "weights are loaded"},
            {"time_s": 58.5, "state": "DEAD", "why": "scheduler TP5 ended with -9"},
        ],
    }
    peer = peers()
    peer[2][5] = 3.1
    peer[5][2] = None
    told: dict[str, Any] = {
        "id": "f00dfeed0001",
        "verdict": "FAIL",
        "started": "2026-09-02T08:00:00Z",
        "node": node("77ab00cd12ef"),
        "outcomes": [*outcomes(), *bad],
        "not_run": ["numerics/moe"],
        "server": dead,
        "peer_gb_s": peer,
        "phases": [
            {**one, "verdict": "FAIL" if one["name"] in ("fabric", "server") else one["verdict"]} for one in phases()
        ],
        "samples": [
            {**one, "power_w": 125.0, "throttle": ["sw_power_cap"]} if one["gpu"] == 5 else one
            for one in samples(120, 3.0)
        ],
    }
    return receipt(**{**told, **changes})


def not_run(**changes: Any) -> Receipt:
    """Return the receipt of a node where the fabric could not be looked at."""
    one = {
        "check": "fabric/allreduce",
        "verdict": "NOT_RUN",
        "message": "no container could be started",
        "cause": "the container toolkit is missing",
        "cure": "install nvidia-container-toolkit",
    }
    told: dict[str, Any] = {
        "id": "beef00000002",
        "verdict": "NOT_RUN",
        "node": node("c0ffee123456"),
        "not_run": ["fabric/allreduce"],
        "outcomes": [*outcomes(), one],
        "phases": [*phases()][:2],
        "samples": [],
        "peer_gb_s": [],
        "server": None,
    }
    return receipt(**{**told, **changes})


def empty(**changes: Any) -> Receipt:
    """Return a receipt of a node that was never reached."""
    told: dict[str, Any] = {
        "id": "000000000003",
        "verdict": "NOT_RUN",
        "seconds": 0.0,
        "image": {},
        "preset": "",
        "phases": [],
        "outcomes": [],
        "samples": [],
        "peer_gb_s": [],
        "server": None,
        "node": {"name_hash": "0123456789ab", "topology": "any"},
    }
    return receipt(**{**told, **changes})


def node(name: str = NODE, limit_w: float = 600.0, topology: str = "rtx-pro-6000-8x-direct") -> dict[str, Any]:
    """Return a node with eight GPUs."""
    gpus = [{"index": index, "name": CARD, "memory_mib": 97887, "power_limit_w": limit_w} for index in range(8)]
    return {
        "name_hash": name,
        "topology": topology,
        "gpus": gpus,
        "driver": "580.95.05",
        "cuda_of_driver": "13.0",
        "kernel": "6.1.0-40-amd64",
    }


def phases() -> Iterator[dict[str, Any]]:
    """Yield the seven phases."""
    start_s = 0.0
    for name, seconds in zip(PHASES, (6.2, 88.0, 14.0, 96.0, 41.0, 158.0, 8.8), strict=True):
        yield {"name": name, "start_s": start_s, "seconds": seconds, "verdict": "PASS"}
        start_s += seconds


def outcomes(scale: float = 1.0) -> Iterator[dict[str, Any]]:
    """Yield outcomes that all pass; rates times `scale`."""
    yield {"check": "preflight/driver", "verdict": "PASS", "message": "driver 580.95.05 runs CUDA 13.0"}
    for gpu in range(8):
        rate = (55.4 - 0.1 * gpu) * scale
        yield {
            "check": "fabric/bandwidth",
            "verdict": "PASS",
            "subject": f"GPU {gpu}",
            "message": f"{rate:.1f} GB/s to the GPU",
            "numbers": {"h2d_gb_s": rate, "d2h_gb_s": rate + 0.6, "limit_gb_s": 45.0},
        }
    yield {
        "check": "fabric/allreduce",
        "verdict": "PASS",
        "subject": "8 ranks",
        "message": "38.9 GB/s, sums right",
        "numbers": {"busbw_gb_s": 38.9 * scale, "latency_us": 21.0 / scale},
    }


def peers() -> list[list[float | None]]:
    """Return the bandwidth between each two GPUs: four on each socket."""
    return [
        [None if a == b else (55.9 if a // 4 == b // 4 else 43.2) - 0.1 * abs(a - b) for b in range(8)]
        for a in range(8)
    ]


def server() -> dict[str, Any]:
    """Return the run of a server that got ready."""
    return {
        "timeline": [
            {"time_s": 0, "state": "STARTING"},
            {"time_s": 24, "state": "WARMING", "why": "weights are loaded"},
            {"time_s": 71.5, "state": "READY", "why": "32 of 32 tokens"},
        ],
        "startup_s": {
            "imports": 9.1,
            "NCCL": 4.4,
            "weights": 10.2,
            "KV cache": 1.3,
            "CUDA graphs": 21.4,
            "autotune": 18.8,
        },
        "throughput_tok_s": 3740.0,
        "floor_tok_s": 2600.0,
        "power_w": 2980.0,
        "log_excerpts": [*LOG],
    }


def samples(moments: int, step_s: float = 1.0) -> Iterator[dict[str, Any]]:
    """Yield samples of eight GPUs: idle, a minute of heat, a pause, the server's load."""
    for moment in range(moments):
        part = moment / max(1, moments)
        busy = 1.0 if 0.25 < part < 0.45 else 0.62 if part > 0.6 else 0.03
        for gpu in range(8):
            wave = math.sin(moment / 7 + gpu)
            yield {
                "time_s": moment * step_s,
                "gpu": gpu,
                "power_w": 30 + busy * (545 + 12 * wave - 9 * gpu),
                "temperature_c": 31 + gpu + busy * 42 + 2 * wave,
                "utilization_percent": 100.0 if busy > 0.5 else 1.0,
                "sm_clock_mhz": 2430.0 - 20 * gpu,
                "memory_used_mib": 512 + 88000 * busy,
                "throttle": [],
            }
