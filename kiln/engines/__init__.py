"""Container engines: what kiln asks of one. Docker is the first; buildah has room beside it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import BinaryIO, Protocol

from kiln.settings import Settings


class Engine(Protocol):
    """Builds images without network, keeps them by name, and moves them in and out as `docker save` archives."""

    @property
    def variables(self) -> Mapping[str, str]:
        """Return the environment variables that lead other clients to the same engine."""

    def build(
        self,
        *,
        context: Path,
        dockerfile: Path,
        tag: str,
        args: Mapping[str, str],
        labels: Mapping[str, str],
        secrets: Mapping[str, Path],
        no_cache: bool,
        log: Path,
        on_line: Callable[[str], None],
    ) -> str:
        """Build an image and return its id. Raises CommandFailed with the log's name."""

    def image_id(self, ref: str) -> str | None:
        """Return the id of an image, None if there is none of that name."""

    def layer_count(self, ref: str) -> int:
        """Return how many layers an image has."""

    def images(self, prefix: str) -> tuple[str, ...]:
        """Return the names of all images that start with `prefix`, sorted."""

    def tag(self, ref: str, name: str) -> None:
        """Give an image one more name."""

    def remove(self, ref: str) -> None:
        """Remove a name, and the image with its last one; a missing one is fine."""

    def save(self, ref: str) -> AbstractContextManager[BinaryIO]:
        """Open the `docker save` archive of an image for reading, front to back."""

    def load(self) -> AbstractContextManager[BinaryIO]:
        """Open a sink for a `docker save` archive; it is loaded when the block has ended without an error."""

    def version(self) -> str:
        """Return the engine's version."""

    def data_root(self) -> Path | None:
        """Return the folder that fills up when images are built; None if it is on another machine."""

    def describe(self) -> str:
        """Say in one line which engine and client these are."""


def up(settings: Settings, announce: Callable[[str], None]) -> Engine:
    """Return an engine that builds: the user's, or ours, installed and started as far as needed."""
    from kiln import host, services
    from kiln.engines import docker
    from kiln.errors import UserError

    service = services.engine_up(settings, announce)
    address = service.address if service.started_by_us else ""
    try:
        found = docker.find(address)
    except UserError:
        # Debian's client builds; one in front of it may not. Nothing to gain where it is there already.
        if docker.DEBIAN_CLIENT.exists() or host.which("apt-get") is None:
            raise
        host.install(settings, [host.PACKAGES["docker"]], announce)
        found = docker.find(address)
    for line in found.passed_over:
        announce(f"passed over {line}")
    announce(f"engine: {found.describe()}")
    return found


def quietly(settings: Settings) -> Engine | None:
    """Return the engine that answers now, the user's or ours; None if none does. Starts nothing and says nothing."""
    from kiln import services
    from kiln.engines import docker

    chosen = os.environ.get("DOCKER_HOST") or os.environ.get("DOCKER_CONTEXT")
    ours = () if chosen else (one.address for one in services.running(settings) if one.name == "engine")
    return docker.quietly(next(iter(ours), ""))
