"""Kernel tables and sets: globs choose modules, every set resolves, and the costs are what the README promises."""

from __future__ import annotations

import argparse
import importlib
import itertools
import tomllib
from pathlib import Path
from typing import Any

import pytest

from kiln import kernels, versions
from kiln.errors import UserError
from kiln.settings import ROOT

pytestmark = pytest.mark.unit

TABLE = """\
flashinfer = "0.7.2"
gpu = "sm120"
arch = "12.0f"
modules = [
    {name = "page", units = 2, core_s = 26, peak_mb = 446, measured = true},
    {name = "norm", units = 2, core_s = 29, peak_mb = 583},
    {name = "fused_moe_120", units = 96, core_s = 9000, peak_mb = 7700},
]
"""
PREFILL = (
    "batch_prefill_with_kv_cache_dtype_q_bf16_dtype_kv_{kv}_dtype_o_bf16_dtype_idx_i32_head_dim_qk_{dim}_head_dim_vo_{dim}"
    "_posenc_0_use_swa_False_use_logits_cap_False_f16qk_False_kv_stride_equal"
)


@pytest.fixture(scope="module")
def data() -> versions.Versions:
    return versions.load(ROOT / "versions.yaml")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a checkout with one small table."""
    file = tmp_path / kernels.table_file("0.7.2", "sm120")
    file.parent.mkdir(parents=True)
    file.write_text(TABLE, encoding="utf-8")
    return tmp_path


def image_script(name: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Import a script that runs inside the flashinfer image, with the scripts beside it."""
    monkeypatch.syspath_prepend(str(ROOT / "images" / "flashinfer"))
    return importlib.import_module(name)


def chosen(data: versions.Versions, kernel_set: str, gpu: str, version: str = "0.7.2") -> tuple[kernels.Module, ...]:
    return kernels.select(kernels.load_table(ROOT, version, gpu), data.globs(kernel_set, gpu))


def test_globs_choose_modules_by_name_and_each_once(root: Path) -> None:
    table = kernels.load_table(root, "0.7.2+kiln.0123abcd", "sm120")
    assert [module.name for module in kernels.select(table, ["p*", "page", "n?rm"])] == ["norm", "page"]


def test_an_estimate_sums_units_and_seconds_and_takes_the_largest_peak(root: Path) -> None:
    cost = kernels.estimate(kernels.load_table(root, "0.7.2", "sm120").modules)
    assert cost == kernels.Estimate(units=100, core_s=9055, peak_mb=7700)
    assert kernels.estimate(()) == kernels.Estimate(0, 0, 0)


def test_every_glob_that_matches_nothing_is_refused_at_once_with_what_is_close(root: Path) -> None:
    with pytest.raises(UserError) as caught:
        kernels.select(kernels.load_table(root, "0.7.2", "sm120"), ["pages", "page", "zzz_*"])
    assert [problem.message for problem in caught.value.problems] == [
        "kernel glob 'pages' matches no module",
        "kernel glob 'zzz_*' matches no module",
    ]
    assert caught.value.problems[0].hint == "close to it: page"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "no kernel table for FlashInfer 0.7.2 on sm120"),
        ("modules = [", "not a kernel table: "),
        ('flashinfer = "0.7.2"', "not a kernel table: 'modules'"),
        ('modules = [{name = "page", unit = 2}]', "not a kernel table: "),
    ],
)
def test_a_table_that_is_missing_or_broken_names_the_command_that_writes_it(
    root: Path, text: str | None, message: str
) -> None:
    file = root / kernels.table_file("0.7.2", "sm120")
    file.unlink() if text is None else file.write_text(text, encoding="utf-8")
    with pytest.raises(UserError) as caught:
        kernels.load_table(root, "0.7.2", "sm120")
    (problem,) = caught.value.problems
    assert problem.message.startswith(message)
    assert problem.source == "locks/kernels/flashinfer-0.7.2-sm120.toml"
    assert kernels.COMMAND in problem.hint


@pytest.mark.parametrize("gpu", ["sm120", "sm90"])
@pytest.mark.parametrize("kernel_set", ["ci", "core", "dense", "moe", "glm5", "full"])
def test_a_set_resolves_on_both_gpus(data: versions.Versions, kernel_set: str, gpu: str) -> None:
    assert chosen(data, kernel_set, gpu)


def test_the_stack_of_the_story_resolves_its_set(data: versions.Versions) -> None:
    story = data.stack("story")
    assert chosen(data, story.kernels, "sm120", story.components["flashinfer"])


def test_each_set_holds_the_one_it_extends(data: versions.Versions) -> None:
    sets = [set(chosen(data, name, "sm120")) for name in ("core", "moe", "glm5", "full")]
    assert all(inner < outer for inner, outer in itertools.pairwise(sets))
    assert sets[0] < set(chosen(data, "dense", "sm120")) < sets[-1]


