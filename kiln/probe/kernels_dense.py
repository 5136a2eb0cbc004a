"""Norm, activation, rotary embedding, sampling, BF16 and FP8 matrix products."""

from __future__ import annotations

from functools import partial
from typing import Any

from .kernel import Case, flashinfer, normal

_HIDDEN = 4096
_N, _K = 2048, 4096
_HEADS, _DIM = 8, 128
_EPSILON = 1e-6
_FP8_MAX = 448.0
_GROUP = 128


def _rmsnorm(torch: Any, rows: int) -> tuple[Any, Any]:
    data, weight = normal(torch, rows, _HIDDEN), normal(torch, _HIDDEN)
    exact = data.double()
    want = exact * torch.rsqrt(exact.pow(2).mean(-1, keepdim=True) + _EPSILON) * weight.double()
    return flashinfer().rmsnorm(data, weight, _EPSILON), want


def _silu_and_mul(torch: Any, rows: int) -> tuple[Any, Any]:
    data = normal(torch, rows, 2 * _HIDDEN)
    gate, up = data.double().chunk(2, dim=-1)
    return flashinfer().silu_and_mul(data), torch.nn.functional.silu(gate) * up


def _rope(torch: Any, rows: int) -> tuple[Any, Any]:
    query, key = normal(torch, rows, _HEADS * _DIM), normal(torch, rows, _DIM)
    at = torch.arange(rows, device="cuda") * 7
    angles = at[:, None].double() * 1e4 ** (-torch.arange(0, _DIM, 2, device="cuda").double() / _DIM)
    steps = torch.arange(rows * 7, device="cuda")[:, None].double()
    table = steps * 1e4 ** (-torch.arange(0, _DIM, 2, device="cuda").double() / _DIM)
    cache = torch.cat((table.cos(), table.sin()), dim=-1).float()
    got = flashinfer().rope.apply_rope_with_cos_sin_cache(at, query, key, _DIM, cache, True)
    want = [_rotate(torch, one.double().view(rows, -1, _DIM), angles).reshape(rows, -1) for one in (query, key)]
    return torch.cat(tuple(got), dim=-1), torch.cat(want, dim=-1)


def _rotate(torch: Any, data: Any, angles: Any) -> Any:
    """Turn the first half of each head against the second, as NeoX and Llama do."""
    first, second = data.chunk(2, dim=-1)
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def _top_k(torch: Any, rows: int) -> tuple[Any, Any]:
    probabilities = torch.softmax(torch.randn(rows, 32768, device="cuda") * 3, dim=-1)
    values, places = probabilities.double().topk(50, dim=-1)
    want = torch.zeros_like(probabilities, dtype=torch.float64).scatter(-1, places, values)
    return flashinfer().sampling.top_k_renorm_probs(probabilities, 50), want / want.sum(-1, keepdim=True)


def _bf16(torch: Any, rows: int) -> tuple[Any, Any]:
    a, b = normal(torch, rows, _K), normal(torch, _N, _K)
    return a @ b.T, a.double() @ b.double().T


def fp8(torch: Any, data: Any, dims: Any = None) -> tuple[Any, Any]:
    """Quantize to E4M3; returns the numbers and the scale that gives them back, over all or along `dims`."""
    largest = data.float().abs().max() if dims is None else data.float().abs().amax(dims, keepdim=True)
    scale = (largest / _FP8_MAX).clamp_min(1e-12)
    return (data.float() / scale).clamp(-_FP8_MAX, _FP8_MAX).to(torch.float8_e4m3fn), scale


def _operands(torch: Any, rows: int, dims: Any = None) -> tuple[Any, Any, Any, Any, Any]:
    """Return two quantized matrices with their scales, and the exact product of what they stand for."""
    (a, a_scale), (b, b_scale) = (fp8(torch, normal(torch, count, _K), dims) for count in (rows, _N))
    return a, a_scale, b, b_scale, (a.double() * a_scale.double()) @ (b.double() * b_scale.double()).T


def _scaled_mm(torch: Any, rows: int) -> tuple[Any, Any]:
    a, a_scale, b, b_scale, want = _operands(torch, rows)
    return torch._scaled_mm(a, b.T, a_scale, b_scale, out_dtype=torch.bfloat16), want


def _scaled_mm_rows(torch: Any, rows: int) -> tuple[Any, Any]:
    a, a_scale, b, b_scale, want = _operands(torch, rows, -1)
    return torch._scaled_mm(a, b.T, a_scale, b_scale.T, out_dtype=torch.bfloat16), want


def _bmm_fp8(torch: Any, rows: int, backend: str) -> tuple[Any, Any]:
    a, a_scale, b, b_scale, want = _operands(torch, rows)
    got = flashinfer().bmm_fp8(a[None], b[None].transpose(-1, -2), a_scale, b_scale, torch.bfloat16, backend=backend)
    return got[0], want


def _groupwise(torch: Any, rows: int) -> tuple[Any, Any]:
    """One scale for 128 numbers of a row of A, and for 128 × 128 of B, as DeepSeek-V3 does it."""
    rows = -(-rows // 4) * 4  # what the kernel asks for
    a, a_scale = fp8(torch, normal(torch, rows, _K // _GROUP, _GROUP), -1)
    b, b_scale = fp8(torch, normal(torch, _N // _GROUP, _GROUP, _K // _GROUP, _GROUP), (1, 3))
    exact = (a.double() * a_scale.double()).reshape(rows, _K), (b.double() * b_scale.double()).reshape(_N, _K)
    got = flashinfer("flashinfer.gemm").gemm_fp8_nt_groupwise(
        a.reshape(rows, _K), b.reshape(_N, _K), a_scale[..., 0].T.contiguous(),
        b_scale[:, 0, :, 0].T.contiguous(), scale_major_mode="MN", out_dtype=torch.bfloat16, backend="cutlass",
    )  # fmt: skip
    return got, exact[0] @ exact[1].T


CASES = (
    Case("rmsnorm/flashinfer", _rmsnorm),
    Case("silu_and_mul/flashinfer", _silu_and_mul),
    Case("rope/flashinfer", _rope),
    Case("sampling/flashinfer", _top_k, (1, 9, 128, 512)),
    Case("bf16_gemm/torch", _bf16),
    Case("fp8_gemm/torch", _scaled_mm),
    Case("fp8_gemm_rowwise/torch", _scaled_mm_rows),
    *(Case(f"fp8_gemm/{name}", partial(_bmm_fp8, backend=name)) for name in ("cublas", "cudnn", "cutlass")),
    Case("fp8_gemm_groupwise/cutlass", _groupwise),
)
