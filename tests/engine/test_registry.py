"""Pushes into Debian's real registry: by digest, resumed after it was killed, refused with the cause."""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kiln import services
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
    from kiln import run

    pid = run.spawn_daemon(["docker-registry", "serve", config], log=tmp_path / "log")
    try:
        folder, _ = layout(tmp_path / "layout", 1000)
        with pytest.raises(UserError, match="HTTP 401, it wants a login"):
            Registry(service.address, attempts=6, first_wait_s=0.2).push(folder, "image", "v1")
    finally:
        os.kill(pid, signal.SIGKILL)
