"""Pushes into Debian's real registry: by digest, resumed after it was killed, refused with the cause."""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kiln import registryd, run, services
from kiln.errors import UserError
from kiln.registry import Registry
from kiln.settings import Settings, from_env

pytestmark = pytest.mark.engine
MIB = 2**20


@pytest.fixture
def settings(tmp_path: Path) -> Iterator[Settings]:
    found = from_env({"KILN_HOME": str(tmp_path / "home")})
    yield found
    services.registry_down(found)


def layout(folder: Path, *sizes: int, seed: int = 0) -> tuple[Path, str]:
    """Write an OCI layout of incompressible layers; returns it and its manifest digest."""
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    source = random.Random(seed)

    def blob(data: bytes, kind: str) -> dict[str, object]:
        name = hashlib.sha256(data).hexdigest()
        (blobs / name).write_bytes(data)
        return {"mediaType": f"application/vnd.oci.image.{kind}", "digest": f"sha256:{name}", "size": len(data)}

    layers = [blob(source.randbytes(size), "layer.v1.tar") for size in sizes]
    config = {"architecture": "amd64", "os": "linux", "config": {},
              "rootfs": {"type": "layers", "diff_ids": [each["digest"] for each in layers]}}  # fmt: skip
    manifest = {
        "schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": blob(json.dumps(config).encode(), "config.v1+json"), "layers": layers,
    }  # fmt: skip
    entry = blob(json.dumps(manifest).encode(), "manifest.v1+json")
    (folder / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [entry]}))
    (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    return folder, str(entry["digest"])


def test_a_layout_arrives_under_its_own_digest_and_tag(tmp_path: Path, settings: Settings) -> None:
    registry = Registry(services.registry_up(settings).address)
    folder, digest = layout(tmp_path / "layout", MIB, 1000)
    assert not registry.exists("team/image", digest)
    assert registry.tags("team/image") == ()
    assert registry.push(folder, "team/image", "v1", log=tmp_path / "push.log") == digest
    assert registry.exists("team/image", digest)
    assert registry.push(folder, "team/image", "v2") == digest
    assert registry.tags("team/image") == ("v1", "v2")
    assert not registry.exists("team/image", "sha256:" + "0" * 64)


def test_a_prefix_in_the_address_is_part_of_the_repository(tmp_path: Path, settings: Settings) -> None:
    address = services.registry_up(settings).address
    folder, digest = layout(tmp_path / "layout", 1000)
    Registry(f"{address}/group").push(folder, "image", "v1")
    assert Registry(address).exists("group/image", digest)


def uploaded(settings: Settings) -> int:
    """Bytes of uploads under way, and whether they are real: counted on the registry's disk."""
    total = 0
    for path in (settings.home / "registry" / "data").rglob("_uploads/*/data"):
        try:
            total += path.stat().st_size
        except FileNotFoundError:
            continue
    return total


@pytest.mark.slow
def test_a_push_survives_a_registry_that_is_killed_and_comes_back(tmp_path: Path, settings: Settings) -> None:
    service = services.registry_up(settings)
    assert service.pid
    folder, digest = layout(tmp_path / "layout", 100 * MIB, 100 * MIB, 100 * MIB)
    said: list[str] = []
    killed_at: list[int] = []

    def kill_and_restart() -> None:
        deadline = time.monotonic() + 60
        while uploaded(settings) < 40 * MIB and time.monotonic() < deadline:
            time.sleep(0.005)
        killed_at.append(uploaded(settings))
        os.kill(int(service.pid or 0), signal.SIGKILL)
        time.sleep(2.5)
        services.registry_up(settings)

    chaos = threading.Thread(target=kill_and_restart)
    chaos.start()
    pushed = Registry(service.address, announce=said.append).push(folder, "image", "v1", log=tmp_path / "push.log")
    chaos.join()
    assert pushed == digest
    assert killed_at[0] >= 40 * MIB
    assert any("attempt 2 of 6" in line for line in said)
    assert Registry(service.address).exists("image", digest)


def test_a_registry_that_is_down_ends_in_bounded_time_naming_address_and_next_command(tmp_path: Path) -> None:
    folder, _ = layout(tmp_path / "layout", 1000)
    said: list[str] = []
    registry = Registry("127.0.0.1:9", announce=said.append, attempts=3, first_wait_s=0.05)
    with pytest.raises(UserError) as caught:
        registry.push(folder, "image", "v1")
    assert "127.0.0.1:9: push to 127.0.0.1:9/image:v1: connection refused" in str(caught.value)
    assert "(3 attempts)" in str(caught.value)
    assert "`inv push` goes on from there" in str(caught.value)
    assert len(said) == 2


@pytest.mark.parametrize("tag", ["a b", "x" * 200, "-v1"])
def test_a_malformed_tag_is_refused_at_once(tmp_path: Path, settings: Settings, tag: str) -> None:
    folder, _ = layout(tmp_path / "layout", 1000)
    said: list[str] = []
    with pytest.raises(UserError, match="the name or tag is not well-formed"):
        Registry(services.registry_up(settings).address, announce=said.append).push(folder, "image", tag)
    assert said == []


def test_a_registry_that_wants_a_login_says_so_at_once(tmp_path: Path, settings: Settings) -> None:
    service = services.registry_up(settings)
    config = settings.home / "registry" / "config.yml"
    services.registry_down(settings)
    locked = json.loads(config.read_text())
    locked["auth"] = {"htpasswd": {"realm": "kiln", "path": str(tmp_path / "nobody")}}
    config.write_text(json.dumps(locked))
    pid = run.spawn_daemon(["docker-registry", "serve", config], log=tmp_path / "log")
    try:
        folder, _ = layout(tmp_path / "layout", 1000)
        with pytest.raises(UserError, match="HTTP 401, it wants a login"):
            Registry(service.address, attempts=6, first_wait_s=0.2).push(folder, "image", "v1")
    finally:
        os.kill(pid, signal.SIGKILL)


@contextmanager
def registry_with(folder: Path, **storage: object) -> Iterator[tuple[str, Path]]:
    """Run a registry that writes down every request; gives its address and that file."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    config = json.loads(registryd.config(folder / "data", address, "s" * 32))
    config["storage"].update(storage)
    (folder / "config.yml").write_text(json.dumps({**config, "log": {"level": "warn"}}))
    pid = run.spawn_daemon(["docker-registry", "serve", folder / "config.yml"], log=folder / "asked.log")
    try:
        deadline = time.monotonic() + 20
        while not registryd.answers(address) and time.monotonic() < deadline:
            time.sleep(0.05)
        yield address, folder / "asked.log"
    finally:
        os.kill(pid, signal.SIGKILL)


def asked(log: Path, method: str) -> list[str]:
    return re.findall(rf'"{method} (\S+) HTTP', log.read_text())


def test_blobs_that_are_there_are_asked_for_and_not_sent_again(tmp_path: Path) -> None:
    folder, _ = layout(tmp_path / "layout", MIB, 1000)
    with registry_with(tmp_path) as (address, log):
        Registry(address).push(folder, "team/image", "v1")
        sent = len(asked(log, "PATCH"))
        Registry(address).push(folder, "team/image", "v2")
        assert sent == 3
        assert len(asked(log, "PATCH")) == sent
        assert len(asked(log, "HEAD")) > 3


def test_layers_are_mounted_from_another_repository_of_the_registry(tmp_path: Path) -> None:
    folder, digest = layout(tmp_path / "layout", MIB, 1000)
    with registry_with(tmp_path) as (address, log):
        Registry(address).push(folder, "team/base", "v1")
        Registry(address).push(folder, "team/image", "v1")
        mounts = [url for url in asked(log, "POST") if "from=team%2Fbase&mount=sha256" in url]
        assert len(mounts) == 2
        assert sum("team/image" in url for url in asked(log, "PATCH")) == 1  # the config
        assert Registry(address).exists("team/image", digest)


def test_a_registry_that_takes_no_pushes_is_named_with_its_code(tmp_path: Path) -> None:
    folder, _ = layout(tmp_path / "layout", 1000)
    with (
        registry_with(tmp_path, maintenance={"readonly": {"enabled": True}}) as (address, _),
        pytest.raises(UserError, match=r"HTTP 405, it allows no push.*\n?.*hint: check KILN_REGISTRY"),
    ):
        Registry(address).push(folder, "team/image", "v1")


def test_a_layer_above_the_limit_is_refused_before_anything_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kiln.registry.LAYER_LIMIT_BYTES", MIB)
    folder, _ = layout(tmp_path / "layout", 1000, 2 * MIB)
    with registry_with(tmp_path) as (address, log):
        with pytest.raises(UserError, match="layers above"):
            Registry(address).push(folder, "team/image", "v1")
        assert asked(log, "POST") == []


def test_what_is_not_there_cannot_be_pulled(tmp_path: Path, settings: Settings) -> None:
    registry = Registry(services.registry_up(settings).address)
    with pytest.raises(UserError, match="HTTP 404, no such image"):
        registry.pull("team/image", "sha256:" + "0" * 64, tmp_path / "pulled")
