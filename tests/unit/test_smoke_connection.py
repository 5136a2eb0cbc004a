"""The connection: every command ends, its own status is told, and what broke is explained."""

from __future__ import annotations

import hashlib
import os
import re
import threading
import time
from pathlib import Path

import pytest
from testinfra.host import Host

from kiln.run import CutOff
from kiln.settings import ROOT
from kiln.smoke import ssh
from kiln.smoke.connection import Connection, NodeLost, Target, TimedOut, call, connect, of, unwrapped, wrapped

pytestmark = pytest.mark.unit
HERE = Target()


@pytest.mark.parametrize(
    ("command", "status", "output"),
    [
        ("echo one; echo two", 0, "one\ntwo\n"),
        ("printf 'no end'", 0, "no end"),
        ("exit 255", 255, ""),
        ("kill -9 $$", 137, ""),
        ("echo 'it''s \"quoted\" $HOME' | cat", 0, 'its "quoted" $HOME\n'),
        ("cat", 0, ""),
        ("no-such-program", 127, ""),
    ],
)
def test_a_command_gives_its_own_status_and_output(command: str, status: int, output: str) -> None:
    """testinfra itself raises for status 255, and for a signal."""
    answer = call(connect(HERE), command)
    assert (answer.rc, answer.stdout) == (status, output)


def test_input_arrives_as_it_is() -> None:
    data = bytes(range(256)) * 2000
    answer = call(connect(HERE), "sha256sum", stdin=data)
    assert answer.stdout.split()[0] == hashlib.sha256(data).hexdigest()


def test_a_command_that_hangs_is_ended_there() -> None:
    began = time.monotonic()
    with pytest.raises(TimedOut, match="was still running after 1 s") as caught:
        call(connect(HERE), "echo so far; sleep 30", timeout_s=1)
    assert caught.value.output == "so far\n"
    assert time.monotonic() - began < 5


def test_a_command_that_ignores_the_signal_is_killed() -> None:
    with pytest.raises(TimedOut):
        call(connect(HERE), "trap '' TERM; while :; do sleep 0.2; done", timeout_s=1)


def test_a_command_that_says_124_itself_did_not_time_out() -> None:
    assert call(connect(HERE), "exit 124").rc == 124


def test_every_module_of_testinfra_goes_through_the_limit() -> None:
    host = connect(HERE)
    before = of(host).counts.round_trips
    assert host.file("/etc/passwd").exists
    assert host.check_output("echo hello") == "hello"
    assert of(host).counts.round_trips - before >= 2


def test_a_run_that_is_stopped_ends_its_command_at_once() -> None:
    stop = threading.Event()
    threading.Timer(0.5, stop.set).start()
    began = time.monotonic()
    with pytest.raises(CutOff, match="was stopped"):
        call(connect(HERE, stop), "sleep 30")
    assert time.monotonic() - began < 5
    with pytest.raises(CutOff):
        call(connect(HERE, stop), "true")


@pytest.fixture
def fake_ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An `ssh` that does as it is told in a script; what goes over a network is tested with the real one elsewhere."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return tmp_path / "ssh"


def _script(file: Path, text: str) -> None:
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)


def test_a_login_that_hangs_is_ended_by_the_watchdog_on_this_side(fake_ssh: Path) -> None:
    _script(fake_ssh, "trap '' TERM; sleep 60")
    host = Host(Connection(Target("n1", Path("config")), login_s=-24))
    with pytest.raises(NodeLost, match=r"n1: no answer for 1 s") as caught:
        call(host, "true")
    assert "login shell" in caught.value.fault.cause
    assert ".bashrc" in caught.value.fault.cure


@pytest.mark.parametrize(
    ("said", "message", "cause"),
    [
        (
            "echo 'root@n1: Permission denied (publickey).' >&2; exit 255",
            "Permission denied",
            "accepts none of the keys",
        ),
        ("echo 'ssh: Could not resolve hostname n1: x' >&2; exit 255", "Could not resolve", "knows this name"),
        ("echo 'ssh: connect to host n1 port 22: Connection timed out' >&2; exit 255", "timed out", "the node is down"),
        ("echo 'Host key verification failed.' >&2; exit 255", "Host key", "is not known here"),
        ("echo kiln-begin; exit 255", "broke while a command ran", "went down during the run"),
        ("echo 'This account is not available.'; exit 1", "ssh ended with 1", "does not run /bin/sh"),
        ("kill -9 $$", "ssh ended with -9", "ended at once"),
    ],
)
def test_what_ssh_says_is_explained(fake_ssh: Path, said: str, message: str, cause: str) -> None:
    _script(fake_ssh, said)
    with pytest.raises(NodeLost, match=message) as caught:
        call(connect(Target("n1", Path("config"))), "true")
    assert cause in caught.value.fault.cause
    assert caught.value.fault.cure


def test_a_login_shell_that_talks_does_not_spoil_the_output(fake_ssh: Path) -> None:
    _script(fake_ssh, 'echo "Welcome!"; for script; do :; done; exec /bin/sh -c "$script"')
    answer = call(connect(Target("n1", Path("config"))), "echo hello; exit 255")
    assert (answer.rc, answer.stdout) == (255, "hello\n")


@pytest.mark.parametrize("text", ["", "kiln-begin\nhalf", "\nkiln-end 0\n", "kiln-begin\nx\nkiln-end \n"])
def test_an_output_without_its_end_has_no_status(text: str) -> None:
    assert unwrapped(text) is None


def test_the_wrapper_is_bounded_and_quotes() -> None:
    assert "timeout -k 5 7 " in wrapped("echo 'a b'", 7)


def test_the_configuration_asks_for_no_password_and_notices_a_dead_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "config").write_text("Host n1\n  Port 2222\n")
    with ssh.configured() as file:
        text = file.read_text()
        assert file.parent.stat().st_mode & 0o777 == 0o700
        assert len(str(file.parent)) + 1 + 40 + 17 < 108
    assert not file.parent.exists()
    for line in ("BatchMode yes", "ConnectTimeout 10", "ControlMaster auto", "ControlPersist 60",
                 "ServerAliveInterval 3", "ServerAliveCountMax 3", f"ControlPath {file.parent}/%C"):  # fmt: skip
        assert f"  {line}\n" in text
    assert f"  Include {tmp_path}/.ssh/config\n" in text


def test_no_command_of_smoke_is_without_a_limit() -> None:
    """Commands on nodes go through `call`, processes here through `run.bounded`; nothing else starts one."""
    loose = re.compile(r"\b(host\.run|\.run_local|run_ssh|get_host|check_output|run\.(run|stream|attached|reading))\(")
    found = {
        f"{file.name}: {match[0]}"
        for file in (ROOT / "kiln" / "smoke").glob("*.py")
        for match in loose.finditer(file.read_text(encoding="utf-8"))
    }
    assert found == {"connection.py: host.run("}
