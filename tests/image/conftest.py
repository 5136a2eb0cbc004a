"""The image under test in a container: no network, read-only root, a uid that nobody knows, caches in memory."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import testinfra
from testinfra.host import Host

SITE = "/opt/kiln/lib/python3.11/site-packages"
TOOLS = "/run/kiln/tools"
UID = 4242


@pytest.fixture(scope="session")
def plan(request: pytest.FixtureRequest) -> dict[str, Any]:
    """The plan that the image was built from."""
    path = request.config.getoption("--kiln-plan")
    if not path:
        pytest.skip("NOT_RUN: no --kiln-plan given; `inv build` and `inv test --image` run these")
    data: dict[str, Any] = json.loads(Path(path).read_text())
    return data


@pytest.fixture(scope="session")
def image(request: pytest.FixtureRequest) -> str:
    """The image's reference in the engine."""
    ref = str(request.config.getoption("--kiln-image"))
    if not ref:
        pytest.skip("NOT_RUN: no --kiln-image given; `inv build` and `inv test --image` run these")
    return ref


@pytest.fixture(scope="session")
def engine() -> Any:
    """The SDK's client of the engine that answers."""
    import docker

    client = docker.from_env(timeout=300)
    yield client
    client.close()


@pytest.fixture(scope="session")
def config(engine: Any, image: str) -> dict[str, Any]:
    """The image's configuration as the engine tells it."""
    found: dict[str, Any] = engine.images.get(image).attrs["Config"]
    return found


@pytest.fixture(scope="session")
def host(engine: Any, image: str, request: pytest.FixtureRequest) -> Iterator[Host]:
    """testinfra's host inside the running container."""
    tools = request.config.getoption("--kiln-tools")
    container = engine.containers.run(
        image,
        ["86400"],
        entrypoint=["/usr/bin/tini", "--", "sleep"],
        detach=True,
        user=f"{UID}:{UID}",
        read_only=True,
        network_mode="none",
        tmpfs={"/cache": "mode=1777,exec,size=4g"},
        volumes={tools: {"bind": TOOLS, "mode": "ro"}} if tools else {},
    )
    try:
        yield testinfra.get_host(f"docker://{container.id}")
    finally:
        container.remove(force=True)


@pytest.fixture(scope="session")
def python(host: Host) -> Any:
    """Run Python code in the image with JIT off and no compiler on PATH; returns what it printed as JSON."""

    def call(code: str, *, timeout_s: int = 300, env: str = "") -> Any:
        shell = (
            "mkdir -p /cache/home && cd /cache && env PATH=/opt/kiln/bin:/usr/bin:/bin FLASHINFER_DISABLE_JIT=1 "
            f"{env} timeout -k 5 {timeout_s} python -c %s"
        )
        done = host.run(shell, code)
        assert done.rc == 0, f"rc {done.rc}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
        return json.loads(done.stdout.strip().splitlines()[-1])

    return call
