"""What the image says of itself, and how it behaves when started."""

from __future__ import annotations

from typing import Any

import pytest
from testinfra.host import Host

from tests.image.conftest import SITE, UID, Runtime

_PYC = """
import json, pathlib
roots = map(pathlib.Path, ("/opt/kiln", "/usr/lib/python3.11"))
stale = [str(p) for root in roots for p in root.rglob("*.pyc") if not p.read_bytes()[4] & 1]
print(json.dumps(stale[:20]))
"""


def environment(config: dict[str, Any]) -> dict[str, str]:
    return dict(item.split("=", 1) for item in config["Env"])


def test_arch_variables_equal_the_plan(config: dict[str, Any], plan: dict[str, Any]) -> None:
    found = environment(config)
    names = ("FLASHINFER_CUDA_ARCH_LIST", "TORCH_CUDA_ARCH_LIST", "CUDAARCHS")
    assert [found[name] for name in names] == [plan["arch"][key] for key in ("flashinfer", "torch", "cmake")]


def test_labels_name_the_plan_its_pins_and_its_patches(config: dict[str, Any], plan: dict[str, Any]) -> None:
    assert plan["labels"].items() <= config["Labels"].items()


def test_it_does_not_run_as_root(config: dict[str, Any], host: Host) -> None:
    assert config["User"] == "1000:1000"
    assert host.check_output("id -u") == str(UID)


def test_cache_roots_lie_below_one_folder(config: dict[str, Any]) -> None:
    roots = {
        name: value for name, value in environment(config).items() if name.endswith(("_CACHE_DIR", "_BASE", "_HOME"))
    }
    outside = {name for name, value in roots.items() if not value.startswith(("/cache/", "/usr/local/cuda"))}
    assert outside == set()


def test_the_root_is_read_only_and_the_cache_is_not(host: Host) -> None:
    assert host.run("touch /opt/kiln/x").rc != 0
    assert host.run("touch /cache/x").rc == 0


def test_an_init_is_the_first_process(host: Host) -> None:
    assert host.check_output("cat /proc/1/comm") == "tini"


def test_the_entrypoint_passes_the_server_s_exit_status_on(runtime: Runtime) -> None:
    options = ["--rm", "--env=KILN_LAUNCHER=bash", "--tmpfs=/cache:mode=1777"]
    assert runtime.run("-c", "exit 7", options=options, check=False).returncode == 7


def test_the_health_check_is_in_the_config_and_says_dead_where_nothing_is_served(
    config: dict[str, Any], host: Host, runtime: Runtime
) -> None:
    if runtime.program == "docker":  # podman reads none from OCI images
        assert config["Healthcheck"]["Test"] == ["CMD", "kiln-health"]
    found = host.run("kiln-health")
    assert (found.rc, found.stdout) == (1, "DEAD there is no server process\n")


def test_the_server_s_own_help_answers(runtime: Runtime, plan: dict[str, Any]) -> None:
    if plan["pins"]["torch"].endswith("+cpu"):
        pytest.skip("NOT_RUN: this stack installs SGLang without its dependencies")
    options = ["--rm", f"--user={UID}:{UID}", "--tmpfs=/cache:mode=1777,exec"]
    assert "--model-path" in runtime.run("--help", options=options).stdout


def test_sglang_is_installed_where_the_plan_says(host: Host) -> None:
    assert host.file(f"{SITE}/sglang/__init__.py").exists


def test_bytecode_is_checked_by_hash_not_by_time(python: Any) -> None:
    assert python(_PYC) == []


def test_the_builder_left_no_traces(host: Host, config: dict[str, Any]) -> None:
    assert "SOURCE_DATE_EPOCH" not in environment(config)
    left = host.run(
        "find /run/kiln /tmp /var/lib/apt/lists /root -mindepth 1 -type f -size +0 -not -path '/run/kiln/tools/*'"
    )
    assert [name for name in left.stdout.split() if not name.startswith("/root/.")] == []
