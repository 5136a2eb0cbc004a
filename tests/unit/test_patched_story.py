"""What each patch of stack `story` does: its test fails on the pinned source without the patch."""

from __future__ import annotations

import logging
import pathlib
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import patched
from tests.patched import thing

pytestmark = pytest.mark.unit
SERVER_ARGS = "sglang/srt/server_args.py"


def autotunes(tree: Path, backend: str) -> bool:
    """Ask SGLang whether it tunes for a MoE backend, on a GPU of compute capability 12."""
    ask = patched.function(
        tree / "sglang/srt/model_executor/model_runner.py", "ModelRunner._should_run_flashinfer_autotune",
        torch=thing(cuda=thing(get_device_capability=lambda: (12, 0))),
    )  # fmt: skip
    no = thing(is_eagle=lambda: False, is_standalone=lambda: False, is_ngram=lambda: False)
    args = thing(disable_flashinfer_autotune=False, moe_runner_backend=backend)
    return bool(ask(thing(server_args=args, spec_algorithm=no, is_draft_worker=False)))


def test_the_cutlass_moe_is_tuned() -> None:
    with patched.pair("autotune-the-cutlass-moe") as trees:
        assert [autotunes(tree, "flashinfer_cutlass") for tree in (trees.before, trees.after)] == [False, True]
        assert autotunes(trees.after, "flashinfer_mxfp4")
        assert not autotunes(trees.after, "triton")


def moe_runner(tree: Path, quantization: str | None, *, sm: int = 12, chosen: str = "auto") -> str:
    """Return the MoE runner that SGLang resolves for a model of the DeepSeek family."""
    piece = patched.statement(
        tree / SERVER_ARGS, "if is_sm100_supported()", holding="MoE runner backend on sm100 for DeepseekV3",
        is_sm100_supported=lambda: sm == 10, is_sm120_supported=lambda: sm == 12, model_arch="GlmMoeDsaForCausalLM",
        get_quantization_config=lambda config: quantization, hf_config=None, logger=logging.getLogger("sglang"),
        envs=thing(SGLANG_NVFP4_CKPT_FP8_NEXTN_MOE=thing(get=lambda: False)),
    )  # fmt: skip
    args: Any = thing(quantization=None, moe_a2a_backend="none", moe_runner_backend=chosen, speculative_algorithm=None)
    piece(args)
    return str(args.moe_runner_backend)


def test_nvfp4_experts_run_on_cutlass() -> None:
    with patched.pair("cutlass-moe-for-nvfp4-on-sm120") as trees:
        assert [moe_runner(tree, "modelopt_fp4") for tree in (trees.before, trees.after)] == [
            "auto", "flashinfer_cutlass",
        ]  # fmt: skip
        assert moe_runner(trees.after, "modelopt_fp4", chosen="triton") == "triton"
        assert moe_runner(trees.after, "fp8") == "auto"
        assert moe_runner(trees.after, "modelopt_fp4", sm=10) == "flashinfer_trtllm"


def ue8m0(tree: Path, sm: int) -> tuple[bool, bool]:
    """Return (DeepGEMM on, scales as UE8M0) as SGLang configures them for a GPU."""
    utils = thing(
        get_device_sm=lambda: sm, is_blackwell_supported=lambda: sm >= 100, is_sm120_supported=lambda: sm == 120
    )
    on = thing(envs=thing(SGLANG_ENABLE_JIT_DEEPGEMM=thing(get=lambda: True)))
    modules = {"sglang.srt.utils": utils, "sglang.srt.environ": on, "deep_gemm": thing()}
    found = patched.module(tree / "sglang/srt/layers/deep_gemm_wrapper/configurer.py", modules)
    return found["ENABLE_JIT_DEEPGEMM"], found["DEEPGEMM_SCALE_UE8M0"]


def test_deepgemm_scales_are_not_ue8m0_on_sm120() -> None:
    with patched.pair("no-ue8m0-scales-on-sm120") as trees:
        assert ue8m0(trees.before, 120) == (True, True)
        assert ue8m0(trees.after, 120) == (True, False)
        assert ue8m0(trees.after, 100) == (True, True)
        assert ue8m0(trees.after, 90) == (True, False)


def attention(tree: Path, sm: int, **given: str) -> tuple[str, str]:
    """Return (attention backend, KV type) that SGLang resolves for GLM-5, a model with DSA."""
    piece = patched.statement(
        tree / SERVER_ARGS, "if self.is_attention_backend_not_set()", holding="Use nsa attention backend",
        is_sm120_supported=lambda: sm == 12, logger=logging.getLogger("sglang"), envs=thing(),
    )  # fmt: skip
    args: Any = thing(**{"attention_backend": None, "kv_cache_dtype": "auto", **given})
    args.is_attention_backend_not_set = lambda: args.attention_backend is None
    piece(args)
    return args.attention_backend, args.kv_cache_dtype


