"""The base's root file system: Debian packages of the apt lock, put together offline by mmdebstrap."""

from __future__ import annotations

import os
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

from kiln import debrepo, host
from kiln.errors import KilnError
from kiln.locks import Deb
from kiln.run import stream
from kiln.store import Store

# Never in an image: pages for people, and what names the machine that built it.
_DPKG_OPTIONS = (
    "path-exclude=/usr/share/man/*",
    "path-exclude=/usr/share/info/*",
    "path-exclude=/usr/share/locale/*",
    "path-exclude=/usr/share/doc/*",
    "path-include=/usr/share/doc/*/copyright",
)
# Comes with mmdebstrap: makes /bin and its like links before any package is unpacked.
_MERGED_USR = "/usr/share/mmdebstrap/hooks/merged-usr"
# dpkg need not survive a power cut here: a bootstrap that breaks off is thrown away whole.
_FAST = "force-unsafe-io"
# What the bootstrap itself left, and what names the machine that built it.
_LEFT = (
    "etc/dpkg/dpkg.cfg.d/99mmdebstrap", "etc/apt/apt.conf.d/99mmdebstrap", "etc/apt/sources.list",
    "etc/hostname", "etc/resolv.conf", "var/lib/apt/lists/*", "var/cache/apt/*",
)  # fmt: skip
_CLEAN = "rm -rf " + " ".join(f'"$1"/{path}' for path in _LEFT)


def rootfs(suite: str, debs: Sequence[Deb], epoch: int, store: Store, target: Path, log: Path) -> None:
    """Write the root file system as a tar. Raises KilnError with mmdebstrap's last lines."""
    # mmdebstrap drops privileges for reading: the repository lies where any user may look.
    with tempfile.TemporaryDirectory(prefix="kiln-apt-") as folder:
        repository = Path(folder)
        repository.chmod(0o755)
        debrepo.write_flat_repo(debs, store, repository)
        done = stream([*_environment(epoch), *_command(suite, debs, repository, target)], log=log)
    if done.returncode != 0:
        tail = "\n".join(done.stdout.splitlines()[-8:])
        raise KilnError(f"mmdebstrap ended with {done.returncode}, log: {log}\n{tail}")
    _add_dev(target, epoch)


def _add_dev(target: Path, epoch: int) -> None:
    """Add an empty /dev: where it is missing, some engines make one in the first step's layer and others do not."""
    with tarfile.open(target, "a") as tar:
        entry = tarfile.TarInfo("./dev")
        entry.type, entry.mode, entry.mtime = tarfile.DIRTYPE, 0o755, epoch
        tar.addfile(entry)


def _environment(epoch: int) -> list[str]:
    """Give mmdebstrap no variable of ours but what it needs: the packages' scripts see them, and some write by them.

    A script in Python that is imported before it is compiled leaves bytecode with the time of its source, which the
    canonical image does not have; so it is not to leave any.
    """
    kept = {name: os.environ[name] for name in ("HOME", "TMPDIR") if name in os.environ}
    fixed = {"LC_ALL": "C", "PATH": host.search_path(), "PYTHONDONTWRITEBYTECODE": "1", "TZ": "UTC"}
    found = {**kept, **fixed, "SOURCE_DATE_EPOCH": str(epoch)}
    return ["env", "-i", *(f"{name}={value}" for name, value in sorted(found.items()))]


def _command(suite: str, debs: Sequence[Deb], repository: Path, target: Path) -> list[str]:
    names = ",".join(sorted({deb.name for deb in debs}))
    return [
        "mmdebstrap", "--mode=auto" if host.is_root() else "--mode=unshare", "--format=tar",
        "--variant=essential", f"--include={names}", "--skip=output/dev", f"--hook-dir={_MERGED_USR}",
        '--aptopt=Acquire::Languages "none"', f"--customize-hook={_CLEAN}",
        *(f"--dpkgopt={option}" for option in (*_DPKG_OPTIONS, _FAST)),
        suite, str(target), f"deb [trusted=yes] copy://{repository} ./",
    ]  # fmt: skip
