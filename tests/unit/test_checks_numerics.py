"""Checks of kernel numerics, over made facts."""

from __future__ import annotations

from typing import Any

import pytest

from kiln import checks, topologies
from kiln.facts import Facts
from kiln.settings import ROOT
from kiln.verdict import Finding, Verdict
from tests import gpufacts
from tests.gpufacts import ended, hung, point

pytestmark = pytest.mark.unit

TOPOLOGY = topologies.load_all(ROOT)["any"]
CHECKS = {check.name: check for check in checks.load_all() if check.phase == "numerics"}


def judge(name: str, **made: Any) -> list[Finding]:
    asked = made.pop("asked", [])
    facts = gpufacts.facts(numerics={**gpufacts.numerics(**made), "asked": asked})
    found = CHECKS[f"numerics/{name}"].run(facts, TOPOLOGY)
    return [one for one in found if one.verdict is not Verdict.PASS] or list(found)


def test_right_kernels_pass_with_their_cosine() -> None:
    found = judge("kernels")
    assert [one.subject for one in found] == ["rmsnorm/flashinfer", "fp4_gemm/cutlass"]
    assert found[0].message == "2 row counts, cosine 1.0000 or more"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"all_zero": True, "cosine": 0.0, "worst_row": 0.0, "zero_rows": 3072}, "3072 rows: all zero"),
        ({"not_finite": 128}, "3072 rows: 128 numbers are NaN or infinite"),
        ({"zero_rows": 2}, "3072 rows: 2 rows of zeros"),
        ({"cosine": 0.93, "worst_row": 0.88}, "3072 rows: cosine 0.930, worst row 0.880"),
        ({"cosine": 0.999, "worst_row": 0.5}, "3072 rows: cosine 0.999, worst row 0.500"),
    ],
)
def test_a_kernel_that_is_wrong_for_one_row_count_fails(change: dict[str, Any], message: str) -> None:
    (found,) = judge("kernels", fp4_gemm__b12x={"points": [point(1536), point(3072, **change)]})
    assert (found.verdict, found.subject, found.message) == (Verdict.FAIL, "fp4_gemm/b12x", message)
    assert found.cause
    assert found.cure


def test_a_kernel_that_breaks_the_context_fails_with_its_words() -> None:
    died = {"ended": ended("exit", "CUDA error: an illegal memory access was encountered", 1)}
    (found,) = judge("kernels", moe_nvfp4__cutlass=died)
    assert (found.verdict, found.message) == (Verdict.FAIL, "CUDA error: an illegal memory access was encountered")
    assert found.cause.startswith("the kernel breaks the GPU's context")


def test_a_kernel_that_is_compiled_at_run_time_fails() -> None:
    (found,) = judge("kernels", moe_nvfp4__cutlass={"ended": hung()})
    assert found.cause.startswith("it is compiled at run time")


def test_a_row_count_that_is_refused_fails() -> None:
    refused = {"rows": 1, "refused": "ValueError: M must be a multiple of 4"}
    (found,) = judge("kernels", fp8_gemm__cutlass={"points": [refused, point(128)]})
    assert found.message == "refuses 1 rows: ValueError: M must be a multiple of 4"


MISSING = {"fp4_gemm__trtllm": {"not_run": "BackendSupportedError: mm_fp4 does not support backend 'trtllm'"}}


def test_a_backend_that_the_preset_uses_must_be_there() -> None:
    (found,) = judge("kernels", asked=["fp4_gemm/*"], **MISSING)
    assert (found.verdict, found.subject) == (Verdict.FAIL, "fp4_gemm/trtllm")
    assert found.message == "is not run: BackendSupportedError: mm_fp4 does not support backend 'trtllm'"


def test_a_backend_that_nothing_uses_may_be_missing() -> None:
    assert {one.verdict for one in judge("kernels", **MISSING)} == {Verdict.PASS}
    (found,) = judge("coverage", **MISSING)
    assert (found.verdict, found.required) == (Verdict.NOT_RUN, False)


def test_a_backend_without_a_test_is_not_run() -> None:
    made = {**gpufacts.numerics(), "asked": ["moe/humming"], "unknown": ["moe/humming"]}
    found = CHECKS["numerics/kernels"].run(gpufacts.facts(numerics=made), TOPOLOGY)
    assert (found[-1].verdict, found[-1].message) == (Verdict.NOT_RUN, "there is no test of moe/humming")


def test_without_facts_nothing_passes() -> None:
    for check in CHECKS.values():
        assert [one.verdict for one in check.run(Facts(), TOPOLOGY)] == [Verdict.NOT_RUN]
