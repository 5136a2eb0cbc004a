"""Daemons are recognised, sockets fit, and what the user has is used as it is. Nothing is started here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kiln import daemon, dockerd, registryd, services
from kiln.errors import KilnError, UserError
from kiln.settings import Settings, from_env


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as process:
        while b"sleep" not in Path(f"/proc/{process.pid}/cmdline").read_bytes():
            time.sleep(0.01)  # until the new program has its name
        yield process
        process.kill()


def settings(home: Path, **variables: str) -> Settings:
    return from_env({"KILN_HOME": str(home), **variables})


def test_a_daemon_is_remembered_recalled_and_stopped(tmp_path: Path, sleeper: subprocess.Popen[bytes]) -> None:
    kept = daemon.remember(tmp_path / "x" / "state.json", sleeper.pid, "here")
    assert daemon.recall(tmp_path / "x" / "state.json") == kept
    assert daemon.is_alive(kept)
    assert daemon.stop(kept, timeout_s=5)
    assert not daemon.is_alive(kept)
    assert not daemon.stop(kept)


def test_a_recycled_pid_is_never_killed(tmp_path: Path, sleeper: subprocess.Popen[bytes]) -> None:
    now = daemon.remember(tmp_path / "state.json", sleeper.pid, "here")
    ticks, _, boot = now.started.partition("@")
    for started in (f"{int(ticks) - 1}@{boot}", f"{ticks}@another-boot"):
        earlier = daemon.Daemon(sleeper.pid, started, "here")
        assert not daemon.is_alive(earlier)
        assert not daemon.stop(earlier)
    assert sleeper.poll() is None


def test_a_zombie_is_not_alive() -> None:
    process = subprocess.Popen(["true"])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert daemon.start_time(process.pid) is None
    process.wait()


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"pid": 1}', '{"pid": 1, "started": "", "address": "", "x": 1}']
)
def test_a_broken_state_file_counts_as_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "state.json").write_text(text)
    assert daemon.recall(tmp_path / "state.json") is None


def test_a_process_that_never_answers_is_stopped_and_its_log_shown(
    tmp_path: Path, sleeper: subprocess.Popen[bytes]
) -> None:
    log = tmp_path / "log"
    log.write_text("first\nfailed to start: no overlay\n")
    with pytest.raises(KilnError, match=r"did not answer within 0 s; the end of .*log:\nfirst\nfailed to start"):
        daemon.settle(tmp_path / "state.json", sleeper.pid, "here", log, lambda: False, 0.3)
    sleeper.wait(timeout=5)


def test_sockets_stay_below_home_where_they_fit_and_move_to_run_where_not(tmp_path: Path) -> None:
    short, long = settings(Path("/srv/kiln")), settings(Path("/srv") / ("d" * 80))
    assert dockerd.run_dir(short) == Path("/srv/kiln/engine/run")
    assert str(dockerd.run_dir(long)).startswith("/run/kiln-")
    for each in (short, long):
        assert len(f"{dockerd.run_dir(each)}/exec/containerd/containerd.sock.ttrpc") < 108
    assert len(dockerd.bridge_name(short)) <= 15
    assert dockerd.bridge_name(short) != dockerd.bridge_name(long)


def test_our_engine_leaves_bridge_firewall_and_routing_of_the_host_alone() -> None:
    config = dockerd.config(settings(Path("/srv/kiln")))
    assert config["bridge"] not in ("none", "docker0", "")
    assert not any(config[key] for key in ("iptables", "ip-masq", "ip-forward"))
    roots = ("data-root", "exec-root", "pidfile")
    assert all(str(config[key]).startswith("/srv/kiln/engine/") for key in roots)


def test_an_earlier_boots_run_directory_is_cleaned_and_this_boots_kept(tmp_path: Path) -> None:
    here = dockerd.run_dir(settings(tmp_path))
    dockerd._clean_run_dir(settings(tmp_path))
    (here / "exec").mkdir()
    dockerd._clean_run_dir(settings(tmp_path))
    assert (here / "exec").exists()
    (here / "boot").write_text("another")
    dockerd._clean_run_dir(settings(tmp_path))
    assert not (here / "exec").exists()


def test_a_pid_file_is_dropped_when_its_process_is_gone_or_anothers(
    tmp_path: Path, sleeper: subprocess.Popen[bytes]
) -> None:
    file = tmp_path / "x.pid"
    program = Path(f"/proc/{sleeper.pid}/comm").read_text().strip()
    for text, name, stays in (
        (sleeper.pid, program, True),
        (sleeper.pid, "dockerd", False),
        (2**22 + 1, program, False),
        ("", program, False),
    ):
        file.write_text(f"{text}")
        dockerd._drop_if_stale(file, name)
        assert file.exists() is stays
    dockerd._drop_if_stale(file, program)


def test_the_registry_listens_on_loopback_and_keeps_its_secret(tmp_path: Path) -> None:
    secret = registryd._secret(tmp_path / "secret")
    assert registryd._secret(tmp_path / "secret") == secret
    assert len(secret) == 64
    assert (tmp_path / "secret").stat().st_mode & 0o777 == 0o600
    config = json.loads(registryd.config(tmp_path, "127.0.0.1:5000", secret))
    assert config["http"] == {"addr": "127.0.0.1:5000", "secret": secret}
    assert config["storage"]["delete"] == {"enabled": True}


def test_the_users_registry_is_used_as_it_is(tmp_path: Path) -> None:
    mine = services.registry_up(settings(tmp_path, KILN_REGISTRY="reg.example:5000/team/"))
    assert mine == services.Service("registry", "reg.example:5000/team", started_by_us=False)
    assert mine.describe() == "registry reg.example:5000/team (yours)"


def test_an_engine_that_the_user_names_and_that_is_silent_is_an_error_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    with pytest.raises(UserError) as caught:
        services.engine_up(settings(tmp_path))
    assert f"unix://{tmp_path}/none.sock) does not answer: nothing listens there" in str(caught.value)
    assert "unset DOCKER_HOST" in str(caught.value)


def test_without_root_no_engine_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    monkeypatch.setattr("kiln.dockerd.silence", lambda variables: "nothing listens there")
    monkeypatch.setattr("kiln.host.is_root", lambda: False)
    with pytest.raises(UserError, match=r"no container engine answers .*starting one takes root"):
        services.engine_up(settings(tmp_path))


def test_down_stops_nothing_that_kiln_did_not_start(tmp_path: Path) -> None:
    assert services.down(settings(tmp_path)) == ()
