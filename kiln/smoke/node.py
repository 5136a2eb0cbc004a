"""A node: what it has, a folder of ours on it, probes run there, and nothing left behind."""

from __future__ import annotations

import hashlib
import shlex
from dataclasses import dataclass

from testinfra.host import Host

from kiln.errors import KilnError
from kiln.smoke.connection import call

# Long after the run's end: what a lost connection left is removed by the node itself.
REAPER_EXTRA_S = 300
_KEYS = ("dir", "sha256", "python", "uid", "sudo", "name", "machine", "runtime")

# One round trip: a private folder, the bundle from stdin into it, and what the node has. The folder's name is not
# guessable, and mkdir refuses one that is there; what is mounted from it is open to the image's user. A reaper removes
# folder and containers if nobody else did.
_OPEN = """
umask 077
dir="${TMPDIR:-/tmp}/kiln-smoke-@ID@"
mkdir "$dir" && cat > "$dir/probe.pyz" && chmod 644 "$dir/probe.pyz" && mkdir -m 777 "$dir/log" || exit 1
echo "dir=$dir"
echo "sha256=$(sha256sum < "$dir/probe.pyz" | cut -d ' ' -f 1)"
echo "python=$(python3 -c 'import sys; print(".".join(map(str, sys.version_info[:3])))' 2>/dev/null)"
echo "uid=$(id -u)"
if [ "$(id -u)" = 0 ]; then sudo=root; elif timeout 5 sudo -n true 2>/dev/null; then sudo=yes; else sudo=no; fi
echo "sudo=$sudo"
echo "name=$(uname -n)"
echo "machine=$(cat /etc/machine-id 2>/dev/null)"
runtime=
for program in docker podman; do
  command -v $program > /dev/null || continue
  if timeout 10 $program info > /dev/null 2>&1; then runtime=$program; break; fi
  if [ $sudo = yes ] && timeout 10 sudo -n $program info > /dev/null 2>&1; then runtime="sudo -n $program"; break; fi
done
echo "runtime=$runtime"
cat > "$dir/clean" <<EOF
#!/bin/sh
if [ -n "$runtime" ]; then
  ids=\\$(timeout 20 $runtime ps -aq --filter label=kiln.smoke=@ID@) || echo "containers cannot be listed"
  [ -z "\\$ids" ] || timeout 60 $runtime rm -f \\$ids || echo "containers cannot be removed: \\$ids"
fi
rm -rf "$dir"
EOF
setsid sh -c 'sleep @REAPED@; sh "$0"' "$dir/clean" < /dev/null > /dev/null 2>&1 &
echo $! > "$dir/reaper"
"""
_CLOSE = """
dir=@DIR@
reaper=$(cat "$dir/reaper") && kill -- "-$reaper" 2>/dev/null
sh "$dir/clean"
[ ! -e "$dir" ]
"""


@dataclass(frozen=True)
class Opened:
    """What the node told when it was opened. `sudo`: "root", "yes" (without a password) or "no"; `runtime`: how
    containers are run there ("docker", "sudo -n podman"), empty if they cannot be."""

    dir: str
    sha256: str
    python: str
    uid: str
    sudo: str
    name: str
    machine: str
    runtime: str

    @property
    def as_root(self) -> str:
        """What goes before a command that needs root; empty where there is no way, or no need."""
        return "sudo -n " if self.sudo == "yes" else ""

    @property
    def is_podman(self) -> bool:
        return self.runtime.endswith("podman")


class Unfit(KilnError):
    """The node was reached, but nothing can be run there; has a cause and a cure."""

    def __init__(self, message: str, cause: str, cure: str) -> None:
        super().__init__(message)
        self.cause, self.cure = cause, cure


def open_node(host: Host, run_id: str, bundle: bytes, seconds: float) -> Opened:
    """Put the bundle on the node and learn what it has, in one round trip. Raises Unfit, NodeLost, TimedOut."""
    script = _OPEN.replace("@ID@", run_id).replace("@REAPED@", str(int(seconds) + REAPER_EXTRA_S))
    answer = call(host, script, timeout_s=60, stdin=bundle)
    told = dict(line.split("=", 1) for line in answer.stdout.splitlines() if line.partition("=")[0] in _KEYS)
    if answer.rc != 0 or set(told) != {*_KEYS}:
        said = (answer.stderr.strip() or answer.stdout.strip())[-300:]
        raise Unfit(f"no folder could be made on the node: {said}", "/tmp is full, read-only or not writable there",
                    "free space in /tmp, or set TMPDIR for that user")  # fmt: skip
    opened = Opened(**told)
    if opened.sha256 != hashlib.sha256(bundle).hexdigest():
        raise Unfit("the probes did not arrive whole on the node", "its /tmp is full, or its login shell reads stdin",
                    "free space in /tmp there; keep .bashrc from reading stdin")  # fmt: skip
    if not opened.python:
        raise Unfit("there is no python3 on the node", "the probes are Python programs", "install python3 there")
    return opened


def close_node(host: Host, opened: Opened) -> str:
    """Remove containers and folder; returns what could not be removed, empty for nothing."""
    answer = call(host, _CLOSE.replace("@DIR@", shlex.quote(opened.dir)), timeout_s=90)
    lines = [line for line in answer.stdout.splitlines() if "cannot" in line]
    return "; ".join(lines) or ("" if answer.rc == 0 else answer.stderr.strip()[-300:] or "the folder is still there")


def sweep(host: Host, run_id: str) -> None:
    """Remove what a run left whose process broke down. Raises NodeLost, TimedOut."""
    call(host, f'sh "${{TMPDIR:-/tmp}}/kiln-smoke-{run_id}/clean"', timeout_s=90)
