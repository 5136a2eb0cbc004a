from __future__ import annotations

import os
from pathlib import Path

import pytest

from kiln import family, pylock, settings, uv, versions
from kiln.errors import UserError
from kiln.indexes import Places, places, shown
from kiln.pylock import choose
from kiln.settings import ROOT
from kiln.uv import File, Package, Target

pytestmark = pytest.mark.unit

TARGET = Target("3.11", 36)
STACK = versions.load(ROOT / "versions.yaml").stack("current")
STORY = STACK.model_copy(update={"name": "story", "cuda": "12.8", "toolkit": "13.0", "components": {"torch": "2.9.1"}})


def _package(*names: str) -> Package:
    return Package("demo", "1.0", tuple(File(f"https://index.test/{name}", 1, "0" * 64, 0) for name in names))


@pytest.mark.parametrize(
    ("names", "best"),
    [
        (("demo-1.0-py3-none-any.whl", "demo-1.0-cp311-cp311-manylinux_2_28_x86_64.whl"), "manylinux_2_28"),
        (("demo-1.0-cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64.whl", "demo-1.0-py3-none-any.whl"), "cp311"),
        (("demo-1.0-cp310-abi3-manylinux_2_34_x86_64.whl", "demo-1.0-cp311-cp311-manylinux1_x86_64.whl"), "manylinux1"),
        (("demo-1.0-cp311-cp311-linux_x86_64.whl", "demo-1.0-py2.py3-none-any.whl"), "linux_x86_64"),
        (("demo-1.0%2Bcpu-cp311-cp311-manylinux_2_28_x86_64.whl",), "demo-1.0+cpu"),
        (("demo-1.0-1-py3-none-any.whl", "demo-1.0-cp312-cp312-manylinux_2_28_x86_64.whl"), "demo-1.0-1-py3"),
    ],
)
def test_the_wheel_that_pip_would_take_is_chosen(names: tuple[str, ...], best: str) -> None:
    assert best in choose(_package(*names), TARGET).name
    assert choose(_package(*names), TARGET) == choose(_package(*reversed(names)), TARGET)


@pytest.mark.parametrize(
    "name",
    [
        "demo-1.0-cp312-cp312-manylinux_2_28_x86_64.whl",
        "demo-1.0-cp311-cp311-manylinux_2_39_x86_64.whl",
        "demo-1.0-cp311-cp311-musllinux_1_2_x86_64.whl",
        "demo-1.0-cp311-cp311-manylinux_2_28_aarch64.whl",
        "demo-1.0-cp311-cp311-win_amd64.whl",
    ],
)
def test_a_package_without_a_fitting_wheel_is_refused_with_what_it_has(name: str) -> None:
    with pytest.raises(UserError, match=r"demo 1\.0 has no wheel for python 3\.11 and glibc 2\.36; it has: demo"):
        choose(_package(name), TARGET)


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ({"flashinfer-cubin": "0.7.1"}, "flashinfer-cubin 0.7.1 beside flashinfer 0.7.2"),
        ({"flashinfer-jit-cache": "0.7.3+cu130"}, "flashinfer-jit-cache 0.7.3+cu130 beside flashinfer 0.7.2"),
        ({"nvidia-cuda-nvcc": "13.5.12"}, "nvidia-cuda-nvcc 13.5.12 beside CUDA 13.0"),
        ({"nvidia-nvjitlink": "13.1.2"}, "nvidia-nvjitlink 13.1.2 beside CUDA 13.0"),
        ({"nvidia-cuda-runtime-cu12": "12.8.90"}, "nvidia-cuda-runtime-cu12 12.8.90 beside CUDA 13.0"),
        ({"torch": "2.14.1+cu126"}, "torch 2.14.1+cu126 is not of CUDA 13.0"),
        ({"torch": "2.14.1+cpu"}, "torch 2.14.1+cpu is not of CUDA 13.0"),
    ],
)
def test_what_resolves_and_does_not_fit_is_named(found: dict[str, str], message: str) -> None:
    problems = family.problems(STACK, found)
    assert [problem.message for problem in problems] == [f"stack current: {message}"]
    assert problems[0].hint


