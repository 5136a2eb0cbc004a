"""What starts containers with GPUs on this node: Docker, NVIDIA's toolkit, CDI files."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

from . import commands, files

CDI_FOLDERS = ("etc/cdi", "var/run/cdi")


def engine(faults: list[dict[str, str]], timeout_s: float, root: Path = Path("/")) -> tuple[dict[str, Any], str]:
    """Ask Docker what it is, the toolkit for its version, and read the CDI files; and say where images are kept."""
    docker = _docker(faults, timeout_s)
    toolkit = commands.run(["nvidia-ctk", "--version"], faults, timeout_s)
    version = re.search(r"\d+\.\d+\.\d+\S*", toolkit or "")
    specs = sorted({path.resolve(): path for folder in CDI_FOLDERS for path in (root / folder).glob("*.*")}.values())
    found = {
        "docker": docker.get("ServerVersion") or None,
        "runtimes": sorted(docker["Runtimes"]) if docker.get("Runtimes") else None,
        "toolkit": version[0] if version else None,
        "hook": shutil.which("nvidia-container-runtime-hook") is not None,
        "cdi": [spec for path in specs for spec in [cdi_file(path, faults)] if spec],
    }
    return found, str(docker.get("DockerRootDir") or "/var/lib/docker")


def _docker(faults: list[dict[str, str]], timeout_s: float) -> dict[str, Any]:
    text = commands.run(["docker", "info", "--format", "{{json .}}"], faults, timeout_s)
    try:
        found: dict[str, Any] = json.loads(text or "{}")
    except ValueError as error:
        faults.append({"source": "docker info", "error": f"not JSON: {error}"})
        return {}
    faults.extend({"source": "docker info", "error": str(one)} for one in found.get("ServerErrors") or [])
    return found


def cdi_file(path: Path, faults: list[dict[str, str]]) -> dict[str, Any] | None:
    """Read how many GPUs a CDI file lists and whose libraries it mounts; YAML or JSON, both by their words."""
    text = files.read(path, faults)
    if text is None or "nvidia.com/gpu" not in text:
        return None
    drivers = re.findall(r"libcuda\.so\.(\d+\.\d+(?:\.\d+)?)", text)
    return {
        "path": str(path),
        "gpus": len(set(re.findall(r"/dev/nvidia(\d+)\b", text))),
        "driver": drivers[0] if drivers else None,
    }
