"""Nodes made of network namespaces: each its own link, sshd, host name, accounts and /tmp; nothing of the host changes.

Takes root. What is made has names of its own and goes at the end, whatever happened.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

SHELL = "/bin/sh"
# Where a node finds its own folder; its /run is empty otherwise, so that no container engine of the host answers there.
HERE = "/run/node"
ACCOUNTS = (
    "root:x:0:0::/root:{root}\nsshd:x:100:65534::/run/sshd:/usr/sbin/nologin\noperator:x:4242:4242::{home}:{shell}\n"
)


@dataclass(frozen=True)
class Wanted:
    """What a node is like: who logs in, with which shell, whether the key is accepted, what shadows programs there.

    `programs`: shell scripts by name that stand first in PATH.
    """

    name: str
    user: str = "root"
    shell: str = SHELL
    accepts_key: bool = True
    programs: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class SshNode:
    """A running node; `files` is its /tmp."""

    wanted: Wanted
    namespace: str
    link: str
    address: str
    folder: Path
    pid: int

    @property
    def files(self) -> Path:
        return self.folder / "tmp"

    def cut(self) -> None:
        """Take its link down."""
        ip("link", "set", self.link, "down")

    def mend(self) -> None:
        ip("link", "set", self.link, "up")


def ip(*words: str) -> None:
    """Run ip(8)."""
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=20)


def run_quietly(*words: str) -> None:
    subprocess.run(words, check=False, capture_output=True, timeout=20)


@contextmanager
def nodes(folder: Path, wanted: Sequence[Wanted]) -> Iterator[dict[str, SshNode]]:
    """Start the nodes, and write a home with an ssh configuration that knows them by name: `folder/home`."""
    tag = secrets.token_hex(3)
    net = f"10.{100 + int(tag[:2], 16) % 100}.{int(tag[2:4], 16)}"
    bridge = f"kb{tag}"
    with ExitStack() as stack:
        stack.callback(run_quietly, "ip", "link", "del", bridge)
        ip("link", "add", bridge, "type", "bridge")
        ip("address", "add", f"{net}.1/24", "dev", bridge)
        ip("link", "set", bridge, "up")
        keys(folder)
        found = {
            one.name: stack.enter_context(_node(folder, one, f"{tag}{number}", bridge, f"{net}.{number}"))
            for number, one in enumerate(wanted, 2)
        }
        _client(folder, found)
        yield found


def keys(folder: Path) -> None:
    """Make the operator's key and the nodes' host key."""
    home = folder / "home" / ".ssh"
    home.mkdir(parents=True, mode=0o700)
    for file in (home / "key", folder / "host_key"):
        argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(file)]
        subprocess.run(argv, check=True, capture_output=True, timeout=20)


def _client(folder: Path, found: dict[str, SshNode]) -> None:
    lines = [f"UserKnownHostsFile {folder}/known_hosts", "StrictHostKeyChecking accept-new", "IdentitiesOnly yes",
             f"IdentityFile {folder}/home/.ssh/key"]  # fmt: skip
    blocks = [f"Host {name}\n  HostName {node.address}\n  User {node.wanted.user}\n" for name, node in found.items()]
    text = "".join(blocks) + "Host *\n" + "".join(f"  {line}\n" for line in lines)
    (folder / "home" / ".ssh" / "config").write_text(text)


@contextmanager
def _node(folder: Path, wanted: Wanted, tag: str, bridge: str, address: str) -> Iterator[SshNode]:
    namespace, outside, inside = f"kiln-{tag}", f"kv{tag}", f"kw{tag}"
    own = folder / wanted.name
    own.mkdir()
    with ExitStack() as stack:
        stack.callback(run_quietly, "ip", "netns", "del", namespace)
        ip("netns", "add", namespace)
        stack.callback(run_quietly, "ip", "link", "del", outside)
        ip("link", "add", outside, "type", "veth", "peer", "name", inside, "netns", namespace)
        ip("link", "set", outside, "master", bridge, "up")
        ip("-n", namespace, "address", "add", f"{address}/24", "dev", inside)
        for link in ("lo", inside):
            ip("-n", namespace, "link", "set", link, "up")
        pid = stack.enter_context(_sshd(folder, own, wanted, namespace, address))
        yield SshNode(wanted, namespace, outside, address, own, pid)


@contextmanager
def _sshd(folder: Path, own: Path, wanted: Wanted, namespace: str, address: str) -> Iterator[int]:
    """Run sshd in the namespace, with accounts, /tmp and name of its own; gives its pid. It dies with us."""
    _write(folder, own, wanted, address)
    script = "\n".join([
        "set -e", f"hostname {wanted.name}", "mount --make-rprivate /", "mount -t tmpfs tmpfs /run",
        f"mkdir -p /run/sshd {HERE}", f"mount --bind {own} {HERE}", f"mount --bind {HERE}/passwd /etc/passwd",
        f"mount --bind {HERE}/shadow /etc/shadow", f"mount --bind {HERE}/tmp /tmp",
        f"exec /usr/sbin/sshd -D -e -f {HERE}/sshd_config",
    ])  # fmt: skip
    argv = ["setpriv", "--pdeathsig", "KILL", "ip", "netns", "exec", namespace, "unshare", "--uts", "--mount",
            "sh", "-c", script]  # fmt: skip
    with (own / "sshd.log").open("wb") as log:
        sshd = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    try:
        until(lambda: "Server listening" in (own / "sshd.log").read_text() or sshd.poll() is not None, 10)
        assert sshd.poll() is None, (own / "sshd.log").read_text()
        yield sshd.pid
    finally:
        for pid in [*_inside(namespace), sshd.pid]:
            with suppress(ProcessLookupError):
                os.kill(pid, 9)
        sshd.wait(timeout=10)


def _write(folder: Path, own: Path, wanted: Wanted, address: str) -> None:
    home = own / "home"
    for path in (own / "bin", home, own / "tmp"):
        path.mkdir()
    (own / "tmp").chmod(0o1777)
    for name, text in wanted.programs:
        (own / "bin" / name).write_text(f"#!/bin/sh\n{text}\n")
        (own / "bin" / name).chmod(0o755)
    shells = {"root": SHELL, "shell": SHELL, wanted.user if wanted.user == "root" else "shell": wanted.shell}
    (own / "passwd").write_text(ACCOUNTS.format(home=f"{HERE}/home", **shells))
    (own / "shadow").write_text("root:*:19000::::::\nsshd:*:19000::::::\noperator:*:19000::::::\n")
    key = (folder / "home" / ".ssh" / "key.pub").read_text() if wanted.accepts_key else ""
    (own / "authorized_keys").write_text(key)
    os.chown(home, 4242, 4242)
    shutil.copy(folder / "host_key", own / "host_key")
    lines = [f"ListenAddress {address}", f"HostKey {HERE}/host_key", f"AuthorizedKeysFile {HERE}/authorized_keys",
             "StrictModes no", "UsePAM no", "PasswordAuthentication no", "PermitRootLogin prohibit-password",
             "PidFile none", f"SetEnv PATH={HERE}/bin:/usr/sbin:/usr/bin:/sbin:/bin"]  # fmt: skip
    (own / "sshd_config").write_text("\n".join(lines) + "\n")


def _inside(namespace: str) -> list[int]:
    done = subprocess.run(["ip", "netns", "pids", namespace], capture_output=True, text=True, check=False, timeout=20)
    return [int(word) for word in done.stdout.split()]


def until(holds: Callable[[], bool], seconds: float) -> None:
    """Wait until something holds. Raises TimeoutError."""
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            raise TimeoutError(f"not within {seconds} s")
        time.sleep(0.05)
