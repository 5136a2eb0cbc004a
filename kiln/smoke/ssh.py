"""OpenSSH: the configuration that smoke uses, the names that it takes, and what its last words mean."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

CONNECT_S = 10
ALIVE_EVERY_S, ALIVE_COUNT = 3, 3
# A socket's path may have 107 bytes; OpenSSH adds 40 digits and, while it is made, 17 more.
_LONGEST_FOLDER = 45
_HOST = re.compile(r"(?:[A-Za-z0-9_][\w.-]*@)?(?:[A-Za-z0-9_][\w.-]*|\[[0-9A-Fa-f:.]+(?:%\w+)?\])(?::\d{1,5})?")


@dataclass(frozen=True)
class Fault:
    """Why there is no connection."""

    message: str
    cause: str
    cure: str


def is_host(name: str) -> bool:
    """Tell whether a name is `[USER@]HOST[:PORT]`, an IPv6 address in brackets; never one that looks like an option."""
    return bool(_HOST.fullmatch(name))


def address(name: str) -> str:
    """Return the name as OpenSSH takes it; an alias of the user's configuration stays as it is."""
    return f"ssh://{name}" if re.search(r":\d+$", name) or name.rpartition("@")[2].startswith("[") else name


def config(folder: Path, included: tuple[Path, ...]) -> str:
    """Return the configuration: ours goes first, and the first value counts; the user's and the system's add to it."""
    lines = [
        "Host *",
        "  BatchMode yes",
        f"  ConnectTimeout {CONNECT_S}",
        "  ControlMaster auto",
        f"  ControlPath {folder}/%C",
        "  ControlPersist 60",
        f"  ServerAliveInterval {ALIVE_EVERY_S}",
        f"  ServerAliveCountMax {ALIVE_COUNT}",
        "  LogLevel ERROR",
        "  ForwardAgent no",
        "  ForwardX11 no",
        "  RequestTTY no",
        "  RemoteCommand none",
        *(f"  Include {file}" for file in included),
    ]
    return "\n".join(lines) + "\n"


@contextmanager
def configured() -> Iterator[Path]:
    """Give a configuration file in a private folder that holds the control sockets, too; both go at the end."""
    base = Path(tempfile.gettempdir())
    folder = Path(tempfile.mkdtemp(prefix="kiln-", dir=base if len(str(base)) <= _LONGEST_FOLDER - 14 else "/tmp"))
    try:
        file = folder / "ssh_config"
        file.write_text(config(folder, _included()))
        yield file
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _included() -> tuple[Path, ...]:
    files = (Path.home() / ".ssh" / "config", Path("/etc/ssh/ssh_config"))
    return tuple(file for file in files if file.is_file())


_WENT_DOWN = "look at the node's console and cabling"
# What OpenSSH says -> what it means; the first that is found counts.
_MEANINGS = (
    ("Permission denied", "the node accepts none of the keys, or not for this user",
     "put the public key into authorized_keys there, or name User and IdentityFile in ~/.ssh/config"),
    ("Host key verification failed", "the node's host key is not known here, or is not the known one",
     "connect once by hand (ssh HOST) and compare the key, or remove the old one: ssh-keygen -R HOST"),
    ("REMOTE HOST IDENTIFICATION HAS CHANGED", "the node's host key is not the known one",
     "if the node was set up again: ssh-keygen -R HOST"),
    ("Could not resolve hostname", "no name server and no ~/.ssh/config knows this name", "check the name"),
    ("Connection refused", "nothing listens at that address and port", "start sshd there, or name the right Port"),
    ("not responding", "the link or the node went down during the run", _WENT_DOWN),
    ("Broken pipe", "the link or the node went down during the run", _WENT_DOWN),
    ("timed out", "the node is down, or a firewall drops the packets", "check power, address and firewall"),
    ("No route to host", "the node is down, or not in this network", "check power, address and routes"),
    ("Network is unreachable", "this machine has no route there", "check routes and VPN"),
    ("closed by remote host", "the node ended the connection: it goes down, or sshd refuses more sessions",
     "look at sshd's log there (MaxStartups, MaxSessions)"),
)  # fmt: skip


def explain(status: int, said: str, *, began: bool) -> Fault:
    """Say what ssh's exit and last words mean; `began`: the command had begun there."""
    last = next((line.strip() for line in reversed(said.splitlines()) if line.strip()), "")
    for text, cause, cure in _MEANINGS:
        if text in said:
            return Fault(f"no connection: {last}", cause, cure)
    if began:
        message = f"the connection broke while a command ran{f': {last}' if last else ''}"
        return Fault(message, "the link or the node went down during the run", _WENT_DOWN)
    cause = "the node's shell does not run /bin/sh, or the connection was ended at once"
    return Fault(f"no answer (ssh ended with {status}): {last or 'no message'}", cause, "try: ssh HOST true")


def silent(waited_s: float, began: bool) -> Fault:
    """Say what it means that nothing came back until the watchdog on this side ended it."""
    if began:
        cause = "the link hangs, or the command and timeout(1) there cannot be killed (a process in state D)"
        return Fault(
            f"no answer for {waited_s:.0f} s", cause, "look for hung processes on the node: ps -eo stat,pid,args"
        )
    cause = "the login shell there does not come to an end, or the connection hangs"
    return Fault(f"no answer for {waited_s:.0f} s", cause, "try: time ssh HOST true; look at .bashrc and at DNS there")
