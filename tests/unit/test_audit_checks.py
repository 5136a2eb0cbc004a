"""The checks of `inv audit`, each on a good and a bad target, and the allow-list that judges what they find."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

import pytest

from kiln.audit import arch, fatbin, hollow, python, rules, symbols, toolchain
from kiln.audit.facts import Compiler, Facts
from kiln.audit.records import Record, Target, unpack_facts
from kiln.audit.rules import Allowed, Finding, Rules
from kiln.errors import UserError
from kiln.settings import ROOT

pytestmark = pytest.mark.unit

SITE = "opt/kiln/lib/python3.11/site-packages"
SM120 = fatbin.gpu("12.0")


def target(records: Iterable[Record], *, whole: bool = True) -> Target:
    return Target("t", whole, {record.path: record for record in records})


def binary(path: str, **facts: object) -> Record:
    return Record(path, 1, hashlib.sha256(path.encode()).hexdigest(), facts=Facts(**facts))  # type: ignore[arg-type]


def messages(found: Iterable[Finding]) -> list[str]:
    return sorted(f"{one.subject}: {one.message}" for one in found)


def distribution(name: str, version: str, files: dict[str, bytes] | None = None, *requires: str) -> list[Record]:
    lines = [f"{path},sha256={_encoded(data)},{len(data)}" for path, data in (files or {}).items()]
    text = f"Name: {name}\nVersion: {version}\n" + "".join(f"Requires-Dist: {one}\n" for one in requires)
    info = f"{SITE}/{name.replace('-', '_')}-{version}.dist-info"
    return [Record(f"{info}/METADATA", text=text), Record(f"{info}/RECORD", text="\n".join(lines))]


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def installed(path: str, data: bytes) -> Record:
    return Record(f"{SITE}/{path}", len(data), hashlib.sha256(data).hexdigest())


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"targets": {"sm_120f": 1, "sm_80": 1}, "parts": 1}, []),
        ({"targets": {"sm_80": 3, "sm_90a": 3}, "parts": 3}, ["no code: none of its targets runs on sm120"]),
        (
            {"targets": {"sm_80": 1, "ptx_90": 1}, "parts": 1},
            ["PTX only: the driver compiles it on sm120 at the first use"],
        ),
        (
            {"targets": {"sm_120": 1}, "parts": 1, "block_scaled": {"sm_120": 7}},
            ["plain FP4/MX: 7 FP4/MX kernels for plain sm_120, not sm_120a or f"],
        ),
        ({"targets": {"sm_120a": 1}, "parts": 1, "block_scaled": {"sm_120a": 7}}, []),
        ({"fault": "section outside"}, ["broken: can't be read: section outside"]),
    ],
)
def test_coverage_is_told(facts: dict[str, object], said: list[str]) -> None:
    assert messages(arch.check(target([binary(f"{SITE}/x/y.so", **facts)]), SM120, "sm120", {})) == said


@pytest.mark.parametrize(("name", "fails"), [("fp4_gemm_cutlass_sm120", True), ("mxfp8_quant", True), ("page", False)])
def test_an_fp4_module_by_its_name_needs_the_special_target(name: str, fails: bool) -> None:
    module = binary(
        f"{SITE}/flashinfer/data/aot/{name}/{name}.so", targets={"sm_120": 1}, kernels={"sm_120": 2}, parts=1
    )
    assert bool(list(arch.check(target([module]), SM120, "sm120", {}))) is fails


def all_reduce(version: str) -> tuple[Facts, tuple[Finding, ...]]:
    """Return the facts of csrc/trtllm_allreduce.cu, compiled with CUDA 13.0, and what the audit makes of them.

    0.6.3 for 12.0a after the rejected patch, 0.7.2 for 12.0f as it is.
    """
    facts = unpack_facts(json.loads((ROOT / "tests/data/audit" / f"trtllm_allreduce-{version}.json").read_text()))
    path = f"{SITE}/flashinfer/data/aot/trtllm_comm/trtllm_comm.so"
    found = hollow.check(target([Record(path, 1, "a", facts=facts)]))
    return facts, rules.load(ROOT).judge(found, "sm120", "story")


def test_flashinfer_0_6_3_with_its_gate_opened_fails_by_its_kernels_names() -> None:
    facts, (finding,) = all_reduce("0.6.3-gate-opened")
    assert finding.reason == ""
    assert finding.subject.endswith("::lamport_style_one_shot_all_reduce_norm_kernel")
    assert finding.message == "480 of 480 kernels for sm_120a are empty"
    assert len(set(finding.names)) == 480
    assert facts.kernels == {"sm_120a": 921}


def test_flashinfer_0_7_2_has_the_same_kernels_and_passes() -> None:
    facts, found = all_reduce("0.7.2")
    assert (facts.kernels, found) == ({"sm_120f": 921}, ())


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"undefined": ("cuTensorMapEncodeTiled",), "needed": ("libcuda.so.1",)}, []),
        (
            {"undefined": ("cuGetErrorName", "cuTensorMapEncodeTiled")},
            ["libcuda.so.1: calls cuGetErrorName, cuTensorMapEncodeTiled without libcuda.so.1 in NEEDED"],
        ),
        ({"undefined": ("cuFileRead",), "needed": ("libcufile.so.0",)}, []),
        ({"undefined": ("ncclSend",), "needed": ("libnccl.so.2",)}, []),
        ({"undefined": ("ncclSend",)}, ["libnccl.so: calls ncclSend without libnccl.so in NEEDED"]),
        (
            {"undefined": ("ncclCommResume",), "needed": ("libnccl.so.2",)},
            ["libnccl.so: calls ncclCommResume, which no libnccl.so here has"],
        ),
        ({"needed": ("libmpi.so.40",)}, ["libmpi.so.40: needs libmpi.so.40, which is nowhere in the image"]),
        ({"needed": ("libcuda.so.1", "libnvidia-ml.so.1")}, []),
        ({"search": ("$ORIGIN", "$ORIGIN/../lib", "${ORIGIN}/../../nvidia/lib")}, []),
        ({"search": ("",)}, ["RUNPATH: '' depends on the working directory"]),
        ({"search": ("lib",)}, ["RUNPATH: 'lib' depends on the working directory"]),
        (
            {"search": ("/build/x/lib",)},
            ["RUNPATH: '/build/x/lib' is not in the image: a path of the machine that built it"],
        ),
        ({"search": ("/usr/lib",)}, []),
        ({"search": ("$ORIGIN/" + "../" * 9 + "x",)}, ["RUNPATH: '$ORIGIN/" + "../" * 9 + "x' leads out of the root"]),
    ],
)
def test_symbols_and_search_paths_are_told(facts: dict[str, object], said: list[str]) -> None:
    libraries = [
        binary("usr/lib/libnccl.so.2", soname="libnccl.so.2", exported=("ncclSend",)),
        binary("usr/lib/libcufile.so.0", soname="libcufile.so.0", exported=("cuFileRead",)),
    ]
    assert messages(symbols.check(target([*libraries, binary(f"{SITE}/x/y.so", **facts)]))) == said


def test_in_a_wheel_what_others_bring_is_not_missing_but_an_absolute_path_is_odd() -> None:
    found = symbols.check(target([binary("x/y.so", needed=("libmpi.so.40",), search=("/usr/lib",))], whole=False))
    assert messages(found) == ["RUNPATH: '/usr/lib' is a path of the machine that built it"]


def test_in_a_wheel_cufile_s_functions_are_not_the_driver_s() -> None:
    calls = {"undefined": ("cuFileRead",), "needed": ("libcufile.so.0",)}
    assert messages(symbols.check(target([binary("torch/lib/x.so", **calls)], whole=False))) == []


def test_a_good_environment_passes() -> None:
    records = [
        *distribution("torch", "2.14.1", {"torch/a.py": b"a"}, "numpy>=2", "w; os_name == 'nt'", "x; extra == 'e'"),
        *distribution("numpy", "2.3.5"), *distribution("nvidia-cuda-runtime", "13.0.96"),
        *distribution("torchvision", "0.29.2"),
        *distribution("nvidia-nccl-cu13", "2.30.7"), installed("torch/a.py", b"a"),
    ]  # fmt: skip
    assert messages(python.check(target(records))) == []


@pytest.mark.parametrize(
    ("records", "said"),
    [
        (
            [*distribution("a", "1", {"f": b"1"}), installed("f", b"2")],
            "RECORD: 1 files are not what RECORD says: f",
        ),
        ([*distribution("a", "1", {"f": b"1"})], "missing files: 1 files of RECORD are missing: f"),
        (
            [*distribution("a", "1", {"f": b"1"}), *distribution("b", "1", {"f": b"2"}), installed("f", b"2")],
            "b: owns 1 files that b owns too, with other content: f",
        ),
        (
            [*distribution("nvidia-cuda-nvcc", "13.0.88"), *distribution("x-cu13", "1"), *distribution("y-cu12", "1")],
            "CUDA generation: is for CUDA 12, the others for 13",
        ),
        (
            [installed("nvidia/nccl/lib/libnccl.so.2", b"1"), installed("torch/lib/libnccl.so.2", b"2")],
            "NCCL: one of 2 different libnccl: nvidia/nccl/lib/libnccl.so.2, torch/lib/libnccl.so.2",
        ),
        (
            [*distribution("torch", "2.9+cu130"), *distribution("torchaudio", "2.9+cpu")],
            "local tags: mixed local tags: torch +cu130, torchaudio +cpu",
        ),
        (
            [*distribution("torch", "2.9+cu130"), *distribution("torchvision", "0.24")],
            "local tags: mixed local tags: torch +cu130, torchvision without",
        ),
        (
            [*distribution("flashinfer-cubin", "0.0.0+unknown")],
            "version: has version 0.0.0+unknown: it was built without its metadata",
        ),
        (
            [*distribution("a", "1", {}, "b>=2"), *distribution("b", "1")],
            "pip check: The package `a` requires `b>=2`, but `1` is installed",
        ),
        ([*distribution("a", "1", {}, "=b")], "pip check: The package `a` requires `=b`: not readable"),
        (
            [*distribution("a", "1", {}, "b>=2"), *distribution("b", "odd")],
            "pip check: The package `a` requires `b>=2`, but `odd` is installed",
        ),
        ([*distribution("a", "1", {}, "B-c")], "pip check: The package `a` requires `B-c`, but it's not installed"),
    ],
)
def test_a_broken_environment_is_told(records: list[Record], said: str) -> None:
    assert said in messages(python.check(target(records)))


def test_markers_are_those_of_the_image_s_python() -> None:
    needs = distribution("a", "1", {}, "b; python_full_version < '3.11.3'")
    old = Record("opt/kiln/pyvenv.cfg", text="home = /usr/bin\nversion_info = 3.11.2\n")
    new = Record("opt/kiln/pyvenv.cfg", text="version_info = 3.11.9\n")
    assert [len(messages(python.check(target([*needs, config])))) for config in (old, new)] == [1, 0]


def toolkit(*without: str, targets: tuple[str, ...] = ("sm_90a", "sm_120a")) -> Target:
    root = f"{SITE}/nvidia/cu13"
    headers = [Record(f"{root}/include/{name}") for name in toolchain.HEADERS if name not in without]
    compilers = [binary(f"{root}/bin/{name}", compiler=Compiler(targets, "13.0.88")) for name in ("nvcc", "ptxas")]
    return target([*headers, *compilers])


@pytest.mark.parametrize(
    ("built", "said"),
    [
        (toolkit(), []),
        (toolkit("cub/cub.cuh"), ["headers: the toolkit's headers lack cub/cub.cuh"]),
        (
            toolkit(targets=("sm_90a", "sm_120")),
            ["nvcc: release 13.0.88 does not know sm_120a", "ptxas: release 13.0.88 does not know sm_120a"],
        ),
    ],
)
def test_a_toolchain_is_judged_by_its_bytes(built: Target, said: list[str]) -> None:
    assert messages(toolchain.check(built, "120a")) == said


def test_an_entry_allows_what_it_names_and_nothing_else() -> None:
    entry = Allowed(file="torch/*", subject="*Empty", gpus=("sm120",), reason="empty by design of the library")
    judge = Rules(hollow=(entry,)).judge
    finding = Finding("hollow", "torch/lib/a.so", "cub::Empty", "1 of 1")
    assert [one.reason for one in judge([finding], "sm120", "")] == [entry.reason]
    assert [one.reason for one in judge([finding], "sm90", "")] == [""]
    assert [one.reason for one in judge([Finding("arch", "torch/lib/a.so", "cub::Empty", "")], "sm120", "")] == [""]


@pytest.mark.parametrize(
    ("names", "allowed"), [(("_Z1kILi8E",), True), (("_Z1kILi8E", "_Z1kILi4E"), False), ((), False)]
)
def test_an_entry_for_some_kernels_of_a_template_does_not_hide_its_others(
    names: tuple[str, ...], allowed: bool
) -> None:
    entry = Allowed(file="*", names="*kILi8E*", reason="empty by design on this GPU")
    [judged] = Rules(hollow=(entry,)).judge([Finding("hollow", "a.so", "k", "empty", names)], "sm120", "")
    assert bool(judged.reason) is allowed


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('hollow:\n  - file: "*"\n    reason: "ok"\n', "audit/allow.yaml:3: hollow[0].reason: 'ok' is no reason"),
        ('hollow:\n  - file: "*"\n', "audit/allow.yaml:2: hollow[0]: the key 'reason' is missing"),
        ("holow: []\n", "audit/allow.yaml:1: unknown key 'holow'"),
    ],
)
def test_an_allow_list_without_a_reason_is_refused_with_its_line(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "audit").mkdir()
    (tmp_path / rules.FILE).write_text(text)
    with pytest.raises(UserError) as caught:
        rules.load(tmp_path)
    assert said in str(caught.value)


def test_pip_check_s_allow_list_is_the_image_tests_own() -> None:
    line = "The package `sglang` requires `torch==2.9`, but it's not installed"
    _, patterns = python.allowed_lines(ROOT, "ci")
    assert any(pattern.search(line) for pattern in patterns)


@pytest.mark.parametrize(("stack", "explained"), [("story", True), ("current", False), ("ci", False)])
def test_a_toolkit_beside_torch_s_cuda_is_explained_for_the_story_alone(stack: str, explained: bool) -> None:
    pair = [*distribution("nvidia-cuda-nvcc", "13.0.88"), *distribution("x-cu12", "1"), *distribution("y-cu12", "1")]
    (finding,) = rules.load(ROOT).judge(python.check(target(pair)), "sm120", stack)
    assert (finding.message, bool(finding.reason)) == ("is for CUDA 13, the others for 12", explained)


@pytest.mark.parametrize(
    ("version", "allowed"), [("5.2.0", True), ("5.3.0", False), ("4.57.1", False)], ids=lambda value: str(value)
)
def test_the_story_s_other_transformers_is_explained_and_no_third_one(version: str, allowed: bool) -> None:
    line = f"The package `sglang` requires `transformers==4.57.1`, but `{version}` is installed"
    _, patterns = python.allowed_lines(ROOT, "story")
    assert any(pattern.search(line) for pattern in patterns) is allowed
