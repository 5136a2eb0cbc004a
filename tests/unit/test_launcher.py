"""`./inv` in a fresh clone: a .venv that is whole or not used, made once, made again when its pins change."""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest

from kiln.settings import ROOT

pytestmark = pytest.mark.slow
INVOKE = "def main():\n    import sys\n    print('invoke', VERSION, *sys.argv[1:])\n"


def wheel(folder: Path, version: str) -> str:
    """Write a small wheel that puts a program `invoke` into the venv; returns its locked line."""
    folder.mkdir(exist_ok=True)
    info = f"invoke-{version}.dist-info"
    files = {
        "kiln_fake_invoke.py": f"VERSION = '{version}'\n{INVOKE}",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: invoke\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": "[console_scripts]\ninvoke = kiln_fake_invoke:main\n",
    }
    record = [
        f"{name},sha256={base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b'=').decode()},{len(text)}"
        for name, text in files.items()
    ]
    path = folder / f"invoke-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as packed:
        for name, text in {**files, f"{info}/RECORD": "\n".join([*record, f"{info}/RECORD,,"]) + "\n"}.items():
            packed.writestr(name, text)
    return f"invoke=={version} --hash=sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}\n"


class Clone:
    """A checkout with the real launcher, whose packages come from a folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.wheels = root.parent / "wheels"
        root.mkdir()
        shutil.copy(ROOT / "inv", root / "inv")
        self.pin("1.0")

    def pin(self, version: str) -> None:
        (self.root / "requirements.txt").write_text(wheel(self.wheels, version))

    def start(self, *words: str, cwd: Path | None = None) -> subprocess.Popen[str]:
        env = {**os.environ, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(self.wheels), "PIP_CONFIG_FILE": os.devnull}
        return subprocess.Popen(
            [self.root / "inv", *words], env=env, cwd=cwd or self.root, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def run(self, *words: str, cwd: Path | None = None) -> tuple[int, str, str]:
        process = self.start(*words, cwd=cwd)
        out, err = process.communicate(timeout=240)
        return process.returncode, out, err


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Clone:
    return Clone(tmp_path_factory.mktemp("launcher") / "clone")


def test_a_fresh_clone_gets_a_venv_and_runs_invoke_with_all_arguments(clone: Clone, tmp_path: Path) -> None:
    status, out, err = clone.run("build", "--gpu", "sm120", "a b", cwd=tmp_path)
    assert (status, out) == (0, f"invoke 1.0 --search-root {clone.root} build --gpu sm120 a b\n")
    assert "inv: making .venv from requirements.txt with Python 3." in err
    assert clone.run("-l") == (0, f"invoke 1.0 --search-root {clone.root} -l\n", "")
    # Behind a task with a positional argument, Invoke would take --help for that argument.
    assert clone.run("verify", "--help") == (0, f"invoke 1.0 --search-root {clone.root} --help verify\n", "")


def test_an_interrupted_venv_is_not_used_and_two_at_once_make_it_once(clone: Clone) -> None:
    (clone.root / ".venv" / "kiln-stamp").unlink()
    both = [clone.start("-l") for _ in "ab"]
    said = [each.communicate(timeout=240) for each in both]
    assert sum("making .venv" in err for _, err in said) == 1
    assert [each.returncode for each in both] == [0, 0]


def test_a_package_with_another_hash_is_refused_and_nothing_half_made_is_used(clone: Clone) -> None:
    line = (clone.root / "requirements.txt").read_text()
    (clone.root / "requirements.txt").write_text(line.rpartition(":")[0] + ":" + "0" * 64 + "\n")
    status, out, err = clone.run("-l")
    assert (status, out) == (2, "")
    assert "HASHES" in err
    assert "inv: pip could not install requirements.txt" in err
    assert not (clone.root / ".venv" / "kiln-stamp").exists()
    (clone.root / "requirements.txt").write_text(line)


def test_a_clone_that_was_moved_and_has_other_pins_makes_its_venv_again(clone: Clone) -> None:
    clone.root = clone.root.rename(clone.root.with_name("moved"))
    clone.pin("2.0")
    status, out, err = clone.run("-l")
    assert (status, out) == (0, f"invoke 2.0 --search-root {clone.root} -l\n")
    assert "making .venv" in err
