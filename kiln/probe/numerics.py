"""Kernels against references in float64, with a sweep of row counts: what each backend computes, in numbers.

A backend that is not installed, or says that it does not support this GPU, is not run, with its reason. One that
crashes the GPU's context costs itself only: the next one begins in a new process.
"""

from __future__ import annotations

import argparse
import json
from fnmatch import fnmatch
from typing import Any

from . import children, gpu, kernels_attention, kernels_dense, kernels_fp4
from .child import NotRun, Say
from .children import Limits, Work
from .kernel import Case

_LIMITS = Limits(deadline_s=1500, silence_s=240)
CASES: tuple[Case, ...] = (*kernels_dense.CASES, *kernels_attention.CASES, *kernels_fp4.CASES)


def facts(argv: list[str], faults: list[dict[str, str]]) -> dict[str, Any]:
    """Run the cases whose names fit --backends ("fp4_gemm/*,moe_nvfp4/cutlass"), all without it."""
    parser = argparse.ArgumentParser(prog="numerics")
    parser.add_argument("--backends", default="")
    asked = [word for word in parser.parse_args(argv).backends.split(",") if word]
    names = [case.name for case in CASES if not asked or any(fnmatch(case.name, word) for word in asked)]
    unknown = [word for word in asked if not any(fnmatch(case.name, word) for case in CASES)]
    gpus = gpu.inventory(faults)
    found = children.each(Work(".numerics"), names, _LIMITS) if gpus else {}
    reason = {"not_run": "there is no GPU"}
    return {
        "gpu": gpus[0]["name"] if gpus else None, "asked": asked, "unknown": unknown,
        "cases": [{"name": name, **found.get(name, reason)} for name in names],
    }  # fmt: skip


def work(argv: list[str], say: Say) -> None:
    """Run the cases of --items one after the other on the first GPU."""
    names = json.loads(argv[argv.index("--items") + 1])
    torch = gpu.torch()
    torch.cuda.set_device(0)
    say({"ready": True})
    for case in sorted((case for case in CASES if case.name in names), key=lambda case: names.index(case.name)):
        say({"item": case.name, **run(torch, case)})


def run(torch: Any, case: Case) -> dict[str, Any]:
    """Run a case for each row count; a row count that the backend refuses in words is a point with its reason."""
    torch.manual_seed(0)
    try:
        points = [_point(torch, case, rows) for rows in case.sweep]
    except NotRun as why:
        return {"not_run": str(why)}
    refusals = [point["refused"] for point in points]
    return {"not_run": refusals[0]} if all(refusals) else {"points": points}


def _point(torch: Any, case: Case, rows: int) -> dict[str, Any]:
    try:
        got, want = case.measure(torch, rows)
        torch.cuda.synchronize()
    except NotRun:
        raise
    except Exception as error:  # whatever a library raises is its answer
        if "CUDA error" in str(error):
            raise  # the context is lost: this child has to end
        return {"rows": rows, "refused": f"{type(error).__name__}: {error}".splitlines()[0][:300]}
    return {"rows": rows, "refused": None, **compare(torch, got, want)}


def compare(torch: Any, got: Any, want: Any) -> dict[str, Any]:
    """Return how near `got` comes: cosine of all and of the worst row, relative error, what is zero or no number."""
    got, want = got.to(torch.float64).reshape(-1, got.shape[-1]), want.to(torch.float64).reshape(-1, want.shape[-1])
    finite = torch.isfinite(got)
    kept = torch.where(finite, got, torch.zeros_like(got))
    rows = torch.nn.functional.cosine_similarity(kept, want, dim=-1, eps=1e-30)
    wanted = want.abs().amax(dim=-1) > 0
    whole = float(torch.nn.functional.cosine_similarity(kept.flatten(), want.flatten(), dim=0, eps=1e-30))
    return {
        "cosine": round(whole, 6), "worst_row": round(float(rows[wanted].min()) if wanted.any() else 1.0, 6),
        "relative_error": round(float((kept - want).norm() / want.norm().clamp_min(1e-30)), 6),
        "not_finite": int((~finite).sum()), "zero_rows": int(((kept == 0).all(dim=-1) & wanted).sum()),
        "all_zero": bool((got == 0).all()),
    }  # fmt: skip
