"""Patched wheels: really installed by uv, and found out when another wheel writes over them."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from kiln import patchlocks, sources, wheelpatch
from kiln.errors import CheckFailed
from kiln.locks import Wheel
from kiln.patches import Patch
from kiln.patchlocks import PatchedFile
from kiln.run import run
from kiln.store import Store
from tests.image.test_patches import DIFFERING

pytestmark = pytest.mark.unit
UV = Path(sys.executable).parent / "uv"
FILES = {"tool/__init__.py": "x = 1\n", "tool/gone.py": "y = 1\n", "tool/kept.bin": "\0\1"}
DIFF = """\
diff --git a/tool/__init__.py b/tool/__init__.py
--- a/tool/__init__.py
+++ b/tool/__init__.py
@@ -1 +1 @@
-x = 1
+x = 2
diff --git a/tool/gone.py b/tool/gone.py
deleted file mode 100644
--- a/tool/gone.py
+++ /dev/null
@@ -1 +0,0 @@
-y = 1
diff --git a/tool/new.py b/tool/new.py
new file mode 100644
--- /dev/null
+++ b/tool/new.py
@@ -0,0 +1 @@
+z = 1
"""


def hashed(data: bytes) -> str:
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def wheel(folder: Path, store: Store, files: Mapping[str, str] = FILES, version: str = "1.0") -> Wheel:
    """Put a small wheel into the store."""
    info = f"tool-{version}.dist-info"
    texts = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: tool\nVersion: {version}\n\nVersion: of the text\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    rows = [f"{name},{hashed(text.encode())},{len(text)}\n" for name, text in texts.items()]
    path = folder / f"tool-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as out:
        for name, text in {**texts, f"{info}/RECORD": "".join([*rows, f"{info}/RECORD,,\n"])}.items():
            out.writestr(zipfile.ZipInfo(name, (2026, 2, 3, 4, 5, 6)), text)
    data = path.read_bytes()
    sha256 = hashlib.sha256(data).hexdigest()
    store.add(io.BytesIO(data), sha256, len(data))
    return Wheel("tool", version, path.name, len(data), sha256, "sglang", 1)


@pytest.fixture
def patch(tmp_path: Path) -> Patch:
    path = tmp_path / "0001-change.patch"
    path.write_text(DIFF)
    files = ("tool/__init__.py", "tool/gone.py", "tool/new.py")
    head = ("it changes", "vendor", "no", ">=0", ("all",), "default", "none")
    return Patch("tool", 1, "change", path, "a" * 64, *head, files=files)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def placed(tmp_path: Path, store: Store, patch: Patch, name: str = "out", version: str = "1.0") -> tuple[Wheel, Path]:
    folder = tmp_path / name
    folder.mkdir()
    found = wheelpatch.place(wheel(tmp_path, store, version=version), [patch], [], store, folder)
    return found, folder / found.file


def install(site: Path, *wheels: Path) -> None:
    for one in wheels:
        run(
            [UV, "pip", "install", "--offline", "--no-deps", "--no-cache", "--link-mode", "copy", "--target", site, one]
        )


def test_a_patched_wheel_is_installed_under_our_version(tmp_path: Path, store: Store, patch: Patch) -> None:
    found, path = placed(tmp_path, store, patch)
    assert found.version.startswith("1.0+kiln.")
    assert path.name == f"tool-{found.version}-py3-none-any.whl"
    assert (found.size, found.sha256) == (path.stat().st_size, hashlib.sha256(path.read_bytes()).hexdigest())
    install(tmp_path / "site", path)
    assert (tmp_path / "site/tool/__init__.py").read_text() == "x = 2\n"
    assert (tmp_path / "site/tool/new.py").read_text() == "z = 1\n"
    assert not (tmp_path / "site/tool/gone.py").exists()
    metadata = (tmp_path / f"site/tool-{found.version}.dist-info/METADATA").read_text()
    assert metadata == f"Metadata-Version: 2.1\nName: tool\nVersion: {found.version}\n\nVersion: of the text\n"


def test_record_tells_every_file_as_it_is(tmp_path: Path, store: Store, patch: Patch) -> None:
    found, path = placed(tmp_path, store, patch)
    with zipfile.ZipFile(path) as file:
        rows = list(csv.reader(io.StringIO(file.read(f"tool-{found.version}.dist-info/RECORD").decode())))
        assert [row[0] for row in rows] == file.namelist()
        assert {row[0]: row[1:] for row in rows[:-1]} == {
            name: [hashed(file.read(name)), str(len(file.read(name)))] for name in file.namelist()[:-1]
        }


def test_the_same_patch_makes_the_same_bytes_and_another_one_another_name(
    tmp_path: Path, store: Store, patch: Patch
) -> None:
    first, second = placed(tmp_path, store, patch), placed(tmp_path, store, patch, "again")
    assert first[1].read_bytes() == second[1].read_bytes()
    source = wheel(tmp_path, store)
    other = Patch(**{**vars(patch), "sha256": "b" * 64})
    assert patchlocks.renamed(source, [patch]).version != patchlocks.renamed(source, [other]).version
    assert patchlocks.renamed(source, [patch, other]).version != patchlocks.renamed(source, [other, patch]).version


def test_a_local_version_is_kept(tmp_path: Path, store: Store, patch: Patch) -> None:
    found, path = placed(tmp_path, store, patch, version="2.1+cpu")
    assert found.version.startswith("2.1+cpu.kiln.")
    install(tmp_path / "site", path)


def test_what_is_not_as_locked_is_refused(tmp_path: Path, store: Store, patch: Patch) -> None:
    locked = PatchedFile("tool", "tool/new.py", (patch.label,), "0" * 64)
    with pytest.raises(CheckFailed, match=r"tool/new\.py is [0-9a-f]{12}, locked is 0{12}"):
        wheelpatch.place(wheel(tmp_path, store), [patch], [locked], store, tmp_path)


def test_a_patch_that_a_later_wheel_writes_over_is_found(tmp_path: Path, store: Store, patch: Patch) -> None:
    _, path = placed(tmp_path, store, patch)
    with sources.patched(store.path(wheel(tmp_path, store).sha256), [patch]) as (tree, _):
        wanted = {file: hashlib.sha256((tree / file).read_bytes()).hexdigest() if (tree / file).exists() else ""
                  for file in patch.files}  # fmt: skip
    site = tmp_path / "site"
    install(site, path)

    def differing() -> dict[str, str]:
        done = run([sys.executable, "-c", DIFFERING.format(site=str(site), wanted=wanted)])
        found: dict[str, str] = json.loads(done.stdout)
        return found

    assert differing() == {}
    with zipfile.ZipFile(tmp_path / "tool-1.0-py3-none-any.whl") as later:
        later.extract("tool/__init__.py", site)
    assert differing() == {"tool/__init__.py": hashlib.sha256(b"x = 1\n").hexdigest()}