def test_what_fits_is_no_problem() -> None:
    fits = {
        "flashinfer-cubin": "0.7.2", "nvidia-cuda-nvcc": "13.0.88", "cuda-toolkit": "13.0.3.0", "torch": "2.14.1+cu130",
        "nvidia-cutlass-dsl-libs-cu12": "4.8.0", "cuda-bindings": "13.4.4", "nvidia-cublas": "13.1.1.3",
    }  # fmt: skip
    assert family.problems(STACK, fits) == []


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ({"nvidia-cuda-nvcc": "12.8.93"}, "nvidia-cuda-nvcc 12.8.93 beside toolkit 13.0"),
        ({"nvidia-cuda-runtime": "13.5.6"}, "nvidia-cuda-runtime 13.5.6 beside toolkit 13.0"),
        ({"cuda-toolkit": "13.1.1"}, "cuda-toolkit 13.1.1 beside toolkit 13.0"),
        ({"nvidia-cuda-runtime-cu12": "12.9.79"}, "nvidia-cuda-runtime-cu12 12.9.79 beside CUDA 12.8"),
        ({"nvidia-nvtx-cu11": "11.8.86"}, "nvidia-nvtx-cu11 11.8.86 beside toolkit 13.0"),
        ({"torch": "2.9.1+cu130"}, "torch 2.9.1+cu130 is not of CUDA 12.8"),
    ],
)
def test_each_cuda_of_a_stack_with_two_has_its_own_packages(found: dict[str, str], message: str) -> None:
    problems = family.problems(STORY, found)
    assert [problem.message for problem in problems] == [f"stack story: {message}"]


def test_both_cudas_of_a_stack_with_two_fit() -> None:
    fits = {
        "nvidia-cuda-nvcc": "13.0.88", "nvidia-cuda-runtime": "13.0.96", "nvidia-cuda-runtime-cu12": "12.8.90",
        "nvidia-nvjitlink-cu12": "12.8.93", "cuda-toolkit": "13.0.2", "nvidia-cublas": "13.1.0.3", "torch": "2.9.1",
    }  # fmt: skip
    assert family.problems(STORY, fits) == []


def test_torch_for_cpu_is_allowed_where_the_stack_asks_for_it() -> None:
    ci = versions.load(ROOT / "versions.yaml").stack("ci")
    assert family.problems(ci, {"torch": "2.13.0+cpu"}) == []


def test_the_clients_settings_say_where_packages_are(tmp_path: Path) -> None:
    (tmp_path / "pip.conf").write_text("[global]\nindex-url = https://file.test/simple\nfind-links = /wheels /more\n")
    base = {"PIP_CONFIG_FILE": str(tmp_path / "pip.conf"), "HOME": str(tmp_path), "XDG_CONFIG_DIRS": str(tmp_path)}
    plain = settings.from_env({})
    assert places(plain, base).index == "https://file.test/simple"
    assert places(plain, base).find_links == ("/wheels", "/more")
    assert places(plain, {**base, "PIP_INDEX_URL": "https://env.test/"}).index == "https://env.test/"
    assert places(plain, {**base, "UV_DEFAULT_INDEX": "own=https://uv.test/"}).index == "https://uv.test/"
    assert places(settings.from_env({"KILN_PYPI_MIRROR": "https://kiln.test"}), base).index == "https://kiln.test"
    more = places(plain, {**base, "UV_INDEX": "a=https://a.test https://b.test", "PIP_FIND_LINKS": "/x"})
    assert more.extra == ("https://a.test", "https://b.test")
    assert more.find_links == ("/x",)


def test_uv_s_own_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "uv.toml").write_text(
        '[[index]]\nurl = "https://d.test"\ndefault = true\n[[index]]\nurl = "https://e.test"\n'
    )
    env = {"UV_CONFIG_FILE": str(tmp_path / "uv.toml"), "PIP_CONFIG_FILE": os.devnull}
    assert places(settings.from_env({}), env) == Places("https://d.test", ("https://e.test",), ())


