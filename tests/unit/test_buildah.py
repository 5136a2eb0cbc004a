"""Which engine is chosen, and what buildah is told: the program is a script that records its words."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from kiln import engines
from kiln.engines import buildah
from kiln.engines.progress import Line
from kiln.engines.request import Request
from kiln.errors import UserError
from kiln.run import CommandFailed
from kiln.services import silent
from kiln.settings import Settings, from_env

pytestmark = pytest.mark.unit
ID = "ab" * 32


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return replace(from_env({}), home=tmp_path / "home", no_install=True)


@pytest.fixture
def said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a `buildah` first on PATH that writes down its words and answers what a file of its command's name says."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("buildah", "podman", "runc", "newuidmap"):
        (folder / name).write_text(
            f'#!/bin/sh\nprintf "%s\\n" "$*" >> {folder}/said\nprintf "%s\\n" "$TMPDIR" >> {folder}/tmpdir\n'
            f'[ ! -f "{folder}/$1.err" ] || {{ cat "{folder}/$1.err" >&2; exit 125; }}\n'
            f'[ ! -f "{folder}/$1.out" ] || cat "{folder}/$1.out"\n'
        )
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return folder / "said"


def build(engine: buildah.Buildah, folder: Path, *, no_cache: bool = False) -> list[Line]:
    lines: list[Line] = []
    (folder / "Dockerfile").write_text("FROM scratch\n")
    request = Request(
        folder, "kiln/base:1", folder / "log", {"A": "b"}, {"c": "d"}, {"kiln-jobs": folder / "jobs"}, no_cache
    )
    engine.build(request, lines.append)
    return lines


def test_all_of_its_state_is_below_home(settings: Settings, said: Path) -> None:
    engine = buildah.find(settings)
    home = str(settings.home / "buildah")
    storage = tomllib.loads((settings.home / "buildah/storage.conf").read_text())["storage"]
    assert storage["graphroot"] == storage["rootless_storage_path"] == f"{home}/images"
    containers = tomllib.loads((settings.home / "buildah/containers.conf").read_text())
    assert containers["engine"]["runtime"] == "runc"
    assert engine.variables["TMPDIR"] == f"{home}/tmp"
    assert engine.data_root() == settings.home / "buildah"


@pytest.mark.parametrize("name", ["x", "long" * 40], ids=["short", "long"])
def test_the_folder_of_locks_and_sockets_stays_short_whatever_the_home(
    name: str, settings: Settings, tmp_path: Path, said: Path
) -> None:
    found = buildah.find(replace(settings, home=tmp_path / name)).run_dir
    try:
        assert len(str(found / "storage")) <= 60 or found.is_relative_to(tmp_path)
        assert len(str(found)) <= buildah.LONGEST_RUN_DIR + len("/run")
    finally:
        if not found.is_relative_to(tmp_path):
            found.rmdir()


def test_a_build_has_no_network_no_pull_no_step_cache_and_a_layer_for_each_step(
    settings: Settings, said: Path, tmp_path: Path
) -> None:
    engine = buildah.find(settings)
    (said.parent / "inspect.out").write_text(f'{{"FromImageID": "{ID}"}}')
    (said.parent / "build.out").write_text("STEP 1/1: FROM scratch\nhello\n")
    lines = build(engine, tmp_path)
    words = next(line for line in said.read_text().splitlines() if line.startswith("build ")).split()
    assert {"--network=none", "--pull=never", "--no-cache", "--layers", "--format=docker", "--http-proxy=false",
            "--tag=localhost/kiln/base:1", "--build-arg=A=b", "--label=c=d",
            f"--secret=id=kiln-jobs,src={tmp_path}/jobs"} <= set(words)  # fmt: skip
    assert lines == [Line(1, "start", "FROM scratch"), Line(0, "output", "hello")]


def test_cache_mounts_are_of_this_home_and_fresh_if_no_cache_is_wanted(
    settings: Settings, said: Path, tmp_path: Path
) -> None:
    engine = buildah.find(settings)
    (said.parent / "inspect.out").write_text(f'{{"FromImageID": "{ID}"}}')
    for no_cache in (False, True):
        (said.parent / "tmpdir").unlink()
        build(engine, tmp_path, no_cache=no_cache)
        used = Path((said.parent / "tmpdir").read_text().splitlines()[0])
        assert (used == settings.home / "buildah/tmp") is not no_cache
        assert used.is_relative_to(settings.home / "buildah/tmp")
        assert used.exists() is not no_cache
    assert list((settings.home / "buildah/tmp").iterdir()) == []


def test_a_failed_build_is_cleaned_up_and_names_its_log(settings: Settings, said: Path, tmp_path: Path) -> None:
    engine = buildah.find(settings)
    (said.parent / "build.err").write_text("Error: no\n")
    with pytest.raises(CommandFailed, match=f"log: {tmp_path}/log"):
        build(engine, tmp_path)
    assert said.read_text().splitlines()[-2:] == ["rm --all", "rmi --prune"]


def test_while_another_process_builds_nothing_is_pruned(settings: Settings, said: Path) -> None:
    import fcntl

    engine = buildah.find(settings)
    with (settings.home / "buildah/building.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        engine.prune()
    assert "rmi --prune" not in said.read_text()


@pytest.mark.parametrize(
    ("error", "hint"),
    [("cannot find newuidmap", "sudo usermod --add-subuids"), ("overlay: not permitted", "kernel >= 5.13")],
)
def test_what_it_lacks_here_is_told_with_the_cure(error: str, hint: str, settings: Settings, said: Path) -> None:
    (said.parent / "info.err").write_text(error)
    with pytest.raises(UserError) as caught:
        buildah.find(settings)
    assert error in str(caught.value)
    assert hint in str(caught.value)


def test_an_image_is_asked_for_by_its_local_name(settings: Settings, said: Path) -> None:
    engine = buildah.find(settings)
    (said.parent / "inspect.out").write_text(
        f'{{"FromImageID": "{ID}", "OCIv1": {{"rootfs": {{"diff_ids": ["a", "b"]}}}}}}'
    )
    (said.parent / "images.out").write_text(
        '[{"names": ["localhost/kiln/b:1", "localhost/kiln/a:1"]}, {"names": null}]'
    )
    assert engine.image_id("kiln/a:1") == f"sha256:{ID}"
    assert engine.layer_count("kiln/a:1") == 2
    assert engine.images("kiln/") == ("kiln/a:1", "kiln/b:1")
    assert "inspect --type=image localhost/kiln/a:1" in said.read_text()


def test_an_image_that_is_not_there_has_no_id_and_other_errors_pass(settings: Settings, said: Path) -> None:
    engine = buildah.find(settings)
    (said.parent / "inspect.err").write_text("Error: x: image not known\n")
    assert engine.image_id("kiln/a:1") is None
    (said.parent / "inspect.err").write_text("Error: the storage is broken\n")
    with pytest.raises(CommandFailed, match="the storage is broken"):
        engine.image_id("kiln/a:1")


@pytest.mark.parametrize(
    ("env", "root", "silence", "chosen"),
    [
        ({}, False, "", "docker"), ({}, True, "nothing listens there", "docker"),
        ({}, False, "nothing listens there", "buildah"),
        ({"DOCKER_HOST": "tcp://elsewhere:1"}, False, "nothing listens there", "docker"),
    ],
    ids=["a daemon answers", "root may start one", "a plain user without one", "the user named one"],
)  # fmt: skip
def test_auto_takes_docker_where_it_can_and_buildah_otherwise(
    env: dict[str, str], root: bool, silence: str, chosen: str, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("DOCKER_HOST", "DOCKER_CONTEXT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("kiln.host.is_root", lambda: root)
    monkeypatch.setattr("kiln.dockerd.silence", lambda variables: silence)
    assert engines._automatic(settings) == chosen


def test_an_unknown_engine_is_refused_with_the_known_ones(settings: Settings) -> None:
    with pytest.raises(UserError) as caught:
        engines.up(settings, silent, "podman")
    assert str(caught.value) == "engine 'podman' is not known\n  hint: one of auto, docker, buildah, classic"


def test_what_is_missing_is_named(settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kiln.host.SYSTEM_PATH", ("/nowhere",))
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "apt-get").write_text("")
    (tmp_path / "apt-get").chmod(0o755)
    monkeypatch.setattr("kiln.host.is_root", lambda: False)
    with pytest.raises(UserError) as caught:
        engines.up(settings, silent, "buildah")
    assert "this host lacks buildah podman runc uidmap, and KILN_NO_INSTALL is set" in str(caught.value)
