"""versions.yaml: what is accepted, what is refused and with which words, and what one block of it reaches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from kiln import versions
from kiln.errors import UserError
from kiln.settings import ROOT
from kiln.versions import Versions

pytestmark = pytest.mark.unit

GOOD = """\
defaults: {gpu: "sm120", stack: "now", image: "top"}
gpus:
  sm120:
    names: ["Card A", "Card B"]
    compute_capability: "12.0"
    per_node: "8"
    interconnect: "pcie"
    arch: {family: "12.0f", exact: "12.0a", torch: "12.0a", cmake: "120a"}
    nvcc_min: {family: "12.9", exact: "12.8"}
  sm90:
    names: ["Card H"]
    compute_capability: "9.0"
    per_node: "8"
    interconnect: "nvlink"
    arch: {family: "9.0a", exact: "9.0a", torch: "9.0a", cmake: "90a"}
    nvcc_min: {family: "12.0", exact: "12.0"}
stacks:
  now:
    summary: "the stack"
    python: "3.11"
    cuda: "13.0"
    arch_form: "family"
    kernels: "core"
    base: {suite: "bookworm", components: ["main"], security: "no"}
    components:
      torch: "2.14.1"
      flashinfer: "0.7.2"
    launcher: ["python", "-m", "server"]
    python_packages:
      low: ["nvidia-cuda-nvcc=={cuda}.*"]
      top: ["torch=={torch}", "flashinfer-cubin=={flashinfer}"]
    constraints: ["cuda-toolkit=={cuda}.*"]
kernel_sets:
  core: {summary: "few", modules: {all: ["page"]}}
  more: {summary: "more", extends: "core", modules: {all: ["moe_*", "page"], sm120: ["fp4"]}}
tools:
  uv: "0.13.9"
