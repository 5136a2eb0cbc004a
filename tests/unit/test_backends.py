"""Which kernels a preset stands on."""

from __future__ import annotations

import pytest

from kiln import backends, presets
from kiln.probe import kernels_fp4, numerics, nvfp4
from kiln.settings import ROOT
from tests.patched import thing

pytestmark = pytest.mark.unit

PRESETS = presets.load_all(ROOT)
KNOWN = {case.name for case in numerics.CASES}


@pytest.mark.parametrize("preset", PRESETS.values(), ids=list(PRESETS))
def test_every_kernel_that_a_preset_stands_on_has_a_case(preset: presets.Preset) -> None:
    assert {*backends.cases(preset.model, preset.args)} <= KNOWN


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        (
            "dense-nvfp4",
            "attention_prefill_fp8/fa2 attention_decode_fp8/fa2 fp4_quantize/flashinfer fp4_gemm/cutlass "
            "sampling/flashinfer",
        ),
        (
            "glm5-nvfp4-story",
            "attention_mla_bf16/fa2 fp4_quantize/flashinfer fp4_gemm/cutlass moe_nvfp4/cutlass sampling/flashinfer",
        ),
        ("glm5-nvfp4", "fp4_quantize/flashinfer fp4_gemm/cutlass moe_nvfp4/cutlass sampling/flashinfer"),
    ],
)  # fmt: skip
def test_a_preset_names_its_kernels(name: str, wanted: str) -> None:
    assert backends.cases(PRESETS[name].model, PRESETS[name].args) == tuple(wanted.split())


def test_backends_of_other_libraries_have_no_case() -> None:
    assert backends.cases("a model", {"attention-backend": "triton", "moe-runner-backend": "triton"}) == ()


@pytest.mark.parametrize(
    ("capability", "asked"), [((9, 0), False), ((10, 0), True), ((11, 0), True), ((12, 0), True)], ids=str
)
def test_fp4_is_not_asked_of_a_gpu_whose_kernels_for_it_are_empty(
    capability: tuple[int, int], asked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def global_scale(torch: object, data: str) -> None:
        seen.append(data)
        raise ValueError(data)

    monkeypatch.setattr(nvfp4, "global_scale", global_scale)
    monkeypatch.setattr(kernels_fp4, "flashinfer", lambda: None)
    monkeypatch.setattr(kernels_fp4, "normal", lambda torch, *shape: "numbers")
    torch = thing(manual_seed=lambda seed: None, cuda=thing(get_device_capability=lambda: capability))
    (case,) = (case for case in numerics.CASES if case.name == "fp4_quantize/flashinfer")
    found = numerics.run(torch, case)
    assert bool(seen) is asked
    assert ("begins with compute capability 10.0" in found["not_run"]) is not asked
