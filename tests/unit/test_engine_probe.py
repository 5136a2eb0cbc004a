# ruff: noqa: E501 (recorded lines are kept whole)
"""Which docker client builds, and what BuildKit's progress lines mean."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from kiln.engines import clients, docker, progress
from kiln.errors import UserError

DOCKER = Path("/usr/bin/docker")
OLD = {"Version": "20.10.24+dfsg1", "ApiVersion": "1.41"}
NEW = {"Version": "28.2.2", "ApiVersion": "1.50"}
SERVER = {"Version": "20.10.24+dfsg1", "Components": [{"Name": "Engine"}]}


def version(client: object, server: object) -> str:
    return json.dumps({"Client": client, "Server": server})


@pytest.mark.parametrize(
    ("stdout", "stderr", "fault"),
    [
        (version(OLD, SERVER), "", ""),
        (version(NEW, SERVER), "", ""),
        (version(OLD, None), "Cannot connect to the Docker daemon at unix:///x.\nmore", "does not reach the engine: Cannot connect to the Docker daemon at unix:///x."),
        (version(OLD, None), "Error response from daemon: client version 1.41 is too old. Minimum supported API version is 1.44", "does not reach the engine: Error response from daemon: client version 1.41 is too old"),
        (version({"Version": "4.3.1", "APIVersion": "4.3.1"}, None), "", "is not Docker's client (podman?)"),
        (version(OLD, {"Version": "4.3.1", "Components": [{"Name": "Podman Engine"}]}), "", "the engine is Podman, which has no BuildKit"),
        ("json", "", "its version is unreadable: json"),
        ("", "exec format error", "its version is unreadable: exec format error"),
        ("[]", "", "its version is unreadable: []"),
    ],
)  # fmt: skip
def test_a_client_is_judged_by_what_it_prints(stdout: str, stderr: str, fault: str) -> None:
    assert clients.classify(DOCKER, stdout, stderr).fault.startswith(fault) if fault else True
    assert bool(clients.classify(DOCKER, stdout, stderr).fault) == bool(fault)


def client_program(folder: Path, client: object, *, buildx: bool = False) -> Path:
    """A `docker` that answers as a recorded one did: the process boundary is the only thing replaced."""
    folder.mkdir(parents=True)
    program = folder / "docker"
    program.write_text(
        f"#!/bin/sh\ncase $1 in version) echo '{version(client, SERVER)}' ;; "
        f"buildx) exit {0 if buildx else 1} ;; *) exit 3 ;; esac\n"
    )
    program.chmod(0o755)
    return program


def only_path(monkeypatch: pytest.MonkeyPatch, *folders: Path) -> None:
    monkeypatch.setattr("kiln.host.SYSTEM_PATH", ("/nowhere",))
    monkeypatch.setenv("PATH", os.pathsep.join([str(folder) for folder in folders]))


def test_a_client_without_buildx_is_passed_over_for_one_that_builds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = client_program(tmp_path / "a", NEW)
    second = client_program(tmp_path / "b", OLD)
    only_path(monkeypatch, first.parent, second.parent)
    found = docker.find("unix:///run/x.sock")
    assert found.client.path == second
    assert found.passed_over == (f"{first} 28.2.2: has no buildx plugin, which clients since 23 need",)
    assert str(second) in found.describe()


def test_a_client_with_buildx_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = client_program(tmp_path / "a", NEW, buildx=True)
    only_path(monkeypatch, program.parent)
    assert docker.find("unix:///run/x.sock").client.buildx


def test_the_same_client_by_two_names_is_asked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = client_program(tmp_path / "a", OLD)
    (tmp_path / "link").symlink_to(program.parent)
    only_path(monkeypatch, program.parent, tmp_path / "link")
    assert clients.on_path() == (program,)


def test_without_a_client_that_builds_every_one_is_named_with_its_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = client_program(tmp_path / "a", NEW)
    broken = tmp_path / "b" / "docker"
    broken.parent.mkdir()
    broken.write_text("no program")
    broken.chmod(0o755)
    only_path(monkeypatch, program.parent, broken.parent)
    with pytest.raises(UserError) as caught:
        docker.find("unix:///run/x.sock")
    assert f"{program} 28.2.2: has no buildx plugin" in str(caught.value)
    assert f"{broken}: does not run" in str(caught.value)
    assert "hint: install Debian's docker.io, or the docker-buildx plugin" in str(caught.value)


def test_no_client_at_all_is_said_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    only_path(monkeypatch, tmp_path)
    with pytest.raises(UserError, match="there is none"):
        docker.find("unix:///run/x.sock")


# Recorded from Docker 20.10.24 (its BuildKit prints a digest line) and BuildKit 0.13.
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("#1 [internal] load build definition from Dockerfile", progress.Line(1, "start", "[internal] load build definition from Dockerfile")),
        ("#1 sha256:601a428ed65200896af3ffa3f27f9cdc8237c25eb1a92d648e07d31a823a931b", progress.Line(1, "status", "sha256:601a428ed65200896af3ffa3f27f9cdc8237c25eb1a92d648e07d31a823a931b")),
        ("#3 transferring context: 2.36MB 0.1s done", progress.Line(3, "status", "transferring context: 2.36MB 0.1s done")),
        ("#8 [stage-1 1/2] RUN cat /x", progress.Line(8, "start", "[stage-1 1/2] RUN cat /x")),
        ("#8 0.108 hi", progress.Line(8, "output", "hi", 0.108)),
        ("#8 0.108 ", progress.Line(8, "output", "", 0.108)),
        ("#8 0.108", progress.Line(8, "output", "", 0.108)),
        ("#8 12.34   indented [x] text", progress.Line(8, "output", "  indented [x] text", 12.34)),
        ("#8 DONE 0.1s", progress.Line(8, "done", "", 0.1)),
        ("#8 CACHED", progress.Line(8, "cached", "")),
        ("#8 CANCELED", progress.Line(8, "canceled", "")),
        ("#8 ...", progress.Line(8, "paused", "")),
        ("#9 ERROR: executor failed running [/bin/sh -c x]: exit code: 127", progress.Line(9, "error", "executor failed running [/bin/sh -c x]: exit code: 127")),
        ("#10 exporting to image", progress.Line(10, "start", "exporting to image")),
        ("#10 writing image sha256:ab done", progress.Line(10, "status", "writing image sha256:ab done")),
        ("", None), ("------", None), (" > [stage-1 2/2] RUN sleep 1:", None), ("#x 1", None), ("# 1 hello", None),
    ],
)  # fmt: skip
def test_a_progress_line_is_read(line: str, expected: progress.Line | None) -> None:
    assert progress.parse(line) == expected


# Recorded from buildah 1.28.2 and the classic builder of Docker 20.10.24.
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("STEP 2/6: ADD rootfs.tar /", progress.Line(2, "start", "ADD rootfs.tar /")),
        ("[2/3] STEP 4/4: RUN echo x > /out", progress.Line(4, "start", "RUN echo x > /out")),
        ("Step 3/7 : RUN echo x", progress.Line(3, "start", "RUN echo x")),
        ("--> Using cache feb91c516134f8e8b7484cb29a2c121d7897eb39b2a974940cf04878f7240377", progress.Line(0, "cached", "")),
        (" ---> Using cache", progress.Line(0, "cached", "")),
        ("--> 3a61345d9c7", progress.Line(0, "status", "--> 3a61345d9c7")),
        (" ---> Running in 8f1b2cf54eb9", progress.Line(0, "status", " ---> Running in 8f1b2cf54eb9")),
        ("[3/3] COMMIT kiln/y:1", progress.Line(0, "status", "[3/3] COMMIT kiln/y:1")),
        ("Successfully tagged localhost/kiln/y:1", progress.Line(0, "status", "Successfully tagged localhost/kiln/y:1")),
        ("Successfully built 5a999bb7b353", progress.Line(0, "status", "Successfully built 5a999bb7b353")),
        ("[Warning] one or more build args were not consumed: [A]", progress.Line(0, "status", "[Warning] one or more build args were not consumed: [A]")),
        ("5a999bb7b353a7001eeaaa694a82db0a19b965163629c07a8700e23ce4f3cae5", progress.Line(0, "status", "5a999bb7b353a7001eeaaa694a82db0a19b965163629c07a8700e23ce4f3cae5")),
        ('Error: building at STEP "RUN x": exit status 1', progress.Line(0, "error", 'building at STEP "RUN x": exit status 1')),
        ("KILN unit 3 12", progress.Line(0, "output", "KILN unit 3 12")),
        ("", progress.Line(0, "output", "")), ("STEP by step", progress.Line(0, "output", "STEP by step")),
    ],
)  # fmt: skip
def test_a_line_of_a_builder_without_progress_is_read(line: str, expected: progress.Line) -> None:
    assert progress.parse_steps(line) == expected
