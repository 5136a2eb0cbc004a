"""What each patch of stack `current` does: its test fails on the pinned source without the patch."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from tests import patched
from tests.patched import thing

pytestmark = pytest.mark.unit


def generated(tree: Path, folder: Path, *, built: bool) -> list[str]:
    """Return what is generated when FlashInfer is asked for its SM120 FMHAv2 module."""
    calls: list[str] = []
    places = thing(
        FLASHINFER_JIT_DIR=folder, FLASHINFER_CSRC_DIR=folder, get_aot_artifacts=lambda uri: (uri,) if built else ()
    )
    make = patched.function(
        tree / "flashinfer/jit/attention/modules.py", "gen_trtllm_fmha_v2_sm120_module", jit_env=places,
        enumerate_kernels=lambda source, dest: calls.append(dest.name), gen_jit_spec=lambda *words, **more: None,
        current_compilation_context=thing(get_nvcc_flags_list=lambda supported_major_versions: []),
    )  # fmt: skip
    make()
    return calls


def test_a_built_fmha_v2_is_not_generated_again(tmp_path: Path) -> None:
    with patched.pair("no-generation-for-a-built-fmha-v2") as trees:
        assert generated(trees.before, tmp_path, built=True) == ["trtllm_fmha_v2"]
        assert generated(trees.after, tmp_path, built=True) == []
        assert generated(trees.after, tmp_path, built=False) == ["trtllm_fmha_v2"]


def cache_path(tree: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, *, model: str, hidden: int = 6144) -> Path:
    """Return where SGLang keeps the tuned tactics of a model that lies at `model`."""
    monkeypatch.setitem(__import__("sys").modules, "flashinfer", thing(__version__="0.7.2"))
    config = thing(architectures=["GlmMoeDsaForCausalLM"])
    runner: Any = thing(
        device=0, dtype="bfloat16", is_draft_worker=False, model_config=thing(hf_config=config, hidden_size=hidden)
    )
    ask = patched.function(
        tree / "sglang/srt/model_executor/runner/flashinfer_autotune.py", "flashinfer_autotune_cache_path", Path=Path,
        torch=thing(cuda=thing(get_device_capability=lambda device: (12, 0))), hashlib=hashlib,
        get_model=lambda: thing(model_path=model, quantization="modelopt_fp4"),
        get_exec=lambda: thing(moe=thing(moe_runner_backend="flashinfer_cutlass")),
        get_parallel=lambda: thing(tp_size=8, pp_size=1, attn_dp_size=1, moe_ep_size=1, tp_rank=0, pp_rank=0,
                                   dp_rank=0),
        get_flashinfer_autotune_skip_ops=lambda runner: set(),
        envs=thing(SGLANG_CACHE_DIR=thing(get=lambda: str(folder))),
    )  # fmt: skip
    found: Path = ask(runner)
    return found


def test_tuned_tactics_are_found_wherever_the_weights_lie(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def paths(tree: Path) -> set[Path]:
        return {cache_path(tree, tmp_path, monkeypatch, model=model) for model in ("/model", "/data/glm-5-nvfp4")}

    with patched.pair("autotune-key-without-the-model-path") as trees:
        assert len(paths(trees.before)) == 2
        assert len(paths(trees.after)) == 1
        other = cache_path(trees.after, tmp_path, monkeypatch, model="/model", hidden=4096)
        assert other not in paths(trees.after)
