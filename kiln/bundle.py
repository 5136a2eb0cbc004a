"""The probes as one zip file that a node's python3 runs: `python3 probe.pyz node`."""

from __future__ import annotations

import io
import zipfile
from importlib.util import find_spec
from pathlib import Path

from kiln import probe
from kiln.errors import KilnError

NAME = "probe.pyz"
# The oldest date that a zip file can hold: a file's own would make every checkout's bundle another one.
_DATE = (1980, 1, 1, 0, 0, 0)
_MAIN = """\
import sys

from probe.__main__ import main

sys.exit(main(sys.argv[1:]))
"""


def build() -> bytes:
    """Return the zip file: package `probe`, NVML's bindings beside it, and what starts them."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, data in sorted(_files().items()):
            info = zipfile.ZipInfo(name, _DATE)
            info.external_attr = 0o644 << 16
            archive.writestr(info, data, zipfile.ZIP_DEFLATED, 9)
    return buffer.getvalue()


def _files() -> dict[str, bytes]:
    folder = Path(probe.__file__).parent
    modules = {f"probe/{path.relative_to(folder)}": path.read_bytes() for path in folder.rglob("*.py")}
    return {"__main__.py": _MAIN.encode(), "pynvml.py": _bindings().read_bytes(), **modules}


def _bindings() -> Path:
    """Return the file of nvidia-ml-py's one module."""
    spec = find_spec("pynvml")
    if spec is None or spec.origin is None:
        raise KilnError("nvidia-ml-py is not installed: ./inv installs what requirements.txt names")
    return Path(spec.origin)