def test_credentials_are_not_shown() -> None:
    assert shown("https://me:secret@index.test/simple") == "https://index.test/simple"


def _index(root: Path, wheels: dict[str, str]) -> str:
    """Write a PEP 503 index of empty-bodied wheels: file name → Requires-Dist lines."""
    import zipfile

    for file, requires in wheels.items():
        name, version = file.split("-")[:2]
        folder = root / name
        folder.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(folder / file, "w") as wheel:
            head = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
            wheel.writestr(f"{name}-{version}.dist-info/METADATA", head + requires)
            wheel.writestr(f"{name}-{version}.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
            wheel.writestr(f"{name}-{version}.dist-info/RECORD", "")
        links = "".join(f'<a href="{path.name}">{path.name}</a>\n' for path in sorted(folder.glob("*.whl")))
        (folder / "index.html").write_text(f"<!DOCTYPE html><html><body>{links}</body></html>")
    return root.as_uri()


WHEELS = {
    "alpha-1.0-py3-none-any.whl": "Requires-Dist: beta\n",
    "beta-1.0-py3-none-any.whl": "",
    "beta-2.0-py3-none-any.whl": "",
}


@pytest.mark.parametrize(
    ("prefer", "upgrade", "beta"), [({}, (), "2.0"), ({"beta": "1.0"}, (), "1.0"), ({"beta": "1.0"}, ("beta",), "2.0")]
)
def test_a_locked_version_stays_until_it_is_to_be_upgraded(
    tmp_path: Path, prefer: dict[str, str], upgrade: tuple[str, ...], beta: str
) -> None:
    index = Places(_index(tmp_path, WHEELS))
    found = uv.compile_roots(["alpha"], TARGET, index, uv.Rules(prefer=prefer, upgrade=upgrade))
    assert {package.name: package.version for package in found} == {"alpha": "1.0", "beta": beta}
    assert all(choose(package, TARGET).size for package in found)


def test_a_wheel_belongs_to_the_first_image_that_needs_it_or_whose_glob_matches(tmp_path: Path) -> None:
    from kiln.images import load_all

    chain = tuple(load_all(ROOT).values())
    packages = {"torch": ("alpha==1.0",), "flashinfer": ("beta",), "sglang": ("nvidia_x",)}
    stack = STACK.model_copy(
        update={"python_packages": packages, "constraints": ("beta<2",), "no_deps": {"cuda": ("gamma",)}}
    )
    wheels = {**WHEELS, "nvidia_x-1.0-py3-none-any.whl": "", "gamma-1.0-py3-none-any.whl": "Requires-Dist: nowhere\n"}
    _index(tmp_path, wheels)
    (tmp_path / "nvidia_x").rename(tmp_path / "nvidia-x")
    found = pylock.resolve(stack, chain, Places(tmp_path.as_uri()), {}, ())
    assert {wheel.name: (wheel.version, wheel.image) for wheel in found.wheels} == {
        "alpha": ("1.0", "torch"), "beta": ("1.0", "torch"), "gamma": ("1.0", "cuda"), "nvidia-x": ("1.0", "cuda"),
    }  # fmt: skip


def test_what_does_not_resolve_is_told_in_uv_s_words(tmp_path: Path) -> None:
    index = Places(_index(tmp_path, WHEELS), find_links=(str(tmp_path / "alpha"),))
    words = r"do not resolve; looked in [\s\S]*beta>5[\s\S]*hint: edit versions\.yaml"
    with pytest.raises(UserError, match=words) as caught:
        uv.compile_roots(["alpha", "beta>5"], TARGET, index, uv.Rules())
    assert f"looked in {tmp_path / 'alpha'}, {tmp_path.as_uri()}" in str(caught.value)
    assert "PIP_EXTRA_INDEX_URL" in str(caught.value)
