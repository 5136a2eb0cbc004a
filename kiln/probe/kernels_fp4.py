"""NVFP4: quantization, matrix products of each backend, and the fused mixture of experts in BF16 and NVFP4."""

from __future__ import annotations

from functools import partial
from typing import Any

from . import nvfp4
from .child import NotRun
from .kernel import Case, flashinfer, normal

_N, _K = 2048, 4096
_EXPERTS, _TOP = 8, 2
_HIDDEN, _INNER = 1024, 1024
# cvt.e2m1x2 begins with this compute capability. FlashInfer 0.7.2 compiles its kernels for 9.0 too, without a body: an
# H200 returned what was in memory before (2026-11-30).
_QUANTIZES_FROM = (10, 0)
_BACKENDS = ("cutlass", "cudnn", "trtllm", "cute-dsl", "b12x")


def _quantized(torch: Any, data: Any, shuffle: bool = False) -> tuple[Any, Any, Any]:
    """Return packed numbers, their block scales and the global scale, by the kernel that engines use."""
    if torch.cuda.get_device_capability() < _QUANTIZES_FROM:
        raise NotRun("FlashInfer's NVFP4 quantization begins with compute capability 10.0: below it, kernels are empty")
    scale = nvfp4.global_scale(torch, data)
    library = flashinfer()
    packed, scales = library.nvfp4_quantize(data, scale, sfLayout=library.SfLayout.layout_128x4, do_shuffle=shuffle)
    return packed, scales, scale


def _quantize(torch: Any, rows: int) -> tuple[Any, Any]:
    data = normal(torch, rows, _K)
    return nvfp4.dequantize(torch, *_quantized(torch, data)), data.double()


def _gemm(torch: Any, rows: int, backend: str) -> tuple[Any, Any]:
    """Compare with the exact product of the quantized operands: what is left is the kernel's own error."""
    a, b = _quantized(torch, normal(torch, rows, _K)), normal(torch, _N, _K)
    plain = _quantized(torch, b)
    weights = _quantized(torch, b, shuffle=True) if backend == "trtllm" else plain
    got = flashinfer().mm_fp4(
        a[0], weights[0].T, a[1], weights[1].T, 1 / (a[2] * weights[2]), torch.bfloat16, backend=backend
    )
    return got, nvfp4.dequantize(torch, *a) @ nvfp4.dequantize(torch, *plain).T


def _routing(torch: Any, rows: int) -> tuple[Any, Any]:
    weights, experts = torch.softmax(torch.randn(rows, _EXPERTS, device="cuda"), -1).topk(_TOP, -1)
    return (weights / weights.sum(-1, keepdim=True)).float(), experts.int()


def _mixture(torch: Any, data: Any, first: Any, second: Any, weights: Any, experts: Any) -> Any:
    """Compute a mixture of experts in float64; the first matrix of each holds the linear half, then the gate."""
    want = torch.zeros(data.shape[0], second.shape[1], dtype=torch.float64, device="cuda")
    for expert in range(_EXPERTS):
        rows, places = torch.where(experts == expert)
        up, gate = (data[rows] @ first[expert].T).chunk(2, -1)
        inner = torch.nn.functional.silu(gate) * up
        want.index_add_(0, rows, (inner @ second[expert].T) * weights[rows, places, None].double())
    return want


def _moe_bf16(torch: Any, rows: int) -> tuple[Any, Any]:
    data = normal(torch, rows, _HIDDEN)
    first, second = normal(torch, _EXPERTS, 2 * _INNER, _HIDDEN) / 8, normal(torch, _EXPERTS, _HIDDEN, _INNER) / 8
    weights, experts = _routing(torch, rows)
    got = flashinfer("flashinfer.fused_moe").cutlass_fused_moe(
        data, experts, weights, first, second, torch.bfloat16, quant_scales=None
    )
    return _tensor(got), _mixture(torch, data.double(), first.double(), second.double(), weights, experts)


def _experts_fp4(torch: Any, weights: Any) -> tuple[Any, Any, Any, Any]:
    """Quantize each expert: packed numbers, block scales, global scales, and what they stand for."""
    each = [_quantized(torch, weights[expert]) for expert in range(_EXPERTS)]
    packed, scales, scale = (torch.stack([one[part].contiguous() for one in each]) for part in range(3))
    return packed, scales, scale.flatten(), torch.stack([nvfp4.dequantize(torch, *one) for one in each])


def _moe_nvfp4(torch: Any, rows: int) -> tuple[Any, Any]:
    data = normal(torch, rows, _HIDDEN)
    first = _experts_fp4(torch, normal(torch, _EXPERTS, 2 * _INNER, _HIDDEN) / 8)
    second = _experts_fp4(torch, normal(torch, _EXPERTS, _HIDDEN, _INNER) / 8)
    weights, experts = _routing(torch, rows)
    packed, scales, scale = _quantized(torch, data)
    # The largest number between the two products: its scale is what a checkpoint has from its calibration.
    between = torch.full((1,), 6.0 * 448.0 / 256.0, device="cuda")
    got = flashinfer("flashinfer.fused_moe").cutlass_fused_moe(
        packed, experts, weights, first[0].view(torch.long), second[0].view(torch.long), torch.bfloat16,
        quant_scales=[
            scale[0], first[1].view(torch.int32), 1 / (scale[0] * first[2]),
            between[0], second[1].view(torch.int32), 1 / (between[0] * second[2]),
        ],
        input_sf=scales,
    )  # fmt: skip
    exact = nvfp4.dequantize(torch, packed, scales, scale)
    return _tensor(got), _mixture(torch, exact, first[3], second[3], weights, experts)


def _tensor(got: Any) -> Any:
    """Return the result itself: some releases return it in a list."""
    return got[0] if isinstance(got, (list, tuple)) else got


CASES = (
    Case("fp4_quantize/flashinfer", _quantize),
    *(Case(f"fp4_gemm/{backend}", partial(_gemm, backend=backend)) for backend in _BACKENDS),
    Case("moe_bf16/cutlass", _moe_bf16),
    Case("moe_nvfp4/cutlass", _moe_nvfp4),
)
