"""images/*/image.yaml: order along the chain, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from kiln import images
from kiln.errors import UserError
from kiln.settings import ROOT

pytestmark = pytest.mark.unit

FOLDERS = {
    "zero": 'summary: "root"\nper_gpu: "no"\napt: ["g++"]\n',
    "mid": 'summary: "middle"\nparent: "zero"\nper_gpu: "no"\npython_globs: ["nvidia-*"]\n',
    "alpha": 'summary: "top"\nparent: "mid"\nper_gpu: "yes"\nsources: {flashinfer-python: "fi"}\nfiles: ["a.py"]\n',
    "beta": 'summary: "other top"\nparent: "mid"\nper_gpu: "yes"\nlabels: {org.x.title: "b"}\n',
}


def write(root: Path, changes: dict[str, str] | None = None) -> Path:
    for name, text in {**FOLDERS, **(changes or {})}.items():
        folder = root / "images" / name
        folder.mkdir(parents=True)
        (folder / "image.yaml").write_text(text, encoding="utf-8")
        (folder / "Dockerfile.j2").touch()
    (root / "images/alpha/a.py").touch()
    return root


def problems_of(root: Path) -> list[str]:
    with pytest.raises(UserError) as caught:
        images.load_all(root)
    return [str(problem) for problem in caught.value.problems]


def test_images_come_parents_first_whatever_their_names(tmp_path: Path) -> None:
    loaded = images.load_all(write(tmp_path))
    assert list(loaded) == ["zero", "mid", "alpha", "beta"]
    assert loaded["zero"].parent is None
    assert (loaded["zero"].per_gpu, loaded["alpha"].per_gpu) == (False, True)
    assert (loaded["alpha"].sources, loaded["alpha"].files) == ({"flashinfer-python": "fi"}, ("a.py",))
    assert loaded["beta"].labels == {"org.x.title": "b"}


def test_a_chain_runs_from_the_root_to_the_named_image(tmp_path: Path) -> None:
    loaded = images.load_all(write(tmp_path))
    assert [image.name for image in images.chain(loaded, "beta")] == ["zero", "mid", "beta"]
    assert [image.name for image in images.chain(loaded, "zero")] == ["zero"]


def test_an_unknown_image_lists_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        images.chain(images.load_all(write(tmp_path)), "alhpa")
    assert str(caught.value) == (
        "there is no image 'alhpa'\n  hint: did you mean 'alpha'? known: alpha, beta, mid, zero"
    )


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("mid", 'summary: "m"\nparent: "zeor"\nper_gpu: "no"\n',
         ["images/mid/image.yaml:2: parent: there is no image 'zeor'\n"
          "  hint: did you mean 'zero'? known: alpha, beta, mid, zero"]),
        ("zero", 'summary: "z"\nparent: "alpha"\nper_gpu: "yes"\n',
         ["images: no image is without a parent\n  hint: remove `parent:` from the one that starts the chain",
          "images/alpha/image.yaml:2: parent: goes round: zero -> mid -> alpha -> zero\n"
          "  hint: give one of these another parent",
          "images/mid/image.yaml:2: parent: goes round: alpha -> zero -> mid -> alpha\n"
          "  hint: give one of these another parent",
          "images/zero/image.yaml:2: parent: goes round: mid -> alpha -> zero -> mid\n"
          "  hint: give one of these another parent"]),
        ("beta", 'summary: "b"\nparent: "beta"\nper_gpu: "yes"\n',
         ["images/beta/image.yaml:2: parent: goes round: beta -> beta\n  hint: give one of these another parent"]),
        ("beta", 'summary: "b"\nper_gpu: "yes"\n',
         ["images/zero/image.yaml:1: parent: zero and beta both have no parent, and a chain starts at one image\n"
          '  hint: add parent: "beta"']),
        ("beta", 'summary: "b"\nparent: "alpha"\nper_gpu: "no"\n',
         ["images/beta/image.yaml:3: per_gpu: its parent alpha is per GPU, so is this\n  hint: write \"yes\""]),
        ("beta", 'summary: "b"\nparent: "mid"\nper_gpu: "maybe"\n',
         ["images/beta/image.yaml:3: per_gpu: 'maybe' is neither \"yes\" nor \"no\"\n  hint: correct the value"]),
        ("beta", 'summary: "b"\nparent: "mid"\nper_gpu: no\n',
         ["images/beta/image.yaml:3: per_gpu: no is read as a boolean\n  hint: quote it: \"no\""]),
        ("beta", 'parent: "mid"\nper_gpu: "yes"\n',
         ["images/beta/image.yaml:1: the key 'summary' is missing\n  hint: add `summary:` to this block"]),
        ("beta", 'summary: "b"\nparent: "mid"\nper_gpu: "yes"\napts: ["x"]\n',
         ["images/beta/image.yaml:4: unknown key 'apts'\n  hint: did you mean 'apt'? known: apt, files, healthcheck, "
          "labels, parent, per_gpu, python_globs, sources, summary"]),
        ("beta", 'summary: "b"\nparent: "mid"\nper_gpu: "yes"\nname: "b"\n',
         ["images/beta/image.yaml:4: unknown key 'name': the folder's name is the image's, 'beta'\n"
          "  hint: remove the line"]),
        ("beta", 'summary: "b"\nparent: "mid"\nper_gpu: "yes"\nfiles:\n  - "../mid/x"\n',
         ["images/beta/image.yaml:5: files: '../mid/x' leaves images/beta\n"
          "  hint: name a file inside the image's folder"]),
        ("beta", 'summary: "b"\nparent: "mid"\nper_gpu: "yes"\nfiles: ["b.py"]\n',
         ["images/beta/image.yaml: images/beta/b.py does not exist\n  hint: add b.py to images/beta"]),
        ("Beta", 'summary: "b"\nparent: "mid"\nper_gpu: "yes"\n',
         ["images/Beta/image.yaml: 'Beta' is not a name for an image\n"
          "  hint: use lower-case letters, digits, dots and dashes: the name goes into references"]),
    ],
)  # fmt: skip
def test_a_bad_declaration_is_refused_with_its_line(tmp_path: Path, name: str, text: str, expected: list[str]) -> None:
    assert problems_of(write(tmp_path, {name: text})) == expected


def test_a_folder_needs_its_declaration_and_its_template(tmp_path: Path) -> None:
    (write(tmp_path) / "images/empty").mkdir()
    assert problems_of(tmp_path) == [
        "images/empty/image.yaml does not exist\n  hint: run the command in a complete checkout",
        "images/empty/image.yaml: images/empty/Dockerfile.j2 does not exist\n  hint: add Dockerfile.j2 to images/empty",
    ]


def test_adding_an_image_touches_its_own_folder_only(tmp_path: Path) -> None:
    loaded = images.load_all(write(tmp_path, {"gamma": 'summary: "g"\nparent: "alpha"\nper_gpu: "yes"\n'}))
    assert [image.name for image in images.chain(loaded, "gamma")] == ["zero", "mid", "alpha", "gamma"]


def test_the_real_images_are_one_chain() -> None:
    loaded = images.load_all(ROOT)
    assert list(loaded) == ["base", "cuda", "torch", "flashinfer", "sglang"]
    assert tuple(loaded.values()) == images.chain(loaded, "sglang")
