"""Templates to Dockerfiles: faults with template and line, and what is committed against what would be rendered."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from kiln import images, render, versions
from kiln.errors import UserError
from kiln.settings import ROOT
from kiln.versions import Versions

pytestmark = pytest.mark.unit


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A copy of what rendering reads and writes."""
    for name in ("images", "templates"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "versions.yaml", tmp_path)
    return tmp_path


@pytest.fixture
def loaded(root: Path) -> Versions:
    return versions.load(root / "versions.yaml")


def rendered(root: Path, loaded: Versions, image: str, gpu: str = "sm120") -> str:
    stack = loaded.stack("ci")
    return render.dockerfile(root, images.load_all(root)[image], stack=stack, gpu=loaded.gpu(gpu), kernels="ci")


def test_the_committed_dockerfiles_are_as_rendered() -> None:
    assert render.problems(ROOT, versions.load(ROOT / "versions.yaml")) == []


@pytest.mark.parametrize(
    ("text", "where", "message"),
    [
        ("FROM scratch\n\n# {{ stack.nothing }}\n", "3", "has no attribute 'nothing'"),
        ("FROM scratch\n{{ nobody }}\n", "2", "'nobody' is undefined"),
        ("FROM scratch\n{% if gpu.missing %}\n{% endif %}\n", "2", "has no attribute 'missing'"),
        ("FROM scratch\n\n{% if gpu %}\n", "3", "Unexpected end of template"),
        ("FROM scratch\n{{ gpu.name | nofilter }}\n", "2", "No filter named 'nofilter'"),
        ('FROM scratch\n\n{% import "nowhere.j2" as other %}\n', "3", "nowhere.j2"),
    ],
)
def test_a_fault_in_a_template_is_told_with_its_line(
    root: Path, loaded: Versions, text: str, where: str, message: str
) -> None:
    (root / "images/torch/Dockerfile.j2").write_text(text)
    with pytest.raises(UserError, match=re.escape(message)) as caught:
        rendered(root, loaded, "torch")
    assert str(caught.value).startswith(f"images/torch/Dockerfile.j2:{where}: ")


def test_a_fault_in_the_macros_is_told_with_their_file_and_line(root: Path, loaded: Versions) -> None:
    (root / "templates/macros.j2").write_text("{# none #}\n\n{% macro header(image) %}\n")
    with pytest.raises(UserError) as caught:
        rendered(root, loaded, "torch")
    assert re.match(r"templates/macros\.j2:\d: Unexpected end of template", str(caught.value)), str(caught.value)


def test_a_name_that_a_macro_lacks_is_told_with_the_line_of_the_macro(root: Path, loaded: Versions) -> None:
    text = "{% macro header(image) -%}\n# {{ imag }}\n{%- endmacro %}\n"
    (root / "templates/macros.j2").write_text(text)
    (root / "images/torch/Dockerfile.j2").write_text('{% import "macros.j2" as kiln %}\n{{ kiln.header("torch") }}\n')
    with pytest.raises(UserError) as caught:
        rendered(root, loaded, "torch")
    assert str(caught.value) == "templates/macros.j2:2: 'imag' is undefined"


def test_a_text_ends_with_one_newline_and_has_no_trace_of_jinja(root: Path, loaded: Versions) -> None:
    for image in images.load_all(root):
        text = rendered(root, loaded, image)
        assert re.search(r"[^\n]\n\Z", text)
        assert not re.search(r"\{\{|\{%|\{#|\n\n\n", text)


@pytest.mark.parametrize("image", [image.name for image in images.load_all(ROOT).values() if not image.per_gpu])
def test_an_image_that_is_not_per_gpu_is_the_same_for_each(root: Path, loaded: Versions, image: str) -> None:
    assert len({rendered(root, loaded, image, gpu) for gpu in loaded.gpus}) == 1


def test_a_stale_a_missing_and_a_left_over_file_are_told_at_once(root: Path, loaded: Versions) -> None:
    stale, missing = root / "images/base/rendered/ci.Dockerfile", root / "images/torch/rendered/ci.Dockerfile"
    leftover = root / "images/sglang/rendered/ci-sm70.Dockerfile"
    stale.write_text(stale.read_text() + "# by hand\n")
    missing.unlink()
    leftover.write_text("FROM scratch\n")
    assert sorted(map(str, render.problems(root, loaded))) == [
        "images/base/rendered/ci.Dockerfile: differs from its template\n  hint: inv render",
        "images/sglang/rendered/ci-sm70.Dockerfile: no stack and GPU renders this\n  hint: inv render",
        "images/torch/rendered/ci.Dockerfile: is not rendered\n  hint: inv render",
    ]


def test_writing_mends_all_of_it_and_touches_nothing_else(root: Path, loaded: Versions) -> None:
    stale, missing = root / "images/base/rendered/ci.Dockerfile", root / "images/torch/rendered/ci.Dockerfile"
    leftover = root / "images/sglang/rendered/ci-sm70.Dockerfile"
    good = stale.read_text()
    stale.write_text("FROM scratch\n")
    missing.unlink()
    leftover.write_text("FROM scratch\n")
    assert sorted(render.write(root, loaded)) == sorted([stale, missing, leftover])
    assert stale.read_text() == good
    assert not leftover.exists()
    assert render.problems(root, loaded) == []
    assert render.write(root, loaded) == []


def test_a_stack_for_one_gpu_is_rendered_for_that_one(root: Path, loaded: Versions) -> None:
    narrow = loaded.stack("ci").model_copy(update={"gpus": ("sm120",)})
    told = render.problems(root, replace(loaded, stacks={**loaded.stacks, "ci": narrow}))
    assert [problem.source for problem in told] == [
        f"images/{image}/rendered/ci-sm90.Dockerfile" for image in ("flashinfer", "sglang")
    ]