"""

TORCH = 'torch: "2.14.1"'
FLASHINFER = 'flashinfer: "0.7.2"'
LAUNCHER = 'launcher: ["python", "-m", "server"]'
FAMILY = 'family: "12.0f"'
SM120 = 'write "12.0f" or "12.0a"'
BASE = 'base: {suite: "bookworm", components: ["main"], security: "no"}'
DIGEST = "sha256:" + "a" * 64


def load(tmp_path: Path, text: str) -> Versions:
    file = tmp_path / "versions.yaml"
    file.write_text(text, encoding="utf-8")
    return versions.load(file)


def replaced(*pairs: tuple[str, str]) -> str:
    text = GOOD
    for old, new in pairs:
        assert text.count(old) == 1, f"{old!r} must be in the text once"
        text = text.replace(old, new)
    return text


def problems_of(tmp_path: Path, text: str) -> list[str]:
    with pytest.raises(UserError) as caught:
        load(tmp_path, text)
    assert caught.value.exit_code == 2
    return [str(problem) for problem in caught.value.problems]


def refused(case: str, old: str, new: str, message: str, hint: str) -> Any:
    return pytest.param(old, new, f"versions.yaml:{message}\n  hint: {hint}", id=case)


def test_the_good_text_loads_with_its_placeholders_filled_in(tmp_path: Path) -> None:
    loaded = load(tmp_path, GOOD)
    stack = loaded.stack("now")
    assert stack.requirements("low") == ("nvidia-cuda-nvcc==13.0.*",)
    assert stack.requirements("top") == ("torch==2.14.1", "flashinfer-cubin==0.7.2")
    assert stack.requirements("none") == ()
    assert stack.constraints == ("cuda-toolkit==13.0.*",)
    assert (loaded.gpu("sm120").sm, loaded.gpu("sm120").per_node, stack.base.security) == ("120", 8, False)
    assert loaded.gpu("sm120").arch.of(stack.arch_form) == "12.0f"
    assert loaded.globs("more", "sm120") == ("page", "moe_*", "fp4")
    assert loaded.globs("more", "sm90") == ("page", "moe_*")
    assert loaded.at("stacks.now.components.flashinfer") == "versions.yaml:27"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (TORCH, 'torch: "2.14.1+cu130"'),
        (TORCH, 'torch: "2.14.1+cpu"'),
        (TORCH, 'torch: "2.15.0rc1"'),
        (FLASHINFER, 'flashinfer: "0.7.2.post1"'),
        (BASE, f'base: {{image: "debian", digest: "{DIGEST}"}}'),
        (BASE, 'base: {suite: "bookworm", security: "yes"}'),
        (LAUNCHER, 'launcher: ["x"]\n    as_of: "2026-02-25"'),
        (LAUNCHER, 'launcher: ["x"]\n    gpus: ["sm90"]'),
        ('torch: "12.0a"', 'torch: "12.0f"'),
        ('uv: "0.13.9"', 'uv: "26.3"'),
    ],
)
def test_good_variants_are_accepted(tmp_path: Path, old: str, new: str) -> None:
    load(tmp_path, replaced((old, new)))


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        refused("partial version", FLASHINFER, 'flashinfer: "0.7"',
                "27: stacks.now.components.flashinfer: '0.7' is not an exact version",
                'write all 3 numbers, such as "0.7.0", then inv lock'),
        refused("unquoted version", FLASHINFER, "flashinfer: 0.7",
                "27: stacks.now.components.flashinfer: 0.7 is read as a number", 'quote it: "0.7"'),
        refused("branch", FLASHINFER, 'flashinfer: "main"',
                "27: stacks.now.components.flashinfer: 'main' is not an exact version: a branch or a tag can move",
                "write the release, then inv lock"),
        refused("short commit", FLASHINFER, 'flashinfer: "a1b2c3d"',
                "27: stacks.now.components.flashinfer: 'a1b2c3d' is a short commit, not an exact version",
                "write the release; add what it lacks as a patch"),
        refused("digits that may be a commit", FLASHINFER, 'flashinfer: "1234567"',
                "27: stacks.now.components.flashinfer: '1234567' is not an exact version",
                'write all 3 numbers, such as "1234567.0.0", then inv lock'),
        refused("full commit", FLASHINFER, f'flashinfer: "{"a1" * 20}"',
                f"27: stacks.now.components.flashinfer: '{'a1' * 20}' is a commit, not an exact version",
                "write the release; add what it lacks as a patch"),
        refused("range", FLASHINFER, 'flashinfer: ">=0.7.2"',
                "27: stacks.now.components.flashinfer: '>=0.7.2' is a range, not an exact version",
                "write the one release that the lock has, then inv lock"),
        refused("wildcard", FLASHINFER, 'flashinfer: "0.7.*"',
                "27: stacks.now.components.flashinfer: '0.7.*' is a range, not an exact version",
                "write the one release that the lock has, then inv lock"),
        refused("tag with a v", FLASHINFER, 'flashinfer: "v0.7.2"',
                "27: stacks.now.components.flashinfer: 'v0.7.2' is not in normal form", 'write "0.7.2"'),
        refused("torch of another CUDA", TORCH, 'torch: "2.14.1+cu128"',
                "26: stacks.now.components.torch: '2.14.1+cu128' is built for cu128, the stack for CUDA 13.0",
                'write "2.14.1" or "2.14.1+cu130"'),
        refused("cubin of another version", "flashinfer-cubin=={flashinfer}", "flashinfer-cubin==0.7.1",
                "31: stacks.now.python_packages.top[1]: 'flashinfer-cubin==0.7.1' contradicts flashinfer 0.7.2",
                'write "flashinfer-cubin=={flashinfer}"'),
        refused("root of another version", "torch=={torch}", "torch<2.14",
                "31: stacks.now.python_packages.top[0]: 'torch<2.14' contradicts torch 2.14.1",
                'write "torch=={torch}"'),
        refused("toolkit of another CUDA", "nvidia-cuda-nvcc=={cuda}.*", "nvidia-cuda-nvcc==12.8.*",
                "30: stacks.now.python_packages.low[0]: 'nvidia-cuda-nvcc==12.8.*' contradicts CUDA 13.0",
                'write "nvidia-cuda-nvcc=={cuda}.*"'),
        refused("constraint of another CUDA", "cuda-toolkit=={cuda}.*", "cuda-toolkit==13.5.1",
                "32: stacks.now.constraints[0]: 'cuda-toolkit==13.5.1' contradicts CUDA 13.0",
                'write "cuda-toolkit=={cuda}.*"'),
        refused("unknown placeholder", "torch=={torch}", "torch=={troch}",
                "31: stacks.now.python_packages.top[0]: there is no placeholder {troch}",
                "did you mean 'torch'? known: cuda, flashinfer, toolkit, torch"),
        refused("no requirement", "torch=={torch}", "torch ~ 2",
                "31: stacks.now.python_packages.top[0]: 'torch ~ 2' is not a requirement",
                "Expected semicolon (after name with no version specifier) or end"),
        refused("requirement by address", "torch=={torch}", "torch @ file:///torch.whl",
                "31: stacks.now.python_packages.top[0]: 'torch @ file:///torch.whl' names a place",
                "name the distribution: the lock finds its file"),
        refused("arch without suffix", FAMILY, 'family: "12.0"',
                "8: gpus.sm120.arch.family: '12.0' has no suffix: the kernels need what only an a or f target has",
                SM120),
        refused("arch with PTX", FAMILY, 'family: "12.0+PTX"',
                "8: gpus.sm120.arch.family: '12.0+PTX' ships PTX, which every start would compile again", SM120),
        refused("native arch", FAMILY, 'family: "native"',
                "8: gpus.sm120.arch.family: 'native' is the build machine's GPU, and a build needs none", SM120),
        refused("arch of another GPU", FAMILY, 'family: "12.1a"',
                "8: gpus.sm120.arch.family: '12.1a' is not this GPU: compute_capability is 12.0", SM120),
        refused("two archs", FAMILY, 'family: "12.0f;9.0a"',
                "8: gpus.sm120.arch.family: '12.0f;9.0a' is a list, and an image is compiled for one GPU", SM120),
        refused("arch in nvcc's spelling", FAMILY, 'family: "sm_120a"',
                "8: gpus.sm120.arch.family: 'sm_120a' is not a target that this consumer takes", SM120),
        refused("family where exact is due", 'exact: "12.0a"', 'exact: "12.0f"',
                "8: gpus.sm120.arch.exact: '12.0f' is not a target that this consumer takes", 'write "12.0a"'),
        refused("family before Blackwell", 'family: "9.0a"', 'family: "9.0f"',
                "15: gpus.sm90.arch.family: '9.0f' is not a target that this consumer takes", 'write "9.0a"'),
        refused("cmake with a dot", 'cmake: "120a"', 'cmake: "12.0a"',
                "8: gpus.sm120.arch.cmake: '12.0a' is not this GPU: compute_capability is 120",
                'write "120f" or "120a"'),
        refused("old nvcc", 'family: "12.9"', 'family: "13.1"',
                "21: stacks.now.cuda: nvcc 13.0 is older than 13.1, which sm120's 12.0f needs",
                "raise it to 13.1, try the other arch_form, or list the stack's GPUs in stacks.now.gpus"),
        refused("cuda with a patch level", 'cuda: "13.0"', 'cuda: "13.0.1"',
                "21: stacks.now.cuda: '13.0.1' is not MAJOR.MINOR", 'write two numbers, such as "13.0"'),
        refused("capability", 'compute_capability: "12.0"', 'compute_capability: "120"',
                "5: gpus.sm120.compute_capability: '120' is not a compute capability",
                'write it as `nvidia-smi --query-gpu=compute_cap` does: "12.0"'),
        refused("number of GPUs", 'per_node: "8"\n    interconnect: "pcie"', 'per_node: "x"\n    interconnect: "pcie"',
                "6: gpus.sm120.per_node: 'x' is not a whole number", 'write digits: "8"'),
        refused("no GPUs", 'per_node: "8"\n    interconnect: "pcie"', 'per_node: "0"\n    interconnect: "pcie"',
                "6: gpus.sm120.per_node: input should be greater than or equal to 1", "correct the value"),
        refused("interconnect", '"nvlink"', '"infiniband"',
                "14: gpus.sm90.interconnect: 'infiniband' is not one of the choices", "choices: 'pcie' or 'nvlink'"),
        refused("one card in two targets", '"Card H"', '"Card A"',
                "4: gpus.sm120.names[0]: 'Card A' is there twice",
                "keep it in one place: a node's GPU tells its target by this name\n"
                "versions.yaml:11: gpus.sm90.names[0]: 'Card A' is there twice\n"
                "  hint: keep it in one place: a node's GPU tells its target by this name"),
        refused("default GPU", 'gpu: "sm120"', 'gpu: "sm121"',
                "1: defaults.gpu: there is no GPU 'sm121'", "did you mean 'sm120'? known: sm120, sm90"),
        refused("default stack", 'stack: "now"', 'stack: "later"',
                "1: defaults.stack: there is no stack 'later'", "known: now"),
        refused("kernel set of a stack", 'kernels: "core"', 'kernels: "cor"',
                "23: stacks.now.kernels: there is no kernel set 'cor'", "did you mean 'core'? known: core, more"),
        refused("extends nothing", 'extends: "core"', 'extends: "base"',
                "35: kernel_sets.more.extends: there is no kernel set 'base'", "known: core, more"),
        refused("extends itself", 'extends: "core"', 'extends: "more"',
                "35: kernel_sets.more.extends: goes round: more -> more", "remove one `extends` of these"),
        refused("kernels of an unknown GPU", "sm120: [", "sm12: [",
                "35: kernel_sets.more.modules.sm12: there is no GPU 'sm12'",
                "did you mean 'sm120'? known: sm120, sm90"),
        refused("kernel set without modules", 'summary: "few", modules: {all: ["page"]}', 'summary: "few", modules: {}',
                "34: kernel_sets.core: has no modules",
                'add globs: modules: {all: ["…"]}; inv show lists the names'),
        refused("unknown key", 'python: "3.11"', 'pythn: "3.11"',
                "18: stacks.now: the key 'python' is missing",
                "add `python:` to this block\n"
                "versions.yaml:20: stacks.now: unknown key 'pythn'\n"
                "  hint: did you mean 'python'? known: arch_form, as_of, base, components, constraints, cuda, gpus, "
                "kernels, launcher, no_deps, overrides, python, python_packages, summary, toolkit"),
        refused("unknown key at the top", "tools:", "tool:",
                "1: the key 'tools' is missing",
                "add `tools:` to this block\nversions.yaml:36: unknown key 'tool'\n"
                "  hint: did you mean 'tools'? known: defaults, gpus, kernel_sets, promotion, stacks, tools"),
        refused("unknown key deep inside", "security:", "secure:",
                "24: stacks.now.base: unknown key 'secure'",
                "did you mean 'security'? known: components, digest, image, security, suite"),
        refused("a name beside the key", 'summary: "the stack"', 'summary: "the stack"\n    name: "x"',
                "20: stacks.now: unknown key 'name'", "its name is its key, 'now'"),
        refused("text for a list", LAUNCHER, 'launcher: "python"',
                "28: stacks.now.launcher: must be a list", 'write a list: ["…"]'),
        refused("list for a text", TORCH, 'torch: ["2.14.1"]',
                "26: stacks.now.components.torch: must be a text", "write one quoted value"),
        refused("block for a text", 'uv: "0.13.9"', 'uv: {a: "b"}',
                "37: tools.uv: must be a text", "write one quoted value"),
        refused("text for a block", BASE, 'base: "bookworm"',
                "24: stacks.now.base: must be a mapping", "write `key: value` lines below it"),
        refused("switch", 'security: "no"', 'security: "off"',
                "24: stacks.now.base.security: 'off' is neither \"yes\" nor \"no\"", "correct the value"),
        refused("base without digest", BASE, 'base: {image: "debian:12"}',
                "24: stacks.now.base: image 'debian:12' has no digest",
                "add digest: sha256 of the platform's manifest, as `skopeo inspect` prints it"),
        refused("short digest", BASE, 'base: {image: "debian", digest: "sha256:abc"}',
                "24: stacks.now.base.digest: 'sha256:abc' is not a digest",
                "write sha256: and 64 hex digits, of the platform's manifest"),
        refused("two bases", BASE, f'base: {{suite: "bookworm", image: "debian", digest: "{DIGEST}"}}',
                "24: stacks.now.base: has a suite and an image",
                "keep one: Debian packages of the lock, or an image"),
        refused("no base", BASE, 'base: {security: "no"}',
                "24: stacks.now.base: has neither a suite nor an image",
                'write suite: "bookworm", or image and digest'),
        refused("digest of a suite", BASE, f'base: {{suite: "bookworm", digest: "{DIGEST}"}}',
                "24: stacks.now.base.digest: belongs to an image", "remove it, or replace suite by image"),
        refused("date", LAUNCHER, 'launcher: ["x"]\n    as_of: "25.2.2026"',
                "29: stacks.now.as_of: '25.2.2026' is not a date", 'write YYYY-MM-DD: "2026-02-25"'),
        refused("GPU of a stack", LAUNCHER, 'launcher: ["x"]\n    gpus: ["sm91"]',
                "29: stacks.now.gpus[0]: there is no GPU 'sm91'", "did you mean 'sm90'? known: sm120, sm90"),
        refused("tool", 'uv: "0.13.9"', 'uv: "latest"',
                "37: tools.uv: 'latest' is not an exact version: a branch or a tag can move",
                "write the release, then inv lock"),
        refused("tool with one number", 'uv: "0.13.9"', 'uv: "4"',
                "37: tools.uv: '4' is not an exact version", 'write all 2 numbers, such as "4.0", then inv lock'),
        refused("name for a path", "  more: {summary", "  More!: {summary",
                "35: kernel_sets.More!: 'More!' is not a name",
                "use lower-case letters, digits, dots and dashes: the name goes into tags and paths"),
        refused("GPU's name and number", "  sm90:\n", "  sm91:\n",
                "10: gpus.sm91: is compute capability 9.0", "call it sm90"),
        refused("cuda as a component", TORCH, f'{TORCH}\n      cuda: "13.0.1"',
                "27: stacks.now.components.cuda: is a key of the stack, not a component", "set stacks.now.cuda"),
        refused("toolkit as a component", TORCH, f'{TORCH}\n      toolkit: "13.0.1"',
                "27: stacks.now.components.toolkit: is a key of the stack, not a component",
                "set stacks.now.toolkit"),
    ],
)  # fmt: skip
def test_bad_input_is_refused_with_its_line_and_the_next_step(
    tmp_path: Path, old: str, new: str, expected: str
) -> None:
    assert "\n".join(problems_of(tmp_path, replaced((old, new)))) == expected


TWO_CUDAS = (
    ('cuda: "13.0"', 'cuda: "12.8"\n    toolkit: "13.0"'),
    ("nvidia-cuda-nvcc=={cuda}.*", "nvidia-cuda-nvcc=={toolkit}.*"),
    ("cuda-toolkit=={cuda}.*", "nvidia-cuda-runtime-cu12=={cuda}.*"),
)
NO_NVCC = ("nvidia-cuda-nvcc=={toolkit}.*", "numpy")
TOOLKIT = 'toolkit: "13.0"'


def two_cudas(*pairs: tuple[str, str]) -> str:
    text = replaced(*TWO_CUDAS)
    for old, new in pairs:
        assert text.count(old) == 1, f"{old!r} must be in the text once"
        text = text.replace(old, new)
    return text


def test_a_stack_may_compile_with_another_cuda_than_torch_s(tmp_path: Path) -> None:
    stack = load(tmp_path, two_cudas()).stack("now")
    assert (stack.cuda, stack.toolkit, stack.nvcc) == ("12.8", "13.0", "13.0")
    assert stack.requirements("low") == ("nvidia-cuda-nvcc==13.0.*",)
    assert stack.constraints == ("nvidia-cuda-runtime-cu12==12.8.*",)


def test_without_a_toolkit_its_placeholder_is_the_stack_s_cuda(tmp_path: Path) -> None:
    stack = load(tmp_path, replaced(("nvidia-cuda-nvcc=={cuda}.*", "nvidia-cuda-nvcc=={toolkit}.*"))).stack("now")
    assert (stack.toolkit, stack.nvcc) == (None, "13.0")
    assert stack.requirements("low") == ("nvidia-cuda-nvcc==13.0.*",)


def test_torch_s_tag_is_that_of_its_own_cuda_not_of_the_toolkit(tmp_path: Path) -> None:
    load(tmp_path, two_cudas((TORCH, 'torch: "2.14.1+cu128"')))
    (problem,) = problems_of(tmp_path, two_cudas((TORCH, 'torch: "2.14.1+cu130"')))
    assert "'2.14.1+cu130' is built for cu130, the stack for CUDA 12.8" in problem


@pytest.mark.parametrize(
    ("pairs", "message", "hint"),
    [
        ([NO_NVCC, (TOOLKIT, 'toolkit: "13"')],
         "22: stacks.now.toolkit: '13' is not MAJOR.MINOR", 'write two numbers, such as "13.0"'),
        ([NO_NVCC, (TOOLKIT, 'toolkit: "12.8"'), ('family: "12.9"', 'family: "12.8"')],
         "22: stacks.now.toolkit: '12.8' is what cuda says already",
         "remove it: a stack without it compiles with torch's CUDA"),
        ([NO_NVCC, (TOOLKIT, 'toolkit: "11.8"'), ('family: "12.9"', 'family: "11.8"'),
          ('family: "12.0", exact', 'family: "11.8", exact')],
         "22: stacks.now.toolkit: '11.8' is older than CUDA 12.8 of torch",
         "remove it, or name the CUDA of a newer major"),
        ([NO_NVCC, (TOOLKIT, 'toolkit: "12.9"')],
         "22: stacks.now.toolkit: '12.9' is of the same major as CUDA 12.8 of torch",
         "remove it: the wheels of both have one name"),
        ([('family: "12.9"', 'family: "13.1"')],
         "22: stacks.now.toolkit: nvcc 13.0 is older than 13.1, which sm120's 12.0f needs",
         "raise it to 13.1, try the other arch_form, or list the stack's GPUs in stacks.now.gpus"),
        ([("nvidia-cuda-nvcc=={toolkit}.*", "nvidia-cuda-nvcc=={cuda}.*")],
         "31: stacks.now.python_packages.low[0]: 'nvidia-cuda-nvcc==12.8.*' contradicts toolkit 13.0",
         'write "nvidia-cuda-nvcc=={toolkit}.*"'),
        ([("nvidia-cuda-nvcc=={toolkit}.*", "cuda-toolkit[cublas]==13.1.*")],
         "31: stacks.now.python_packages.low[0]: 'cuda-toolkit[cublas]==13.1.*' contradicts toolkit 13.0",
         'write "cuda-toolkit=={toolkit}.*"'),
        ([("nvidia-cuda-runtime-cu12=={cuda}.*", "nvidia-cuda-runtime-cu12=={toolkit}.*")],
         "33: stacks.now.constraints[0]: 'nvidia-cuda-runtime-cu12==13.0.*' contradicts CUDA 12.8",
         'write "nvidia-cuda-runtime-cu12=={cuda}.*"'),
    ],
    ids=["malformed", "redundant", "older", "same major", "too old for the arch", "nvcc", "metapackage", "cu12"],
)  # fmt: skip
def test_a_toolkit_that_does_not_fit_is_refused(
    tmp_path: Path, pairs: list[tuple[str, str]], message: str, hint: str
) -> None:
    assert problems_of(tmp_path, two_cudas(*pairs)) == [f"versions.yaml:{message}\n  hint: {hint}"]


def test_a_longer_circle_of_kernel_sets_is_shown_whole(tmp_path: Path) -> None:
    text = replaced(('core: {summary: "few",', 'core: {summary: "few", extends: "more",'))
    assert [problem.splitlines()[0] for problem in problems_of(tmp_path, text)] == [
        "versions.yaml:34: kernel_sets.core.extends: goes round: core -> more -> core",
        "versions.yaml:35: kernel_sets.more.extends: goes round: more -> core -> more",
    ]


def test_all_problems_of_the_file_come_at_once_in_order(tmp_path: Path) -> None:
    text = replaced((FAMILY, 'family: "native"'), (TORCH, 'torch: "main"'), ('uv: "0.13.9"', 'uv: ">1"'))
    assert [problem.split(":")[1] for problem in problems_of(tmp_path, text)] == ["8", "26", "37"]


def test_a_stack_may_leave_out_a_gpu_that_its_nvcc_cannot_serve(tmp_path: Path) -> None:
    text = replaced(('family: "12.9"', 'family: "13.1"'), (LAUNCHER, f'gpus: ["sm90"]\n    {LAUNCHER}'))
    loaded = load(tmp_path, text)
    assert loaded.target("sm90", "now")[1].name == "now"
    with pytest.raises(UserError, match="stack 'now' is not meant for sm120") as caught:
        loaded.target("sm120", "now")
    assert caught.value.problems[0].source == "versions.yaml:28"


@pytest.mark.parametrize(
    ("kind", "name", "expected"),
    [
        ("gpu", "sm12", "there is no GPU 'sm12'\n  hint: did you mean 'sm120'? known: sm120, sm90"),
        ("stack", "x", "there is no stack 'x'\n  hint: known: now"),
        ("kernel_set", "full", "there is no kernel set 'full'\n  hint: known: core, more"),
    ],
)
def test_an_unknown_name_lists_the_known_ones(tmp_path: Path, kind: str, name: str, expected: str) -> None:
    with pytest.raises(UserError) as caught:
        getattr(load(tmp_path, GOOD), kind)(name)
    assert str(caught.value) == expected


def shuffled(value: Any, random: Any) -> Any:
    """Return the value with the keys of every mapping in another order."""
    if isinstance(value, dict):
        keys = list(value)
        random.shuffle(keys)
        return {key: shuffled(value[key], random) for key in keys}
    return [shuffled(item, random) for item in value] if isinstance(value, list) else value


@settings(max_examples=25, deadline=None)
@given(random=st.randoms(use_true_random=False))
def test_the_order_of_keys_does_not_change_what_is_loaded(
    tmp_path_factory: pytest.TempPathFactory, random: Any
) -> None:
    text = (ROOT / "versions.yaml").read_text(encoding="utf-8")
    tree = shuffled(yaml.safe_load(text), random)
    other = load(tmp_path_factory.mktemp("shuffled"), yaml.safe_dump(tree, sort_keys=False, default_style='"'))
    real = versions.load(ROOT / "versions.yaml")
    assert other == real
    for section in ("gpus", "stacks", "kernel_sets", "tools"):
        assert list(getattr(other, section)) == list(getattr(real, section))
    assert [stack.model_dump_json() for stack in other.stacks.values()] == [
        stack.model_dump_json() for stack in real.stacks.values()
    ]


NEW_GPU = """\
  sm121:
    names: ["NVIDIA GB10"]
    compute_capability: "12.1"
    per_node: "1"
    interconnect: "pcie"
    arch: {family: "12.1f", exact: "12.1a", torch: "12.1a", cmake: "121a"}
    nvcc_min: {family: "12.9", exact: "12.8"}
