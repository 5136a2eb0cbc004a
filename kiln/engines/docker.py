"""Docker with BuildKit: builds through the client that can, everything else through the SDK (which cannot build so)."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from kiln import dockerd, run
from kiln.engines import clients, progress
from kiln.engines.progress import Line
from kiln.engines.request import Request
from kiln.engines.sdk import DockerImages
from kiln.errors import KilnError, UserError

DEBIAN_CLIENT = Path("/usr/bin/docker")
_PRUNE_TIMEOUT_S = 120


def find(address: str = "") -> Docker:
    """Return the engine at `address` (default: what the environment says), driven by the first client that can build.

    Raises UserError that lists every client on PATH and why it will not do.
    """
    variables = dockerd.environment(address) if address else {}
    passed_over: list[clients.Client] = []
    for path in clients.on_path():
        client = clients.probe(path, variables)
        if not client.fault:
            where = address or dockerd.environment_address()
            return Docker(where, variables, client=client, passed_over=tuple(map(str, passed_over)))
        passed_over.append(client)
    found = "".join(f"\n  {client}" for client in passed_over) or " (there is none)"
    raise UserError(
        f"no docker client on PATH can do BuildKit builds:{found}",
        hint="install Debian's docker.io, or the docker-buildx plugin of the client that you have; "
        "`inv build --engine classic` builds without BuildKit",
    )


def quietly(address: str = "") -> Docker | None:
    """Return an engine that answers, None if there is none: for commands that only tell what is there."""
    try:
        return find(address)
    except KilnError:
        return None


@dataclass(frozen=True, kw_only=True)
class Docker(DockerImages):
    """One engine and the client that drives its builds, after those that will not do."""

    client: clients.Client
    passed_over: tuple[str, ...] = ()

    def describe(self) -> str:
        """Say which client and engine these are."""
        return f"{self.client} with BuildKit of dockerd {self.client.server} at {self.address}"

    def version(self) -> str:
        """Return the engine's version."""
        return self.client.server

    def build(self, request: Request, on_line: Callable[[Line], None]) -> str:
        """Build without network and return the image's id."""

        def hear(text: str) -> None:
            if line := progress.parse(text):
                on_line(line)

        with tempfile.TemporaryDirectory(prefix="kiln-build-") as folder:
            id_file = Path(folder) / "id"
            argv = [
                *self._build_command(), "--network=none", "--progress=plain", f"--iidfile={id_file}",
                f"--tag={request.tag}", f"--file={request.dockerfile}", *request.options(),
                *(["--no-cache"] if request.no_cache else []), str(request.context),
            ]  # fmt: skip
            done = run.stream(argv, log=request.log, on_line=hear, env={**self.variables, "DOCKER_BUILDKIT": "1"})
            if done.returncode != 0:
                raise run.CommandFailed(done, request.log)
            self._free_context()
            return id_file.read_text().strip()

    def _free_context(self) -> None:
        """Drop BuildKit's copies of contexts that no build uses: gigabytes, kept only to send a changed one faster."""
        with suppress(KilnError), self.sdk(_PRUNE_TIMEOUT_S) as sdk:
            sdk.api.prune_builds(filters={"type": "source.local"})  # type: ignore[arg-type]

    def _build_command(self) -> list[str]:
        command = str(self.client.path)
        return (
            [command, "buildx", "build", "--load", "--provenance=false"] if self.client.buildx else [command, "build"]
        )
