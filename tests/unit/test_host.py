"""What the host lacks and how much it has."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from kiln import host
from kiln.errors import UserError
from kiln.settings import Settings, from_env

GIB = 2**30
UNLIMITED_V1 = "9223372036854771712"


def settings(tmp_path: Path, **variables: str) -> Settings:
    return from_env({"KILN_HOME": str(tmp_path / "home"), **variables}, root=tmp_path)


@pytest.fixture
def bare_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH with nothing on it but what the test puts there."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setattr(host, "SYSTEM_PATH", ())
    monkeypatch.setenv("PATH", str(folder))
    return folder


def program(folder: Path, name: str, text: str = "") -> Path:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_missing_programs_are_told_as_packages_each_once(bare_path: Path) -> None:
    program(bare_path, "skopeo")
    assert host.missing(["docker", "dockerd", "skopeo", "mmdebstrap"]) == ("docker.io", "mmdebstrap")


def test_dockerd_is_found_where_a_plain_users_path_has_no_word_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert "/usr/sbin" in host.search_path().split(os.pathsep)
    assert host.which("sh") is not None


def test_kiln_no_install_refuses_and_says_what_to_install(tmp_path: Path, bare_path: Path) -> None:
    program(bare_path, "apt-get", "exit 9")
    with pytest.raises(UserError) as caught:
        host.ensure(settings(tmp_path, KILN_NO_INSTALL="1"), ["skopeo", "dockerd"], print)
    assert caught.value.exit_code == 2
    assert "this host lacks docker.io skopeo, and KILN_NO_INSTALL is set" in str(caught.value)
    assert "hint: apt-get install --no-install-recommends docker.io skopeo" in str(caught.value)


def test_without_root_the_very_command_is_told(
    tmp_path: Path, bare_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(bare_path, "apt-get", "exit 9")
    monkeypatch.setattr(host, "is_root", lambda: False)
    with pytest.raises(UserError, match="hint: sudo apt-get install --no-install-recommends mmdebstrap"):
        host.ensure(settings(tmp_path), ["mmdebstrap"], print)


def test_a_host_without_apt_is_told_to_use_its_own_package_manager(tmp_path: Path, bare_path: Path) -> None:
    with pytest.raises(UserError, match="it is not Debian"):
        host.ensure(settings(tmp_path), ["skopeo"], print)


def test_nothing_is_installed_or_announced_if_all_is_there(tmp_path: Path, bare_path: Path) -> None:
    program(bare_path, "skopeo")
    said: list[str] = []
    host.ensure(settings(tmp_path, KILN_NO_INSTALL="1"), ["skopeo"], said.append)
    assert said == []


def test_an_install_is_announced_before_apt_runs_and_never_removes(
    tmp_path: Path, bare_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "is_root", lambda: True)
    program(bare_path, "apt-get", f'echo "$@" >> {tmp_path}/calls')
    said: list[str] = []
    host.ensure(settings(tmp_path), ["skopeo"], said.append)
    assert said == ["installing Debian packages: skopeo (KILN_NO_INSTALL=1 refuses)"]
    update, install = (tmp_path / "calls").read_text().splitlines()
    assert update == "-q update"
    assert install.endswith("install skopeo")
    assert {"--no-remove", "--no-install-recommends"} <= set(install.split())


def test_a_failed_install_shows_apts_last_words_and_the_log(
    tmp_path: Path, bare_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "is_root", lambda: True)
    program(bare_path, "apt-get", "echo 'E: Unable to locate package skopeo' >&2; exit 100")
    with pytest.raises(UserError) as caught:
        host.ensure(settings(tmp_path), ["skopeo"], lambda line: None)
    assert "ended with 100" in str(caught.value)
    assert "E: Unable to locate package skopeo" in str(caught.value)
    assert "logs/install.log" in str(caught.value)


def tree(root: Path, files: Mapping[str, str]) -> Path:
    base = {"proc/meminfo": "MemTotal:       24629244 kB\nMemFree: 1 kB\nMemAvailable:   23068672 kB\n"}
    for name, text in {**base, **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    ("files", "limit"),
    [
        ({"proc/self/cgroup": ""}, 24629244 * 1024),
        ({"proc/self/cgroup": "0::/user.slice\n", "sys/fs/cgroup/memory.max": "max\n",
          "sys/fs/cgroup/user.slice/memory.max": "max\n"}, 24629244 * 1024),
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/memory.max": f"{8 * GIB}\n",
          "sys/fs/cgroup/a/b/memory.max": f"{9 * GIB}\n"}, 8 * GIB),
        ({"proc/self/cgroup": "4:memory:/docker/ab\n2:cpu,cpuacct:/x\n",
          "sys/fs/cgroup/memory/memory.limit_in_bytes": UNLIMITED_V1,
          "sys/fs/cgroup/memory/docker/ab/memory.limit_in_bytes": f"{4 * GIB}\n"}, 4 * GIB),
        # A container sees its own cgroup as the root of the mount, whatever /proc says.
        ({"proc/self/cgroup": "4:memory:/docker/ab\n",
          "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{4 * GIB}\n"}, 4 * GIB),
        ({"proc/self/cgroup": "0::/../../x\n", "sys/fs/cgroup/memory.max": f"{2 * GIB}\n"}, 2 * GIB),
    ],
    ids=["no cgroup", "v2 without limit", "v2 of a parent", "v1", "v1 in a container", "v2 outside its namespace"],
)  # fmt: skip
def test_the_memory_limit_is_the_smallest_of_machine_and_cgroups(
    tmp_path: Path, files: Mapping[str, str], limit: int
) -> None:
    assert host.memory_limit(tree(tmp_path, files)) == limit


def test_available_memory_never_exceeds_the_limit(tmp_path: Path) -> None:
    root = tree(tmp_path, {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": f"{2 * GIB}\n"})
    assert host.memory_available(root) == 2 * GIB


def test_this_machine_has_memory_disk_and_cpus(tmp_path: Path) -> None:
    assert host.memory_limit() > GIB // 4
    assert host.disk_free(tmp_path / "not" / "yet") > 0
    assert host.cpus() >= 1