def test_dsa_models_run_dense_mla_on_sm120() -> None:
    with patched.pair("dense-mla-for-dsa-on-sm120") as trees:
        assert attention(trees.before, 12) == ("nsa", "auto")
        assert attention(trees.after, 12) == ("flashinfer", "bfloat16")
        assert attention(trees.after, 12, kv_cache_dtype="fp8_e4m3") == ("flashinfer", "fp8_e4m3")
        assert attention(trees.after, 12, attention_backend="triton") == ("triton", "auto")
        assert attention(trees.after, 10) == ("nsa", "auto")


def test_the_fused_moe_waits_for_the_kernel_before_it() -> None:
    with patched.pair("pdl-in-the-sm120-fused-moe") as trees:
        define = "-DCUTLASS_ENABLE_GDC_FOR_SM100=1"
        flags = [
            patched.literals(tree / "flashinfer/jit/fused_moe.py", "gen_cutlass_fused_moe_sm120_module")
            for tree in (trees.before, trees.after)
        ]
        assert [define in found for found in flags] == [False, True]


class Folder:
    """A folder that lists its files in another order than their names'."""

    def rglob(self, pattern: str) -> list[Path]:
        return [Path("b.generated.cu"), Path("a.generated.cu")]

    def __truediv__(self, other: Path) -> Path:
        return other


def units(tree: Path) -> list[str]:
    """Return the generated units in the order in which they are linked."""
    import ast

    text = (tree / "flashinfer/jit/fused_moe.py").read_text(encoding="utf-8")
    found = [
        node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Starred) and "rglob" in ast.unparse(node)
    ]
    (starred,) = found
    listed: list[Path] = list(eval(ast.unparse(starred.value), {"output_dir": Folder()}))
    return [path.name for path in listed]


def test_generated_units_are_linked_in_the_order_of_their_names() -> None:
    with patched.pair("flashinfer/0003-sort-the-generated-fused-moe-units") as trees:
        assert units(trees.before) == ["b.generated.cu", "a.generated.cu"]
        assert units(trees.after) == ["a.generated.cu", "b.generated.cu"]


def fuses(tree: Path, sm: int) -> bool:
    """Ask SGLang's gate whether a small batch's all-reduce is fused with what follows it."""
    ask = patched.function(
        tree / "sglang/srt/layers/communicator.py", "apply_flashinfer_allreduce_fusion",
        _is_sm90_supported=sm == 9, _is_sm100_supported=sm == 10, _is_sm120_supported=sm == 12,
        _is_flashinfer_available=True, FUSE_ALLREDUCE_MAX_BATCH_SIZE=2048, is_dp_attention_enabled=lambda: False,
        get_global_server_args=lambda: thing(enable_flashinfer_allreduce_fusion=True),
    )  # fmt: skip
    return bool(ask(8))


def majors(tree: Path) -> list[int]:
    """Return the compute capabilities that FlashInfer's gate lets through."""
    given: dict[str, list[int]] = {}
    make = patched.function(
        tree / "flashinfer/jit/comm.py", "gen_trtllm_comm_module",
        current_compilation_context=thing(get_nvcc_flags_list=lambda supported_major_versions: given.update(
            majors=supported_major_versions)),
        gen_jit_spec=lambda *words, **more: None, jit_env=thing(FLASHINFER_CSRC_DIR=Path()),
    )  # fmt: skip
    make()
    return given["majors"]


def test_the_rejected_pair_opens_sglang_s_gate() -> None:
    with patched.pair("sglang/0005-allreduce-fusion-on-sm120") as trees:
        assert [fuses(tree, 12) for tree in (trees.before, trees.after)] == [False, True]
        assert fuses(trees.after, 10)


def test_the_rejected_pair_opens_flashinfer_s_gate() -> None:
    with patched.pair("flashinfer/0004-allreduce-fusion-on-sm120") as trees:
        assert [majors(tree) for tree in (trees.before, trees.after)] == [[9, 10], [9, 10, 12]]


@pytest.mark.parametrize(
    ("version", "cubins", "before", "after"),
    [
        ("0.6.3", "0.6.3", True, True),
        ("0.6.3+kiln.0123abcd", "0.6.3", False, True),
        ("0.6.3+kiln.0123abcd", "0.6.2", False, False),
        ("0.6.2", "0.6.3", False, False),
    ],
)
def test_a_wheel_of_ours_takes_the_cubins_of_its_release(version: str, cubins: str, before: bool, after: bool) -> None:
    with patched.pair("cubins-of-the-same-release") as trees:
        assert [imports_with_cubins(tree, version, cubins) for tree in (trees.before, trees.after)] == [before, after]


def imports_with_cubins(tree: Path, version: str, cubins: str) -> bool:
    """Say whether FlashInfer of a version gets over its check of flashinfer-cubin's."""
    folder = patched.function(
        tree / "flashinfer/jit/env.py", "_get_cubin_dir",
        has_flashinfer_cubin=lambda: True, flashinfer_version=version, pathlib=pathlib,
        os=thing(getenv=lambda name: None),
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "flashinfer_cubin", thing(__version__=cubins, get_cubin_dir=lambda: "/cubins"))
        try:
            return bool(folder() == Path("/cubins"))
        except RuntimeError:
            return False