"""


def test_adding_a_gpu_touches_one_place(tmp_path: Path) -> None:
    text = (ROOT / "versions.yaml").read_text(encoding="utf-8").replace("\nstacks:\n", f"\n{NEW_GPU}stacks:\n", 1)
    loaded = load(tmp_path, text)
    assert "sm121" in loaded.gpus
    assert loaded.globs("core", "sm121") == loaded.globs("core", "no GPU's own globs")
    for stack in (stack for stack in loaded.stacks.values() if not stack.gpus):
        gpu, _ = loaded.target("sm121", stack.name)
        assert gpu.arch.of(stack.arch_form).startswith("12.1")


def test_adding_a_stack_touches_one_place(tmp_path: Path) -> None:
    text = (ROOT / "versions.yaml").read_text(encoding="utf-8")
    start, end = text.index("  ci:\n"), text.index("\nkernel_sets:")
    end = text.rindex("\n\n", start, end)
    loaded = load(tmp_path, text[:end] + "\n\n" + text[start:end].replace("  ci:\n", "  next:\n", 1) + text[end:])
    added = loaded.stack("next")
    assert added.model_copy(update={"name": "ci"}) == loaded.stack("ci")
    assert "{" not in "".join(added.requirements("cuda") + added.requirements("torch"))


def test_every_requirement_of_the_real_file_is_filled_in() -> None:
    for stack in versions.load(ROOT / "versions.yaml").stacks.values():
        assert not [line for line in stack.constraints + stack.overrides if "{" in line]
        assert not [line for lines in stack.python_packages.values() for line in lines if "{" in line]
