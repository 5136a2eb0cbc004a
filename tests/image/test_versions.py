"""Measured versions equal the plan."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from testinfra.host import Host

from tests.image.conftest import TOOLS

_LIST = """
import importlib.metadata as m, json, re
print(json.dumps(sorted((re.sub(r"[-_.]+", "-", d.metadata["Name"]).lower(), d.version) for d in m.distributions())))
"""
ALLOW = Path(__file__).parent / "allow"


@pytest.fixture(scope="module")
def installed(python: Any) -> dict[str, str]:
    pairs = python(_LIST)
    names = [name for name, _ in pairs]
    assert len(names) == len(set(names)), "a distribution is installed twice"
    return dict(pairs)


def test_every_locked_package_is_installed_and_nothing_else(installed: dict[str, str], plan: dict[str, Any]) -> None:
    wanted = {**plan["packages"], "flashinfer-python": plan["pins"]["flashinfer"]}
    assert installed == wanted


def test_torch_reports_the_stack_s_cuda(python: Any, plan: dict[str, Any]) -> None:
    found = python("import torch, json; print(json.dumps([torch.__version__.split('+')[0], torch.version.cuda]))")
    version = plan["pins"]["torch"]
    assert found == [version.split("+")[0], None if version.endswith("+cpu") else plan["cuda"]]


def test_flashinfer_reports_our_local_version(python: Any, plan: dict[str, Any]) -> None:
    assert python("import flashinfer, json; print(json.dumps(flashinfer.__version__))") == plan["pins"]["flashinfer"]


def test_pip_check_finds_only_what_the_allow_list_explains(host: Host, plan: dict[str, Any]) -> None:
    done = host.run(f"mkdir -p /cache/tmp && {TOOLS}/uv pip check --no-cache --python /opt/kiln/bin/python")
    found = [line for line in done.stderr.splitlines() if " requires " in line]
    unexplained = [line for line in found if not any(rule.search(line) for rule in _allowed(plan["stack"]))]
    assert unexplained == []
    assert found or done.rc == 0, done.stderr


def _allowed(stack: str) -> list[re.Pattern[str]]:
    file = ALLOW / f"pip-check-{stack}.txt"
    lines = file.read_text().splitlines() if file.exists() else []
    return [re.compile(line) for line in lines if line.strip() and not line.startswith("#")]
