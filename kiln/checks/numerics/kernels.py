"""Every backend computes what the reference computes, for every row count."""

from __future__ import annotations

from collections.abc import Iterator

from kiln.checks.each import plural
from kiln.facts import Facts, known
from kiln.facts.numerics import CaseFacts, Point
from kiln.topologies import Topology
from kiln.verdict import Finding, failed, not_run, passed

# What FlashInfer's own tests ask of FP4; a wrong kernel is far below (field cases A3, A4, A9, A10).
COSINE = 0.98


def judge(facts: Facts, topology: Topology) -> Iterator[Finding]:
    """Judge each case that was run, or that was asked for and could not be run."""
    found = known(facts.numerics, "kernel numerics")
    for case in found.cases:
        if case.ended or case.points:
            yield _judge(case)
        elif found.asked:
            yield failed(
                f"is not run: {case.not_run}",
                case.name,
                cause="the preset uses this backend, and this image or this GPU does not have it",
                cure="name another backend in the preset, or build an image with it",
            )
    for name in found.unknown:
        yield not_run(f"there is no test of {name}", name)


def _judge(case: CaseFacts) -> Finding:
    if case.ended:
        known(None if case.ended.not_run else 1, case.name, case.ended.not_run or "")
        return _died(case)
    bad = [point for point in case.points if point.refused is None and wrong(point)]
    refused = [point for point in case.points if point.refused is not None]
    if bad:
        return failed(
            "; ".join(f"{plural(point.rows, 'row')}: {wrong(point)}" for point in bad),
            case.name,
            cause="the kernel computes something else: not compiled for this GPU, a fault of this release, or a race",
            cure="name another backend in the preset; inv audit looks for kernels without a body; take a newer release",
            worst_cosine=min(point.cosine or 0 for point in bad),
        )
    if refused:
        return failed(
            f"refuses {', '.join(str(point.rows) for point in refused)} rows: {refused[0].refused}",
            case.name,
            cause="the backend has no kernel for this number of rows, which a batch may have",
            cure="name another backend in the preset",
        )
    cosine = min(point.worst_row or 0 for point in case.points)
    return passed(f"{plural(len(case.points), 'row count')}, cosine {cosine:.4f} or more", case.name, cosine=cosine)


def wrong(point: Point) -> str:
    """Say what is wrong with one point; empty if nothing is."""
    if point.all_zero:
        return "all zero"
    if point.not_finite:
        return f"{point.not_finite} numbers are NaN or infinite"
    if point.zero_rows:
        return f"{plural(point.zero_rows, 'row')} of zeros"
    cosine, row = known(point.cosine, "the cosine"), known(point.worst_row, "the cosine of the worst row")
    if min(cosine, row) < COSINE:
        return f"cosine {cosine:.3f}, worst row {row:.3f}"
    return ""


def _died(case: CaseFacts) -> Finding:
    assert case.ended
    return failed(
        case.ended.error or "",
        case.name,
        cause="it is compiled at run time, which an image for serving must not need, or the kernel hangs"
        if case.ended.hung
        else "the kernel breaks the GPU's context: not compiled for this GPU, or a fault of this release",
        cure="add its module to the kernel set of the image; else name another backend in the preset",
    )
