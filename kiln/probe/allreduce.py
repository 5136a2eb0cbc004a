"""All-reduce at 2, 4 and 8 ranks: values checked on every rank, bus bandwidth and latency, NCCL's transports.

The well known failure is a hang and no error, so every group runs in child processes with a deadline. A group that
fails is run again with NCCL_P2P_DISABLE=1, which tells whether peer access is the cause.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from . import children, gpu, host, nccllog
from .children import Ended, Limits, Work

P2P_OFF = {"NCCL_P2P_DISABLE": "1"}
# What NCCL is to tell of itself, unless the environment says otherwise.
_DEBUG = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,ENV,GRAPH"}


def facts(argv: list[str], faults: list[dict[str, str]]) -> dict[str, Any]:
    """Run every group that there are GPUs for; the environment's NCCL_* are honoured and recorded."""
    options = _parse(argv)
    gpus = gpu.inventory(faults) if options.device == "cuda" else []
    indexes = [one["gpu"] for one in gpus] or list(range(max(options.ranks) if options.device == "cpu" else 0))
    counts = [count for count in options.ranks if count <= len(indexes)]
    return {
        "backend": options.backend, "device": options.device, "gpus": len(indexes),
        "environment": {name: value for name, value in sorted(os.environ.items()) if name.startswith("NCCL_")},
        "asked": options.ranks, "not_run": [n for n in options.ranks if n > len(indexes)],
        "groups": [_group(members, options) for count in counts for members in groups(indexes, count)],
    }  # fmt: skip


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="allreduce")
    parser.add_argument("--ranks", type=lambda text: [int(word) for word in text.split(",")], default=[2, 4, 8])
    parser.add_argument("--deadline", type=float, default=120, help="seconds for one group")
    parser.add_argument("--backend", default="nccl", help="gloo is for tests of this program only")
    parser.add_argument("--device", default="cuda", help="cpu is for tests of this program only")
    parser.add_argument("--fault", default="", help="for tests: kill:RANK, hang:RANK or wrong:RANK in mid all-reduce")
    return parser.parse_args(argv)


def groups(indexes: list[int], count: int) -> list[list[int]]:
    """Choose groups of `count`: all that follow each other, but of pairs only the first, the middle and the outer one.

    The three pairs cross each boundary that there may be: within a switch, between sockets, from end to end.
    """
    if count == 2:
        middle = len(indexes) // 2
        pairs = [indexes[:2], indexes[middle - 1 : middle + 1], [indexes[0], indexes[-1]]]
        return [pair for place, pair in enumerate(pairs) if pair not in pairs[:place]]
    return [indexes[at : at + count] for at in range(0, len(indexes) - count + 1, count)]


def _group(members: list[int], options: argparse.Namespace) -> dict[str, Any]:
    first = _run(members, options, {})
    bad = not first["good"] and not any(rank["ended"]["not_run"] for rank in first["ranks"])
    off = os.environ.get("NCCL_P2P_DISABLE") == "1"
    again = bad and not off and not options.fault and options.backend == "nccl"
    return {"gpus": members, **first, "without_p2p": _run(members, options, P2P_OFF) if again else None}


def _run(members: list[int], options: argparse.Namespace, env: dict[str, str]) -> dict[str, Any]:
    """Run one group once: what each rank did, the numbers of the slowest rank, and what NCCL said."""
    debug = {key: os.environ.get(key, value) for key, value in _DEBUG.items()}
    with tempfile.TemporaryDirectory(prefix="kiln-allreduce-") as folder:
        shared = ["--world", len(members), "--store", f"{folder}/store", "--backend", options.backend]
        shared += ["--device", options.device, "--fault", options.fault]
        works = [
            Work(".rank", [str(word) for word in ("--rank", rank, "--gpu", index, *shared)], {**debug, **env})
            for rank, index in enumerate(members)
        ]
        before = _segments()
        found = children.together(works, Limits(options.deadline))
        _remove(_segments() - before)
    ranks = [{"rank": rank, "gpu": members[rank], **_rank(ended)} for rank, ended in enumerate(found)]
    return {
        "good": all(ended.good and not ended.not_run for ended in found) and not any(one["wrong"] for one in ranks),
        "ranks": ranks, "numbers": _numbers(found), "nccl": nccllog.read([ended.output for ended in found]),
    }  # fmt: skip


def _segments() -> set[str]:
    """Return NCCL's segments of shared memory that no process has mapped."""
    return set((host.shm([]) or {}).get("stale_nccl", ()))


def _remove(names: set[str]) -> None:
    """Remove what killed ranks left behind; a node whose /dev/shm fills up starts no server any more."""
    for name in names:
        with suppress(OSError):
            (Path("/dev/shm") / name).unlink()


def _rank(ended: Ended) -> dict[str, Any]:
    """Say how far a rank came and how many of its values were wrong."""
    done = [record for record in ended.records if "bytes" in record]
    wrong = sum(record["wrong"] for record in done)
    steps = [record["step"] for record in ended.records if "step" in record]
    return {"step": steps[-1] if steps else "start", "wrong": wrong, "ended": ended.as_dict()}


def _numbers(found: list[Ended]) -> list[dict[str, Any]]:
    """Return time and bus bandwidth per size, of the slowest rank; only sizes that all ranks did."""
    times: dict[int, list[float]] = {}
    for ended in found:
        for record in ended.records:
            if "bytes" in record:
                times.setdefault(record["bytes"], []).append(record["seconds"])
    world = len(found)
    # Bus bandwidth as nccl-tests defines it: each byte crosses the bus 2(n-1)/n times in an all-reduce.
    return [
        {
            "bytes": size, "latency_us": round(max(of) * 1e6, 2),
            "busbw_gb_s": round(size / max(of) * 2 * (world - 1) / world / 1e9, 3),
        }
        for size, of in sorted(times.items()) if len(of) == world
    ]  # fmt: skip
