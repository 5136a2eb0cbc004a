"""BF16 matrix products on all GPUs at once: TFLOP/s, whether results stay the same, and NVML samples meanwhile."""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from . import children, gpu, nvml, sampler
from .child import Say
from .children import Ended, Limits, Work

_EVERY_S = 0.5
_START_S = 90
_SIDE = 8192
_FLOP = 2 * _SIDE**3
_BATCH = 20  # products between two looks at the clock


def facts(argv: list[str], faults: list[dict[str, str]]) -> dict[str, Any]:
    """Load all GPUs; a GPU that reaches --stop-at ends it for all, before it falls off the bus."""
    options = _parse(argv)
    gpus = gpu.inventory(faults)
    lib = nvml.connect(faults) if gpus else None
    limits = _power_limits(lib, gpus) if lib else {}
    stopped: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="kiln-heat-") as place:

        def seen(sample: dict[str, Any]) -> None:
            if (sample["temperature_c"] or 0) >= options.stop_at and not stopped:
                stopped.append({"gpu": sample["gpu"], "temperature_c": sample["temperature_c"]})
                (Path(place) / "stop").touch()

        ended, samples = _load(options.seconds, gpus, place, lib, seen)
    return {
        "seconds": options.seconds, "stopped": stopped[0] if stopped else None,
        "gpus": [_row(one, child, limits.get(one["gpu"])) for one, child in zip(gpus, ended)], "samples": samples,
    }  # fmt: skip


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="heat")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--stop-at", type=float, default=88, help="degrees C at which the load is taken away")
    return parser.parse_args(argv)


def _power_limits(lib: Any, gpus: list[dict[str, Any]]) -> dict[int, float | None]:
    found = {
        index: sampler.value(lib, partial(lib.nvmlDeviceGetEnforcedPowerLimit, handle))
        for index, handle in sampler.handles(lib, gpus).items()
    }
    return {index: None if limit is None else limit / 1000 for index, limit in found.items()}


def _load(
    seconds: float, gpus: list[dict[str, Any]], folder: str, lib: Any, seen: Callable[[dict[str, Any]], None]
) -> tuple[list[Ended], list[dict[str, Any]]]:
    works = [
        Work(".heat", [str(one["gpu"]), str(len(gpus)), str(seconds), folder], name=f"GPU {one['gpu']}") for one in gpus
    ]
    # One that falls out does not end it for the others.
    limits = Limits(seconds + _START_S + 60, grace_s=seconds + _START_S)
    with sampler.sampling(lib, gpus if lib else [], _EVERY_S, seen) as samples:
        return children.together(works, limits), samples


def _row(one: dict[str, Any], ended: Ended, power_limit_w: float | None) -> dict[str, Any]:
    windows = [record for record in ended.records if "tflops" in record]
    return {
        "gpu": one["gpu"], "name": one["name"], "power_limit_w": power_limit_w,
        "tflops": [window["tflops"] for window in windows],
        "wrong": sum(window["wrong"] for window in windows) if windows else None,
        "ended": ended.as_dict(),
    }  # fmt: skip


def work(argv: list[str], say: Say) -> None:
    """Multiply until the time is over or a file `stop` is there: GPU, number of GPUs, seconds, folder."""
    index, count, seconds, folder = int(argv[0]), int(argv[1]), float(argv[2]), Path(argv[3])
    torch = gpu.torch()
    torch.cuda.set_device(index)
    torch.manual_seed(index)
    a, b = (torch.randn(_SIDE, _SIDE, device=f"cuda:{index}").to(torch.bfloat16) for _ in range(2))
    want = a @ b
    out = torch.empty_like(want)
    torch.cuda.synchronize()
    _together(folder, index, count)
    until = time.monotonic() + seconds
    while time.monotonic() < until and not (folder / "stop").exists():
        say(_window(torch, a, b, out, want))


def _together(folder: Path, index: int, count: int) -> None:
    """Wait until all are ready, or until one that never will be has had its time."""
    (folder / f"ready-{index}").touch()
    until = time.monotonic() + _START_S / 2
    while len([*folder.glob("ready-*")]) < count and time.monotonic() < until:
        time.sleep(0.05)


def _window(torch: Any, a: Any, b: Any, out: Any, want: Any) -> dict[str, Any]:
    """Multiply for about a second and compare the last result: the same kernel on the same numbers, so every bit."""
    done, began = 0, time.monotonic()
    while time.monotonic() - began < 1:
        for _ in range(_BATCH):
            torch.matmul(a, b, out=out)
        torch.cuda.synchronize()
        done += _BATCH
    took = time.monotonic() - began
    return {"tflops": round(done * _FLOP / took / 1e12, 1), "wrong": int((out != want).sum().item())}
