"""The image under test in a container: no network, read-only root, a uid that nobody knows, caches in memory."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import testinfra
from testinfra.host import Host

from kiln.run import Completed, run

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


@dataclass(frozen=True)
class Runtime:
    """The program that runs containers of the image: docker or podman, which take the same words."""

    program: str
    image: str

    def config(self) -> dict[str, Any]:
        """The image's configuration as the engine tells it."""
        found: dict[str, Any] = json.loads(self.call("image", "inspect", self.image).stdout)[0]["Config"]
        return found

    def run(self, *words: str, options: Sequence[str] = (), check: bool = True) -> Completed:
        """Run a container without network on a read-only root; `words` go to its entrypoint."""
        # podman raises limits by default, which takes more rights than a container's root has.
        limits = ["--ulimit=host"] if self.program == "podman" else []
        return self.call("run", "--network=none", "--read-only", *limits, *options, self.image, *words, check=check)

    def call(self, *words: str, check: bool = True) -> Completed:
        """Run one command."""
        return run([self.program, *words], check=check, timeout_s=300)


@pytest.fixture(scope="session")
def runtime(image: str, request: pytest.FixtureRequest) -> Runtime:
    """What runs containers here."""
    return Runtime(str(request.config.getoption("--kiln-runtime")), image)


@pytest.fixture(scope="session")
def config(runtime: Runtime) -> dict[str, Any]:
    """The image's configuration."""
    return runtime.config()


@pytest.fixture(scope="session")
def host(runtime: Runtime, request: pytest.FixtureRequest) -> Iterator[Host]:
    """testinfra's host inside the running container."""
    tools = request.config.getoption("--kiln-tools")
    options = [
        "--detach", f"--user={UID}:{UID}", "--tmpfs=/cache:mode=1777,exec,size=4g", "--entrypoint=/usr/bin/tini",
        *([f"--volume={tools}:{TOOLS}:ro"] if tools else []),
    ]  # fmt: skip
    container = runtime.run("--", "sleep", "86400", options=options).stdout.strip()
    try:
        yield testinfra.get_host(f"{runtime.program}://{container}")
    finally:
        runtime.call("rm", "--force", container)


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
