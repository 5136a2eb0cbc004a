"""presets/: arguments are checked against the argument parser of the stack's own SGLang."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from kiln import presets, sglangargs, versions
from kiln.errors import UserError
from kiln.settings import ROOT
from kiln.sglangargs import Flag

pytestmark = pytest.mark.unit
GOOD = """\
model: "A model"
summary: "for a test"
sglang: ">=0.5.23,<0.6"
gpus: ["sm120"]
per_node: "8"
args:
  tp-size: "8"
  moe-runner-backend: "flashinfer_cutlass"
  trust-remote-code: "yes"
  max-running-requests: "64"
  cuda-graph-max-bs-decode: "64"
options:
  ipc:
    summary: "more"
    args: {fp8-gemm-backend: "cutlass"}
    environment: {SGLANG_ENABLE_PCIE_IPC_ALLREDUCE: "1"}
    evidence: "35.0 -> 48.1 tok/s"
evidence: ["none"]
"""
PRESET = "presets/some-model.yaml"


def problems_of(root: Path, text: str) -> list[str]:
    for name in ("versions.yaml", "locks/sglang/args-0.5.23.toml", "locks/sglang/args-0.5.9.toml"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, root / name)
    (root / "presets").mkdir(exist_ok=True)
    (root / PRESET).write_text(text, encoding="utf-8")
    return [str(problem) for problem in presets.problems(root, versions.load(root / "versions.yaml"))]


def test_a_good_preset_is_clean(tmp_path: Path) -> None:
    assert problems_of(tmp_path, GOOD) == []


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ('moe-runner-backend: "flashinfer_cutlass"', 'moe-runer-backend: "flashinfer_cutlass"',
         "8: args.moe-runer-backend: SGLang 0.5.23 has no such argument\n  hint: did you mean 'moe-runner-backend'?"),
        ("flashinfer_cutlass", "flashinfer_cutlas",
         "8: args.moe-runner-backend: 'flashinfer_cutlas' is none of SGLang 0.5.23's choices\n"
         "  hint: did you mean 'flashinfer_cutlass'? known: "),
        ("flashinfer_cutlass", "auto",
         "8: args.moe-runner-backend: what `auto` means changes between releases\n  hint: name the backend"),
        ('trust-remote-code: "yes"', 'trust-remote-code: "1"',
         "9: args.trust-remote-code: takes no value, '1' is given\n  hint: write \"yes\", or remove the line"),
        ('  max-running-requests: "64"\n', "",
         "6: args: max-running-requests is missing\n"
         "  hint: the autotuner tunes up to it, and the KV cache is planned with it"),
        ('decode: "64"', 'decode: "512"',
         "11: args.cuda-graph-max-bs-decode: '512' is not a number up to 256\n"
         "  hint: capturing more runs out of memory on 96 GB"),
        ("cuda-graph-max-bs-decode", "cuda-graph-max-bs",
         "11: args.cuda-graph-max-bs: SGLang 0.5.23 has no such argument\n  hint: did you mean 'cuda-graph-"),
        ("args: {fp8", "args: {fp9", "15: options.ipc.args.fp9-gemm-backend: SGLang 0.5.23 has no such argument"),
        (">=0.5.23,<0.6", ">=0.6", "3: sglang: no stack has >=0.6\n  hint: stacks have: 0.5.23, 0.5.9"),
        (">=0.5.23,<0.6", "new", "3: sglang: 'new' cannot be read\n  hint: a PEP 440 range: >=0.5.23,<0.6"),
        ('["sm120"]', '["sm12"]', "4: gpus: there is no GPU 'sm12'\n  hint: did you mean 'sm120'?"),
        ('summary: "for a test"\n', "", "1: the key 'summary' is missing"),
    ],
)  # fmt: skip
def test_a_bad_preset_is_refused_with_its_line(tmp_path: Path, old: str, new: str, expected: str) -> None:
    assert GOOD.count(old) == 1
    (found,) = problems_of(tmp_path, GOOD.replace(old, new))
    assert found.startswith(f"{PRESET}:{expected}")


def test_a_preset_is_checked_against_every_stack_that_it_is_meant_for(tmp_path: Path) -> None:
    found = problems_of(tmp_path, GOOD.replace(">=0.5.23,<0.6", ">=0.5.9,<0.6"))
    assert [line.splitlines()[0] for line in found] == [
        f"{PRESET}:11: args.cuda-graph-max-bs-decode: SGLang 0.5.9 has no such argument"
    ]


def test_a_missing_lock_of_arguments_is_told(tmp_path: Path) -> None:
    problems_of(tmp_path, GOOD)
    (tmp_path / "locks/sglang/args-0.5.23.toml").unlink()
    found = presets.problems(tmp_path, versions.load(tmp_path / "versions.yaml"))
    assert [str(one) for one in found] == [
        "locks/sglang/args-0.5.23.toml: this lock does not exist\n  hint: inv lock --args"
    ]


def test_arguments_are_words_for_the_server_and_options_add_theirs(tmp_path: Path) -> None:
    problems_of(tmp_path, GOOD)
    preset = presets.load_all(tmp_path)["some-model"]
    assert preset.words()[:2] == ["--cuda-graph-max-bs-decode", "64"]
    assert preset.words()[-1] == "--trust-remote-code"
    assert "--fp8-gemm-backend" not in preset.words()
    assert preset.words(("ipc",))[2:4] == ["--fp8-gemm-backend", "cutlass"]


def test_the_real_presets_name_every_backend_that_they_can() -> None:
    found = presets.load_all(ROOT)
    assert {"glm5-nvfp4", "glm5-nvfp4-story"} < set(found)
    for name in ("glm5-nvfp4", "glm5-nvfp4-story"):
        assert {"attention-backend", "moe-runner-backend", "fp4-gemm-backend", "fp8-gemm-backend",
                "sampling-backend", "kv-cache-dtype"} <= set(found[name].args)  # fmt: skip


CALLS = """
CHOICES = ["a", "b"]
MORE = [*CHOICES, "c"]
parser.add_argument("--one", "--uno", type=str, choices=MORE)
parser.add_argument("--two", action="store_true")
parser.add_argument("--three", nargs="+", type=int, choices=[1, 2])
parser.add_argument("--four", choices=[*CHOICES, *unknown()])
other.add("--five")
"""
FIELDS = """
class Space:
    model_path: A[str, Arg(help="x", aliases=["--model"])]
    loud: A[bool, "a help"] = False
    sizes: A[Optional[List[int]], "many"] = None
    kind: A[Optional[Literal["x", "y"]], Arg(cli_name="--sort")] = None
    backend: A[str, Arg(choices=CHOICES, type_parser=parse)] = "a"
    hidden: A[str, Arg(no_cli=True)] = ""
    rank: A[int, Derived(doc="no flag")]
    plain: int = 1
