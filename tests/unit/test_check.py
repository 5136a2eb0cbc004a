"""`inv check` over a whole checkout: clean as committed, everything at once when not."""

from __future__ import annotations

import shutil
from copy import deepcopy
from pathlib import Path

import pytest
import yaml

from kiln import check, render, versions
from kiln.settings import ROOT, from_env

pytestmark = pytest.mark.unit

# tests/unit too: a patch names the test that fails without it.
DATA = ("versions.yaml", "images", "patches", "locks", "presets", "rules", "templates", "topologies", "tests/unit")


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """Return a copy of everything that people and commands write."""
    for name in DATA:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, tmp_path / name)
        elif source.exists():
            shutil.copy(source, tmp_path / name)
    return tmp_path


def edit(file: Path, old: str, new: str) -> None:
    text = file.read_text(encoding="utf-8")
    assert old in text
    file.write_text(text.replace(old, new, 1), encoding="utf-8")


def problems_of(root: Path) -> list[str]:
    return [str(problem) for problem in check.check(from_env({}, root))]


def test_the_checkout_is_clean() -> None:
    assert problems_of(ROOT) == []


def test_a_copy_of_the_checkout_is_clean_too(copy: Path) -> None:
    assert problems_of(copy) == []


def test_broken_images_do_not_hide_a_broken_versions_file(copy: Path) -> None:
    edit(copy / "versions.yaml", 'uv: "', 'uv: ">')
    edit(copy / "images/torch/image.yaml", "summary:", "sumary:")
    heads = [problem.splitlines()[0].partition(": ") for problem in problems_of(copy)]
    assert [(where.partition(":")[0], what.partition(":")[0]) for where, _, what in heads] == [
        ("images/torch/image.yaml", "the key 'summary' is missing"),
        ("images/torch/image.yaml", "unknown key 'sumary'"),
        ("versions.yaml", "tools.uv"),
    ]


def test_an_image_that_versions_yaml_names_must_exist(copy: Path) -> None:
    edit(copy / "versions.yaml", 'image: "sglang"', 'image: "sglng"')
    edit(copy / "versions.yaml", "      torch:\n", "      troch:\n")
    found = problems_of(copy)
    assert found[0].partition(": ")[2] == (
        "defaults.image: there is no image 'sglng'\n"
        "  hint: did you mean 'sglang'? known: base, cuda, flashinfer, sglang, torch"
    )
    assert found[1].partition(": ")[2] == (
        "stacks.current.python_packages.troch: there is no image 'troch'\n"
        "  hint: did you mean 'torch'? known: base, cuda, flashinfer, sglang, torch"
    )
    assert len(found) == 2


def test_a_component_that_an_image_builds_must_exist(copy: Path) -> None:
    edit(copy / "images/flashinfer/image.yaml", '"flashinfer"', '"flash"')
    assert problems_of(copy)[0].startswith(
        "images/flashinfer/image.yaml: sources.flashinfer-python: there is no component 'flash'"
    )


def test_a_changed_pin_makes_the_locks_stale(copy: Path) -> None:
    edit(copy / "versions.yaml", 'sglang: "0.5.23"', 'sglang: "0.5.24"')
    found = problems_of(copy)
    assert any(problem.startswith("locks/current/python.toml: stale") and "inv lock" in problem for problem in found)


def test_a_changed_template_makes_the_dockerfiles_stale(copy: Path) -> None:
    file = copy / "images/torch/Dockerfile.j2"
    file.write_text(file.read_text(encoding="utf-8") + "# more\n", encoding="utf-8")
    found = problems_of(copy)
    assert found
    assert all(problem.startswith("images/torch/rendered/") for problem in found)
    assert all(problem.endswith("hint: inv render") for problem in found)


def test_a_glob_that_matches_no_kernel_is_reported(copy: Path) -> None:
    file = copy / "versions.yaml"
    tree = yaml.safe_load(file.read_text(encoding="utf-8"))
    chosen = tree["stacks"]["current"]["kernels"]
    tree["kernel_sets"][chosen]["modules"].setdefault("all", []).append("no_such_kernel_*")
    file.write_text(yaml.safe_dump(tree, default_style='"'), encoding="utf-8")
    found = problems_of(copy)
    assert found
    assert all("no_such_kernel_*" in problem for problem in found)


def test_a_new_gpu_in_versions_yaml_reaches_every_dockerfile(copy: Path) -> None:
    file = copy / "versions.yaml"
    tree = yaml.safe_load(file.read_text(encoding="utf-8"))
    arch = {"family": "12.1f", "exact": "12.1a", "torch": "12.1a", "cmake": "121a"}
    tree["gpus"]["sm121"] = {
        **deepcopy(tree["gpus"]["sm120"]), "names": ["NVIDIA GB10"], "compute_capability": "12.1", "arch": arch,
    }  # fmt: skip
    file.write_text(yaml.safe_dump(tree, default_style='"'), encoding="utf-8")
    added = {str(path.relative_to(copy)) for path in render.write(copy, versions.load(file))}
    assert added == {
        f"images/{image}/rendered/{stack}-sm121.Dockerfile"
        for image in ("flashinfer", "sglang")
        for stack, block in tree["stacks"].items()
        if "gpus" not in block
    }


def test_a_patch_for_what_no_stack_locks_is_refused(copy: Path) -> None:
    source = next((copy / "patches" / "flashinfer").glob("*.patch"))
    (copy / "patches" / "triton").mkdir()
    shutil.copy(source, copy / "patches" / "triton" / source.name)
    assert problems_of(copy) == [
        f"patches/triton/{source.name}: no stack locks a source or wheel of triton\n"
        "  hint: locked: flashinfer, sglang, torch",
        f"patches/triton/{source.name}: there is no component 'triton'\n  hint: known: flashinfer, sglang, torch",
    ]


def test_a_patch_that_was_edited_makes_its_lock_stale(copy: Path) -> None:
    edit(next((copy / "patches" / "flashinfer").glob("0001-*")), "sorted(output_dir", "sorted(set(output_dir")
    (copy / "locks/patches/sglang-0.5.1.toml").write_text("", encoding="utf-8")
    assert problems_of(copy) == [
        "locks/patches/flashinfer-0.7.2.toml: stale: the source or a patch to it changed since\n"
        "  hint: inv patches.refresh",
        "locks/patches/sglang-0.5.1.toml: no stack's source and patches need this lock\n  hint: inv patches.refresh",
    ]
