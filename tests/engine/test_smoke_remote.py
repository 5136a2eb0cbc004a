"""`inv smoke` against real sshd in network namespaces: healthy, cut off, slow, without sudo, refusing, hung, killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from kiln import host
from kiln.receipt import Outcome, Receipt
from kiln.scrub import hash_name
from kiln.settings import ROOT, Settings, from_env
from kiln.smoke import runner
from kiln.smoke.options import Options
from kiln.verdict import Verdict
from tests.sshnodes import SshNode, Wanted, nodes, until

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(not host.is_root(), reason="NOT_RUN: network namespaces take root"),
]
# The probe hangs, everything else of Python works.
HANGS = (
    ("python3", 'case "$*" in *probe.pyz*) touch /tmp/probing; exec sleep 300;; esac; exec /usr/bin/python3 "$@"'),
)
NO_ENGINE = (("docker", "exit 1"), ("podman", "exit 1"))
SLOW = "/run/node/bin/slow"
WELCOME = 'sleep 3; echo welcome; exec /bin/sh "$@"'
WANTED = (
    Wanted("healthy", programs=NO_ENGINE),
    Wanted("cut", programs=(*HANGS, *NO_ENGINE)),
    Wanted("slow", user="operator", shell=SLOW, programs=(("slow", WELCOME), *NO_ENGINE)),
    Wanted("plain", user="operator", programs=(("sudo", "echo a password is required >&2; exit 1"), *NO_ENGINE)),
    Wanted("refusing", accepts_key=False),
    Wanted("hung", programs=(*HANGS, *NO_ENGINE)),
)  # fmt: skip


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, SshNode]]:
    """Six nodes; HOME is that of an operator whose ~/.ssh/config knows them."""
    folder = tmp_path_factory.mktemp("cluster")
    host.ensure(from_env(), ("sshd", "ssh", "ip"), print)
    with nodes(folder, WANTED) as found, pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(folder / "home"))
        yield found


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """A checkout of its own for receipts."""
    root = tmp_path_factory.mktemp("checkout")
    for name in ("topologies", "presets"):
        (root / name).symlink_to(ROOT / name)
    return replace(from_env(), root=root, home=tmp_path_factory.mktemp("home"))


def smoke(settings: Settings, *hosts: str, deadline: int = 120) -> dict[str, runner.Ran]:
    options = Options(hosts=hosts, phases=("preflight",), deadline=deadline)
    found = runner.smoke(settings, runner.plan(settings, options), quiet=True)
    return {one.job.host: one for one in found}


@pytest.fixture(scope="module")
def ran(cluster: dict[str, SshNode], settings: Settings) -> dict[str, runner.Ran]:
    """Five nodes smoked at once; one loses its link while its probe runs."""

    def cut() -> None:
        until((cluster["cut"].files / "probing").exists, 90)
        cluster["cut"].cut()

    cutter = threading.Thread(target=cut)
    cutter.start()
    try:
        return smoke(settings, "healthy", "cut", "slow", "plain", "refusing")
    finally:
        cutter.join()


def outcome(receipt: Receipt, check: str) -> Outcome:
    return next(one for one in receipt.outcomes if one.check == check)


def left(node: SshNode) -> list[str]:
    """Return what of ours is on a node."""
    return [path.name for path in node.files.iterdir() if path.name.startswith("kiln-smoke-")]


@pytest.mark.parametrize("name", ["healthy", "slow", "plain"])
def test_a_node_that_answers_is_judged_and_left_as_it_was(
    name: str, cluster: dict[str, SshNode], ran: dict[str, runner.Ran]
) -> None:
    receipt = ran[name].receipt
    assert outcome(receipt, "run/connection").verdict is Verdict.PASS
    assert not [one for one in receipt.outcomes if one.message == "not reached"]
    assert receipt.node.kernel == os.uname().release
    driver = outcome(receipt, "preflight/driver")
    assert (driver.verdict, driver.message) == (Verdict.FAIL, "the driver does not answer")
    assert driver.cause
    assert driver.cure
    assert outcome(receipt, "run/teardown").verdict is Verdict.PASS
    assert left(cluster[name]) == []


def test_preflight_takes_few_round_trips(ran: dict[str, runner.Ran]) -> None:
    assert outcome(ran["healthy"].receipt, "run/teardown").numbers["round_trips"] in range(1, 31)


def test_a_node_without_sudo_is_judged_by_what_its_user_can_read(ran: dict[str, runner.Ran]) -> None:
    receipt = ran["plain"].receipt
    assert "without sudo" in outcome(receipt, "run/connection").message
    assert "as root" in outcome(ran["healthy"].receipt, "run/connection").message
    assert outcome(receipt, "preflight/filesystem").verdict is Verdict.PASS


def test_a_slow_login_shell_costs_time_and_no_verdict(ran: dict[str, runner.Ran]) -> None:
    connected = outcome(ran["slow"].receipt, "run/connection")
    assert connected.verdict is Verdict.PASS
    assert (connected.numbers["connect_seconds"] or 0) >= 3


def test_a_node_that_was_cut_off_costs_its_own_verdict_only(ran: dict[str, runner.Ran]) -> None:
    receipt = ran["cut"].receipt
    connection = outcome(receipt, "run/connection")
    assert receipt.verdict is Verdict.FAIL
    assert (connection.verdict, connection.cause) == (
        Verdict.FAIL, "the link or the node went down during the run")  # fmt: skip
    assert connection.cure
    preflight = [one for one in receipt.outcomes if one.check.startswith("preflight/")]
    assert preflight
    assert {one.verdict for one in preflight} == {Verdict.NOT_RUN}
    teardown = outcome(receipt, "run/teardown")
    assert teardown.verdict is Verdict.FAIL
    assert "by hand there: sh" in teardown.cure


def test_a_node_that_refuses_the_key_says_so_and_asks_for_no_password(ran: dict[str, runner.Ran]) -> None:
    connection = outcome(ran["refusing"].receipt, "run/connection")
    assert connection.verdict is Verdict.FAIL
    assert "Permission denied" in connection.message
    assert "authorized_keys" in connection.cure


def test_each_node_has_a_receipt_and_a_junit_report(ran: dict[str, runner.Ran]) -> None:
    assert len({one.path for one in ran.values()}) == 5
    for one in ran.values():
        tests = {test.get("name"): test for test in ElementTree.parse(one.job.junit).iter("testcase")}
        assert "test_before_the_pull[preflight/driver]" in tests
        assert one.receipt.node.name_hash == hash_name(one.job.host)


def test_what_the_deadline_cuts_off_is_not_run(cluster: dict[str, SshNode], settings: Settings) -> None:
    one = smoke(settings, "hung", deadline=12)["hung"]
    assert one.receipt.verdict is Verdict.NOT_RUN
    assert outcome(one.receipt, "preflight/driver").message == "the deadline of 12 s came while node ran"
    assert outcome(one.receipt, "run/teardown").verdict is Verdict.PASS
    assert one.job.junit.exists()
    assert left(cluster["hung"]) == []


def test_a_process_that_is_killed_leaves_a_receipt_and_nothing_on_the_node(
    cluster: dict[str, SshNode], settings: Settings
) -> None:
    probing = cluster["hung"].files / "probing"
    probing.unlink(missing_ok=True)

    def kill() -> None:
        until(probing.exists, 60)
        for pid in _pytests(settings.home):
            os.kill(pid, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    one = smoke(settings, "hung")["hung"]
    killer.join()
    broken = outcome(one.receipt, "run/process")
    assert (broken.verdict, broken.message) == (Verdict.FAIL, "its process ended with -9")
    assert outcome(one.receipt, "run/connection").verdict is Verdict.PASS
    assert outcome(one.receipt, "preflight/driver").message == "not reached"
    assert left(cluster["hung"]) == []


def test_ctrl_c_tidies_up_on_the_node(cluster: dict[str, SshNode], settings: Settings) -> None:
    probing = cluster["hung"].files / "probing"
    probing.unlink(missing_ok=True)
    script = (
        "import signal, sys; from dataclasses import replace; from pathlib import Path; from kiln.cli import reported\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it\n"
        "from kiln.settings import from_env; from kiln.smoke import runner; from kiln.smoke.options import Options\n"
        "settings = replace(from_env(), root=Path(sys.argv[1]), home=Path(sys.argv[2]))\n"
        "options = Options(hosts=('hung',), phases=('preflight',))\n"
        "reported(lambda: runner.smoke(settings, runner.plan(settings, options)))()\n"
    )
    argv = [sys.executable, "-c", script, str(settings.root), str(settings.home)]
    with subprocess.Popen(argv, cwd=ROOT, stderr=subprocess.PIPE, text=True) as started:
        until(probing.exists, 60)
        started.send_signal(signal.SIGINT)
        said = started.communicate(timeout=90)[1]
    assert started.returncode == 130
    assert "interrupted" in said
    assert left(cluster["hung"]) == []
    assert _pytests(settings.home) == []
    newest = max((settings.root / "receipts" / "smoke").glob("*/*.json"), key=lambda file: file.stat().st_mtime)
    receipt = Receipt.model_validate_json(newest.read_bytes())
    assert "was stopped" in outcome(receipt, "preflight/driver").message


def _pytests(home: Path) -> list[int]:
    """Return the processes that look at nodes for a home."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = file.read_bytes()
        except OSError:
            continue
        if b"--kiln-job=" + str(home).encode() in words:
            found.append(int(file.parent.name))
    return found
