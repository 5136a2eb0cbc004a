"""Which kernels a preset stands on: its arguments, as names of cases of the probe `numerics`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

# Models whose attention is latent (MLA): another kernel than that of grouped queries.
_LATENT = re.compile(r"glm-?5|deepseek|kimi", re.IGNORECASE)
_FP4_GEMM = {"flashinfer_cutlass": "cutlass", "flashinfer_cudnn": "cudnn", "flashinfer_trtllm": "trtllm"}
_FP4 = ("modelopt_fp4", "modelopt_mixed")


def cases(model: str, args: Mapping[str, str]) -> tuple[str, ...]:
    """Return the cases for FlashInfer's backends that are named; other backends have no case here."""
    return tuple(dict.fromkeys(_cases(model, args)))


def _cases(model: str, args: Mapping[str, str]) -> Iterator[str]:
    quantized = args.get("quantization") in _FP4
    if args.get("attention-backend") == "flashinfer":
        yield from _attention(model, args.get("kv-cache-dtype", "bf16"))
    gemm = _FP4_GEMM.get(args.get("fp4-gemm-backend", ""))
    if gemm and quantized:
        yield from ("fp4_quantize/flashinfer", f"fp4_gemm/{gemm}")
    if args.get("moe-runner-backend") == "flashinfer_cutlass":
        yield "moe_nvfp4/cutlass" if quantized else "moe_bf16/cutlass"
    if args.get("sampling-backend") == "flashinfer":
        yield "sampling/flashinfer"


def _attention(model: str, cache: str) -> Iterator[str]:
    if _LATENT.search(model):
        yield "attention_mla_bf16/fa2"
        return
    kind = "fp8" if cache.startswith("fp8") else "bf16"
    yield from (f"attention_{stage}_{kind}/fa2" for stage in ("prefill", "decode"))
