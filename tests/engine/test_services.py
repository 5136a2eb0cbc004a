"""Our own engine and registry, really started, killed, found again and stopped, beside whatever else runs here."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from kiln import bridge, daemon, dockerd, host, registryd, services
from kiln.engines import docker
from kiln.engines.progress import Line
from kiln.engines.request import Request
from kiln.errors import KilnError
from kiln.settings import Settings, from_env

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(not host.is_root(), reason="NOT_RUN: starting an engine takes root"),
]


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Settings]:
    for name in ("DOCKER_HOST", "DOCKER_CONTEXT", "KILN_REGISTRY"):
        monkeypatch.delenv(name, raising=False)
    found = from_env({"KILN_HOME": str(tmp_path / "home")})
    yield found
    services.down(found)


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a host where no engine of the user's answers, though the suite itself may have been led to one."""
    for name in ("DOCKER_HOST", "DOCKER_CONTEXT"):
        monkeypatch.delenv(name, raising=False)
    real = dockerd.silence
    monkeypatch.setattr(dockerd, "silence", lambda variables: real(variables) if variables else "nothing listens there")


def test_an_engine_starts_beside_another_and_leaves_nothing_when_stopped(settings: Settings, alone: None) -> None:
    had_docker0 = bridge.exists("docker0")
    said: list[str] = []
    first = services.engine_up(settings, said.append)
    assert first.started_by_us
    assert first.pid
    assert any("starting a container engine of our own" in line for line in said)
    assert services.engine_up(settings) == first
    assert services.running(settings) == (first,)
    name = dockerd.bridge_name(settings)
    assert bridge.exists(name)
    assert services.engine_down(settings) == first
    assert not bridge.exists(name)
    assert not Path(f"/proc/{first.pid}").exists() or daemon.start_time(first.pid) is None
    assert services.engine_down(settings) is None
    assert bridge.exists("docker0") == had_docker0


def test_an_engine_that_was_killed_is_started_again(settings: Settings, alone: None) -> None:
    first = services.engine_up(settings)
    assert first.pid
    os.kill(first.pid, signal.SIGKILL)
    second = services.engine_up(settings)
    assert second.started_by_us
    assert second.pid != first.pid
    assert second.address == first.address


def test_an_engine_below_a_long_path_listens_below_run_and_leaves_nothing_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, alone: None
) -> None:
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    settings = from_env({"KILN_HOME": str(tmp_path / ("long" * 20))})
    try:
        assert services.engine_up(settings).address.startswith("unix:///run/kiln-")
    finally:
        services.down(settings)
    assert not dockerd.run_dir(settings).exists()


def test_our_engine_builds_without_network_and_keeps_all_of_a_steps_output(
    settings: Settings, alone: None, tmp_path: Path
) -> None:
    engine = docker.find(services.engine_up(settings).address)
    context = tmp_path / "context"
    (context / "lib").mkdir(parents=True)
    for source, target in (("/bin/dash", "sh"), ("/lib64/ld-linux-x86-64.so.2", "ld-linux-x86-64.so.2"),
                           ("/lib/x86_64-linux-gnu/libc.so.6", "lib/libc.so.6")):  # fmt: skip
        shutil.copy(source, context / target)
    # As slow as a compiler: BuildKit 20.10 splits more than 1 MiB between two looks into one message a line, and then
    # keeps daemon and client busy for minutes.
    wait = "j=0; while [ $j -lt 150 ]; do j=$((j+1)); done"
    loop = f"i=0; while [ $i -lt 40000 ]; do echo line $i xxxxxxxxxxxxxxxxxxxxxxxxxxxx; i=$((i+1)); {wait}; done"
    (context / "Dockerfile").write_text(
        "FROM scratch\nCOPY sh /bin/sh\nCOPY lib /lib/x86_64-linux-gnu/\nCOPY ld-linux-x86-64.so.2 /lib64/\n"
        f"RUN {loop}\n"
    )
    lines: list[Line] = []
    engine.build(Request(context, "kiln-own:1", tmp_path / "log", no_cache=True), lines.append)
    assert engine.image_id("kiln-own:1")
    said = [line.text for line in lines if line.kind == "output"]
    assert said[-1] == "line 39999 xxxxxxxxxxxxxxxxxxxxxxxxxxxx"
    assert not [line for line in lines if "clipped" in line.text]
    root = engine.data_root()
    assert root
    assert root == settings.home / "engine" / "data"


def test_an_engine_at_the_longest_path_that_stays_below_home_answers(alone: None) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        pad = dockerd.LONGEST_RUN_DIR - len(f"{folder}/") - len("/engine/run")
        settings = from_env({"KILN_HOME": f"{folder}/{'x' * pad}"})
        try:
            assert services.engine_up(settings).address == f"unix://{settings.home}/engine/run/docker.sock"
        finally:
            services.down(settings)


def test_an_engine_that_cannot_start_shows_the_end_of_its_log(settings: Settings, alone: None) -> None:
    (settings.home / "engine").mkdir(parents=True)
    (settings.home / "engine" / "data").write_text("a file where a folder must be")
    with pytest.raises(KilnError) as caught:
        services.engine_up(settings)
    assert "logs/engine.log" in str(caught.value)
    assert "points to a file" in str(caught.value)


def test_the_users_engine_is_used_as_it_is(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    other = from_env({"KILN_HOME": str(settings.home / "other")})
    known = dockerd.start(other, services.silent)
    try:
        monkeypatch.setenv("DOCKER_HOST", known.address)
        found = services.engine_up(settings)
        assert found == services.Service("engine", known.address, started_by_us=False)
        assert services.engine_down(settings) is None
        assert daemon.is_alive(known)
    finally:
        services.down(other)


def answer(address: str) -> int:
    with urllib.request.urlopen(f"http://{address}/v2/", timeout=5) as reply:
        return int(reply.status)


def test_a_registry_starts_is_found_again_and_keeps_port_and_secret_over_a_restart(settings: Settings) -> None:
    first = services.registry_up(settings)
    assert first.address.startswith("127.0.0.1:")
    assert answer(first.address) == 200
    assert services.registry_up(settings) == first
    secret = (settings.home / "registry" / "secret").read_text()
    assert services.registry_down(settings) == first
    assert not registryd.answers(first.address)
    second = services.registry_up(settings)
    assert second.address == first.address
    assert json.loads((settings.home / "registry" / "config.yml").read_text())["http"]["secret"] == secret


def test_a_taken_port_is_left_to_its_owner(settings: Settings) -> None:
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            taken.bind(("127.0.0.1", 5000))
            taken.listen()
        except OSError:
            pass  # someone else has it: as good
        assert services.registry_up(settings).address != "127.0.0.1:5000"


def test_a_registry_that_was_killed_is_started_again(settings: Settings) -> None:
    first = services.registry_up(settings)
    assert first.pid
    os.kill(first.pid, signal.SIGKILL)
    second = services.registry_up(settings)
    assert second.pid != first.pid
    assert second.address == first.address


def test_two_who_start_at_once_get_the_same_registry(settings: Settings) -> None:
    code = (
        "from kiln import services; from kiln.settings import from_env; "
        "found = services.registry_up(from_env()); print(found.pid, found.address)"
    )
    env = {**os.environ, "KILN_HOME": str(settings.home), "PYTHONPATH": str(settings.root)}
    both = [subprocess.Popen([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE, text=True) for _ in "ab"]
    said = [each.communicate(timeout=60)[0] for each in both]
    assert said[0] == said[1] != ""
