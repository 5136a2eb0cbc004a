"""What mmdebstrap is asked for, and what is told when it fails. Building the root file system is an engine test."""

from __future__ import annotations

import hashlib
import io
import os
import random
import tarfile
from pathlib import Path

import pytest

from kiln import bootstrap, locks
from kiln.errors import KilnError
from kiln.locks import Deb
from kiln.settings import ROOT
from kiln.store import Store

pytestmark = pytest.mark.unit
DEBS = locks.load(ROOT, "ci").debs
PROGRAM = """#!/bin/sh
printf '%s\\n' "$@" "epoch=$SOURCE_DATE_EPOCH $LC_ALL $TZ $PYTHONDONTWRITEBYTECODE $PYTHONPATH$KILN_HOME"
for last; do :; done
folder=${last#*copy://}
folder=${folder%% *}
stat -c 'mode=%a' "$folder" "$folder/Packages" "$folder/Release"
ls "$folder"
"""


def command(debs: tuple[Deb, ...] = DEBS) -> list[str]:
    return bootstrap._command("bookworm", debs, Path("/repository"), Path("/target.tar"))


def included(argv: list[str]) -> list[str]:
    (word,) = (word for word in argv if word.startswith("--include="))
    return word.removeprefix("--include=").split(",")


def test_every_locked_package_is_asked_for_once_and_no_other() -> None:
    assert included(command()) == sorted({deb.name for deb in DEBS})
    assert len(included(command((*DEBS, *DEBS)))) == len(DEBS)


def test_the_only_source_is_the_folder_of_locked_packages() -> None:
    assert command()[-3:] == ["bookworm", "/target.tar", "deb [trusted=yes] copy:///repository ./"]
    assert [word for word in command() if "://" in word] == command()[-1:]


def test_the_command_is_a_function_of_the_lock_not_of_its_order() -> None:
    shuffled = list(DEBS)
    random.Random(1).shuffle(shuffled)
    assert command(tuple(shuffled)) == command()
    assert not [word for word in command() if os.uname().nodename in word]


@pytest.mark.parametrize(("root", "mode"), [(True, "--mode=auto"), (False, "--mode=unshare")])
def test_a_user_who_is_not_root_gets_a_namespace(root: bool, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kiln.host.is_root", lambda: root)
    assert command()[:2] == ["mmdebstrap", mode]


def test_what_names_the_machine_and_the_bootstrap_is_removed() -> None:
    (hook,) = (word for word in command() if word.startswith("--customize-hook="))
    for path in ("etc/hostname", "etc/resolv.conf", "etc/apt/sources.list", "var/lib/apt/lists/*"):
        assert f'"$1"/{path}' in hook


def deb(store: Store) -> Deb:
    """Put a package of nothing into the store."""
    control = io.BytesIO()
    with tarfile.open(fileobj=control, mode="w:gz") as tar:
        text = b"Package: small\nVersion: 1\nArchitecture: all\nMaintainer: n <n@test>\nDescription: d\n"
        info = tarfile.TarInfo("./control")
        info.size = len(text)
        tar.addfile(info, io.BytesIO(text))
    members = {"debian-binary": b"2.0\n", "control.tar.gz": control.getvalue()}
    data = b"!<arch>\n"
    for name, content in members.items():
        head = f"{name:<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{len(content):<10}`\n"
        data += head.encode() + content + b"\n" * (len(content) % 2)
    sha256 = hashlib.sha256(data).hexdigest()
    store.add(io.BytesIO(data), sha256, len(data))
    file = "small_1_all.deb"
    return Deb("small", "1", file, len(data), sha256, "all", f"pool/{file}", "sid", 5)


def rootfs(tmp_path: Path, program: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Run with a program in place of mmdebstrap; returns the lines of the log."""
    path = tmp_path / "bin/mmdebstrap"
    path.parent.mkdir()
    path.write_text(program)
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{path.parent}:{os.environ['PATH']}")
    store, log = Store(tmp_path / "store"), tmp_path / "logs/base.log"
    bootstrap.rootfs("sid", [deb(store)], 42, store, tmp_path / "rootfs.tar", log)
    return log.read_text().splitlines()


def test_the_environment_is_fixed_and_any_user_may_read_the_packages_whatever_the_umask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/of/the/caller")
    monkeypatch.setenv("KILN_HOME", "/of/the/caller")
    mask = os.umask(0o077)
    try:
        lines = rootfs(tmp_path, PROGRAM, monkeypatch)
    finally:
        os.umask(mask)
    assert "epoch=42 C UTC 1 " in lines
    assert [line for line in lines if line.startswith("mode=")] == ["mode=755", "mode=644", "mode=644"]
    assert lines[-3:] == ["Packages", "Release", "small_1_all.deb"]
    (source,) = (line for line in lines if "copy://" in line)
    assert not Path(source.partition("copy://")[2].split()[0]).exists()


def test_the_root_has_an_empty_dev_so_that_no_engine_makes_one_in_a_later_layer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The classic builder mounts its own below the container's layer; BuildKit and buildah leave theirs in it."""
    program = '#!/bin/sh\nfor last; do target=$before before=$last; done\ntar --no-recursion -cf "$target" -C / ./tmp\n'
    rootfs(tmp_path, program, monkeypatch)
    with tarfile.open(tmp_path / "rootfs.tar") as tar:
        assert [member.name for member in tar] == ["./tmp", "./dev"]
        dev = tar.getmember("./dev")
    assert (dev.isdir(), dev.mode, dev.mtime, dev.uid) == (True, 0o755, 42, 0)


def test_a_failure_is_told_with_the_log_and_its_last_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(KilnError) as caught:
        rootfs(tmp_path, "#!/bin/sh\nseq 1 20\necho 'E: no space left' >&2\nexit 25\n", monkeypatch)
    lines = str(caught.value).splitlines()
    assert lines[0] == f"mmdebstrap ended with 25, log: {tmp_path / 'logs/base.log'}"
    assert lines[-1] == "E: no space left"
    assert len(lines) == 9
