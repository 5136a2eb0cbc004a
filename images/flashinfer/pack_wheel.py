#!/usr/bin/env python3
"""Make FlashInfer's wheel from its source, with compiled kernels in flashinfer/data/aot, where they load as is."""

from __future__ import annotations

import base64
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Mapping
from pathlib import Path


class PackError(Exception):
    """The wheel cannot be made."""


def pack(source: Path, kernels: Mapping[str, Path], build: Path, out: Path, epoch: int) -> Path:
    """Build the source's wheel below `build` and write the one with the kernels (name to .so) into `out`."""
    return add_kernels(build_plain_wheel(source, build / "wheel"), kernels, out, epoch)


def build_plain_wheel(source: Path, out: Path) -> Path:
    """Build the wheel without kernels by calling the source's own PEP 517 backend, which must not install anything."""
    shutil.rmtree(source / "flashinfer" / "data", ignore_errors=True)
    out.mkdir()
    options = {"--build-option": "--compression=stored"}
    code = f"import build_backend; build_backend.build_wheel({str(out)!r}, {options!r})"
    env = {key: value for key, value in os.environ.items() if not key.startswith("FLASHINFER_")}
    env.update(BUILD_NVEP="0", FLASHINFER_BUILD_NO_PIP="1")
    env.update(PYTHONPATH=str(source), PYTHONHASHSEED="0", PYTHONDONTWRITEBYTECODE="1")
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, cwd=source, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, errors="replace", check=False,
    )  # fmt: skip
    wheels = list(out.glob("*.whl"))
    if done.returncode != 0 or len(wheels) != 1:
        raise PackError(f"setuptools could not build the wheel:\n{done.stdout[-4000:]}")
    return wheels[0]


# The sdist's own build program, which setuptools takes for a module: torch-c-dlpack-ext installs another one there.
NOT_INSTALLED = {"build_backend.py"}


def add_kernels(plain: Path, kernels: Mapping[str, Path], out: Path, epoch: int) -> Path:
    """Write the final wheel: the plain one and the kernels, sorted, with one date and no compression."""
    name, version, *_ = plain.name.split("-")
    tag = f"py3-none-linux_{platform.machine()}"
    info = f"{name}-{version}.dist-info"
    final, partial = out / f"{name}-{version}-{tag}.whl", out / f".{name}-{version}.partial"
    out.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(plain) as source, zipfile.ZipFile(partial, "w", zipfile.ZIP_STORED) as target:
        entries = {item for item in source.namelist() if not item.endswith(("/", "/RECORD"))} - NOT_INSTALLED
        libraries = {f"flashinfer/data/aot/{module}/{module}.so": library for module, library in kernels.items()}
        record = []
        for item in sorted({*entries, *libraries}):
            data = libraries[item].read_bytes() if item in libraries else source.read(item)
            if item == f"{info}/WHEEL":
                data = re.sub(rb"(?m)^Tag: .*$", f"Tag: {tag}".encode(), data)
            target.writestr(archive_entry(item, epoch), data)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            record.append(f"{item},sha256={digest},{len(data)}")
        record.append(f"{info}/RECORD,,")
        target.writestr(archive_entry(f"{info}/RECORD", epoch), "\n".join(record) + "\n")
    partial.replace(final)
    return final


def archive_entry(name: str, epoch: int) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name, time.gmtime(max(epoch, 315532800))[:6])
    info.create_system = 3
    info.external_attr = (0o100755 if name.endswith(".so") else 0o100644) << 16
    return info
