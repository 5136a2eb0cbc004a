"""Attention: torch's own, and FlashInfer's wrappers over a paged KV cache in BF16 and FP8, grouped queries and MLA."""

from __future__ import annotations

from functools import partial
from typing import Any

from .kernel import Case, flashinfer, normal

_QUERY_HEADS, _KV_HEADS, _DIM = 8, 2, 128
_PAGE = 16
_PREFILL = (1, 9, 16, 128, 1536, 2048)
_DECODE = (1, 9, 16, 128)
_LENGTHS = (1, 17, 64, 333, 1024)  # of the sequences in the cache, in turn
_LATENT, _ROPE = 512, 64
_SCALE = 0.5  # of FP8 keys and values: a scale that a kernel forgets is seen
_WORKSPACE = 128 << 20


def exact(torch: Any, query: Any, key: Any, value: Any, *, causal: bool, scale: float) -> Any:
    """Attend in float64: (tokens, heads, dim) each; a causal query's last token sees all keys."""
    group = query.shape[1] // key.shape[1]
    q, k, v = (one.double().transpose(0, 1) for one in (query, key, value))
    k, v = k.repeat_interleave(group, 0), v.repeat_interleave(group, 0)
    scores = q @ k.transpose(-1, -2) * scale
    if causal:
        late = torch.ones(scores.shape[-2:], dtype=torch.bool, device="cuda").triu(k.shape[1] - q.shape[1] + 1)
        scores = scores.masked_fill(late, float("-inf"))
    return (torch.softmax(scores, -1) @ v).transpose(0, 1)


def _sdpa(torch: Any, rows: int) -> tuple[Any, Any]:
    query, key, value = (normal(torch, rows, _QUERY_HEADS, _DIM) for _ in range(3))
    heads = [one.transpose(0, 1)[None] for one in (query, key, value)]
    got = torch.nn.functional.scaled_dot_product_attention(*heads, is_causal=True)[0].transpose(0, 1)
    return got, exact(torch, query, key, value, causal=True, scale=_DIM**-0.5)