"""


def test_both_ways_to_declare_an_argument_are_read() -> None:
    found = {flag.name: flag for flag in sglangargs.extract({"a.py": CALLS, "b.py": FIELDS})}
    assert found == {
        "--one": Flag("--one", "one", ("a", "b", "c")), "--uno": Flag("--uno", "one", ("a", "b", "c")),
        "--two": Flag("--two", "none"), "--three": Flag("--three", "many", ("1", "2")), "--four": Flag("--four", "one"),
        "--model-path": Flag("--model-path", "one"), "--model": Flag("--model", "one"),
        "--loud": Flag("--loud", "none"),
        "--sizes": Flag("--sizes", "many"), "--sort": Flag("--sort", "one", ("x", "y")),
        "--backend": Flag("--backend", "one", ("a", "b")),
    }  # fmt: skip


def test_a_lock_of_arguments_is_read_as_it_was_written(tmp_path: Path) -> None:
    flags = sglangargs.extract({"a.py": CALLS})
    file = tmp_path / sglangargs.lock_path("1.0+kiln.x")
    file.parent.mkdir(parents=True)
    file.write_text(sglangargs.dump(flags))
    assert set(sglangargs.load(tmp_path, "1.0").values()) == flags


def test_no_argument_at_all_is_no_lock() -> None:
    with pytest.raises(UserError, match="no argument is declared there"):
        sglangargs.extract({"a.py": "x = 1\n"})


@pytest.mark.parametrize("version", ["0.5.9", "0.5.23"])
def test_the_real_locks_have_what_presets_need(version: str) -> None:
    flags = sglangargs.load(ROOT, version)
    assert {"--model-path", "--tp-size", "--max-running-requests", "--kv-cache-dtype"} <= set(flags)
    assert "flashinfer_cutlass" in flags["--moe-runner-backend"].choices
    assert flags["--disable-shared-experts-fusion"].takes == "none"
