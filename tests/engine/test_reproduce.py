"""The other place with real engines: a daemon of its own, no network, and diffoscope on a real shared object."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from kiln import compare, diffoscope, dockerd, elsewhere, reproduce, run, services
from kiln.engines import docker
from kiln.settings import ROOT, Settings, from_env
from tests.madeimages import Entry
from tests.unit.test_compare import canonical

pytestmark = pytest.mark.engine


@pytest.fixture
def there(tmp_path: Path) -> Iterator[Settings]:
    found = replace(from_env({}), home=tmp_path / "there")
    yield found
    reproduce.discard(found)


@pytest.mark.skipif(os.geteuid() != 0, reason="starting an engine takes root")
def test_the_rebuild_has_an_engine_of_its_own_though_another_one_answers(tmp_path: Path, there: Settings) -> None:
    place = elsewhere.prepare(from_env({}), ROOT, there.home, 1)
    words = [*place.argv, sys.executable, "-c", reproduce._OWN_ENGINE]
    assert run.relay(words, out=tmp_path / "out", cwd=ROOT, env=place.env) == 0
    (service,) = services.running(there)
    address = service.address
    found = docker.find(address)
    with found.sdk() as sdk:
        info = sdk.info()
    assert info["Name"] == elsewhere.HOST_NAME
    assert info["DockerRootDir"] == str(there.home / "engine" / "data")
    assert found.images("") == ()
    assert address != dockerd.environment_address()
    assert not (Path("/sys/class/net") / dockerd.bridge_name(there)).exists()  # it is in the other namespace
    reproduce.discard(there)
    assert services.running(there) == ()


@pytest.mark.slow
def test_a_shared_object_that_differs_is_explained(tmp_path: Path) -> None:
    library = max(Path("/usr/lib/x86_64-linux-gnu").glob("libz.so.1.*"), key=lambda path: path.stat().st_size)
    data = library.read_bytes()
    assert b"deflate 1." in data
    other = data.replace(b"deflate 1.", b"deflate 2.", 1)
    one = canonical(tmp_path / "a", [Entry("libz.so", data=data, mode=0o755)])
    two = canonical(tmp_path / "b", [Entry("libz.so", data=other, mode=0o755)])
    settings = replace(from_env({}), home=tmp_path / "home")
    (about,) = diffoscope.explain(settings, one, two, compare.compare(one, two))
    assert about.path == "libz.so"
    assert "deflate 2." in about.text