class _Cache:
    """Sequences of some lengths in pages that lie in no order: FlashInfer's page table, and what it points to."""

    def __init__(self, torch: Any, lengths: list[int], shapes: list[tuple[int, ...]], dtype: Any) -> None:
        counts = [-(-length // _PAGE) for length in lengths]
        self.order = torch.randperm(sum(counts), device="cuda").int()
        self.indptr = _starts(torch, counts)
        self.last = torch.tensor([(length - 1) % _PAGE + 1 for length in lengths], dtype=torch.int32, device="cuda")
        self.lengths = lengths
        scale = 1.0 if dtype == torch.bfloat16 else _SCALE
        self.parts = [(normal(torch, sum(counts), _PAGE, *shape) / scale).to(dtype) for shape in shapes]
        self.exact = [part.double() * scale for part in self.parts]

    def sequence(self, number: int) -> list[Any]:
        """Return one sequence of each part, as exact numbers."""
        first, last = int(self.indptr[number]), int(self.indptr[number + 1])
        pages = self.order[first:last].long()
        return [part[pages].flatten(0, 1)[: self.lengths[number]] for part in self.exact]


def _starts(torch: Any, counts: list[int]) -> Any:
    return torch.tensor([sum(counts[:end]) for end in range(len(counts) + 1)], dtype=torch.int32, device="cuda")


def _lengths(count: int) -> list[int]:
    return [_LENGTHS[one % len(_LENGTHS)] for one in range(count)]


def _scales(torch: Any, dtype: Any) -> dict[str, float]:
    return {} if dtype == torch.bfloat16 else {"k_scale": _SCALE, "v_scale": _SCALE}


def _workspace(torch: Any) -> Any:
    return torch.zeros(_WORKSPACE, dtype=torch.uint8, device="cuda")


def _prefill(torch: Any, rows: int, backend: str, kind: str) -> tuple[Any, Any]:
    """Two sequences; half of the second one is in the cache already, as after a prefix hit."""
    dtype, counts = getattr(torch, kind), [rows, -(-rows // 2)]
    cache = _Cache(torch, [rows, 2 * counts[1]], [(_KV_HEADS, _DIM)] * 2, dtype)
    query = normal(torch, sum(counts), _QUERY_HEADS, _DIM)
    wrapper = flashinfer().BatchPrefillWithPagedKVCacheWrapper(_workspace(torch), "NHD", backend=backend)
    wrapper.plan(
        _starts(torch, counts), cache.indptr, cache.order, cache.last, _QUERY_HEADS, _KV_HEADS, _DIM, _PAGE,
        causal=True, q_data_type=torch.bfloat16, kv_data_type=dtype,
    )  # fmt: skip
    got = wrapper.run(query, tuple(cache.parts), **_scales(torch, dtype))
    parts = query.split(counts)
    want = [exact(torch, parts[one], *cache.sequence(one), causal=True, scale=_DIM**-0.5) for one in range(2)]
    return got, torch.cat(want)


def _decode(torch: Any, rows: int, backend: str, kind: str) -> tuple[Any, Any]:
    dtype = getattr(torch, kind)
    cache = _Cache(torch, _lengths(rows), [(_KV_HEADS, _DIM)] * 2, dtype)
    query = normal(torch, rows, _QUERY_HEADS, _DIM)
    wrapper = flashinfer().BatchDecodeWithPagedKVCacheWrapper(
        _workspace(torch), "NHD", use_tensor_cores=True, backend=backend
    )
    wrapper.plan(
        cache.indptr, cache.order, cache.last, _QUERY_HEADS, _KV_HEADS, _DIM, _PAGE,
        q_data_type=torch.bfloat16, kv_data_type=dtype,
    )  # fmt: skip
    got = wrapper.run(query, tuple(cache.parts), **_scales(torch, dtype))
    want = [
        exact(torch, query[one : one + 1], *cache.sequence(one), causal=False, scale=_DIM**-0.5) for one in range(rows)
    ]
    return got, torch.cat(want)


def _mla(torch: Any, rows: int, backend: str) -> tuple[Any, Any]:
    """Multi-head latent attention in decode: one latent head of 512 and a rotary part of 64, as GLM-5 has them."""
    cache = _Cache(torch, _lengths(rows), [(_LATENT,), (_ROPE,)], torch.bfloat16)
    scale = (_DIM + _ROPE) ** -0.5
    latent, rotary = normal(torch, rows, _QUERY_HEADS, _LATENT), normal(torch, rows, _QUERY_HEADS, _ROPE)
    wrapper = flashinfer("flashinfer.mla").BatchMLAPagedAttentionWrapper(_workspace(torch), backend=backend)
    lengths = torch.tensor(cache.lengths, dtype=torch.int32, device="cuda")
    wrapper.plan(
        _starts(torch, [1] * rows), cache.indptr, cache.order, lengths, _QUERY_HEADS, _LATENT, _ROPE, _PAGE, False,
        scale, torch.bfloat16, torch.bfloat16,
    )  # fmt: skip
    got = wrapper.run(latent, rotary, *cache.parts)
    query = torch.cat((latent, rotary), -1)
    want = []
    for one in range(rows):
        stored, turned = cache.sequence(one)
        key = torch.cat((stored, turned), -1)[:, None]
        want.append(exact(torch, query[one : one + 1], key, stored[:, None], causal=False, scale=scale))
    return got, torch.cat(want)


_KINDS = {"bf16": "bfloat16", "fp8": "float8_e4m3fn"}
CASES = (
    Case("attention/torch", _sdpa, _PREFILL),
    *(
        Case(f"attention_{name}_{short}/{backend}", partial(measure, backend=backend, kind=kind), sweep)
        for name, measure, sweep in (("prefill", _prefill, _PREFILL), ("decode", _decode, _DECODE))
        for short, kind in _KINDS.items()
        for backend in ("fa2", "fa3")
    ),
    Case("attention_mla_bf16/fa2", partial(_mla, backend="fa2"), _DECODE),
    Case("attention_mla_bf16/fa3", partial(_mla, backend="fa3"), _DECODE),
)