def test_core_holds_what_sglang_plans_for_a_dense_model(data: versions.Versions) -> None:
    names = {module.name for module in chosen(data, "core", "sm120")}
    assert {PREFILL.format(kv="bf16", dim=dim) for dim in (64, 128, 256)} <= names
    assert PREFILL.format(kv="e4m3", dim=128) in names
    assert {"sampling", "norm", "cascade", "fp4_quantization_120f", "fp4_gemm_cutlass_sm120"} <= names
    assert not any("fused_moe" in name or name == "topk" for name in names)
    assert "topk" in {module.name for module in chosen(data, "glm5", "sm120")}


def test_core_but_for_the_nvfp4_gemm_compiles_within_thirty_core_minutes(data: versions.Versions) -> None:
    """docs/adr/0007: a dense NVFP4 model calls it, and it alone is most of that budget."""
    light = [module for module in chosen(data, "core", "sm120") if module.name != "fp4_gemm_cutlass_sm120"]
    assert kernels.estimate(light).core_s <= 30 * 60


@pytest.mark.parametrize("gpu", ["sm120", "sm90"])
def test_the_ci_set_is_six_modules_of_two_core_minutes(data: versions.Versions, gpu: str) -> None:
    modules = chosen(data, "ci", gpu)
    assert len(modules) == 6
    assert kernels.estimate(modules).core_s <= 120


def test_generated_units_out_of_order_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    write_ninja = image_script("write_ninja", monkeypatch)
    units = [Path(f"/g/{name}") for name in ("a.cu", "z.generated.cu", "b.generated.cu", "c.generated.cu")]
    assert write_ninja.unsorted_units(units) == ["/g/z.generated.cu"]
    assert write_ninja.unsorted_units(sorted(units)) == []


@pytest.mark.parametrize(
    ("membership", "files"),
    [
        ("0::/\n", ["memory.max"]),
        ("0::/a/b\n", ["a/b/memory.max", "a/memory.max", "memory.max"]),
        ("5:cpu:/x\n4:memory:/x\n", ["memory/x/memory.limit_in_bytes", "memory/memory.limit_in_bytes"]),
    ],
)
def test_memory_limits_are_looked_for_in_our_cgroup_and_all_above(
    membership: str, files: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    build_wheel = image_script("build_wheel", monkeypatch)
    assert list(build_wheel.cgroup_limit_files(membership, Path("/c"))) == [Path("/c") / file for file in files]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("nvcc error   : 'cicc' died due to signal 9 (Kill signal)", "smaller --jobs"),
        ("g++: fatal error: Killed signal terminated program cc1plus", "smaller --jobs"),
        ("FAILED: [code=137] /x/page.cuda.o", "smaller --jobs"),
        ("page.cu(3): error: identifier is undefined", "does not compile"),
    ],
)
def test_a_compiler_killed_for_memory_is_told_from_one_that_fails(
    line: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_wheel = image_script("build_wheel", monkeypatch)
    assert words in build_wheel.explain(["FAILED: [code=1] /x/page.cuda.o", line], jobs=3)


def test_units_are_compiled_before_the_local_version_enters_a_path(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The version is part of the workspace's path and so of every object: two kernel sets would share no unit."""
    build_wheel = image_script("build_wheel", monkeypatch)
    wheel = tmp_path / "x.whl"
    wheel.write_bytes(b"")
    (tmp_path / "modules.txt").write_text("page\n")
    order: list[str] = []

    def pack(*args: Any) -> Path:
        order.append("pack")
        return wheel

    for name in ("unpack", "link_data", "compile_environment", "compile_modules", "jobs_of"):
        monkeypatch.setattr(build_wheel, name, lambda *args, name=name: order.append(name))
    monkeypatch.setattr(build_wheel, "write_ninja", lambda *args: [])
    monkeypatch.setattr(build_wheel, "set_local_version", lambda *args: order.append("version"))
    monkeypatch.setattr(build_wheel.pack_wheel, "pack", pack)
    monkeypatch.setattr(build_wheel.shutil, "rmtree", lambda *args: None)
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1")
    arguments = argparse.Namespace(
        work=tmp_path / "work", modules=tmp_path / "modules.txt", source=tmp_path, local_version="kiln.0", ccache=None,
        out=tmp_path,
    )  # fmt: skip
    build_wheel.build(arguments)
    assert [step for step in order if step in ("compile_modules", "version", "pack")] == [
        "compile_modules", "version", "pack",
    ]  # fmt: skip


def test_modules_keep_the_order_of_their_file_and_each_comes_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_wheel = image_script("build_wheel", monkeypatch)
    file = tmp_path / "modules.txt"
    file.write_text("topk # long\npage\n\n# none\ntopk\nact\n")
    assert build_wheel.read_names(file) == ["topk", "page", "act"]


def test_rows_that_the_enumeration_wrote_are_read_as_toml_reads_them() -> None:
    for path in (ROOT / "locks/kernels").glob("*.toml"):
        text = path.read_text()
        rows = kernels._rows(text)
        assert rows == [kernels.Module(**row) for row in tomllib.loads(text)["modules"]]
        assert rows == kernels._rows(text.replace("modules = [", "modules = [ # by hand")), path.name
