"""Container engines: what kiln asks of one, and which one is used."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import BinaryIO, Literal, Protocol, get_args

from kiln.engines.progress import Line
from kiln.engines.request import Request
from kiln.errors import UserError
from kiln.settings import Settings

Name = Literal["auto", "docker", "buildah", "classic"]
NAMES: tuple[Name, ...] = get_args(Name)


class Engine(Protocol):
    """Builds images without network, keeps them by name, and moves them in and out."""

    @property
    def runtime(self) -> str:
        """Return the name that testinfra has for what runs containers of these images."""

    @property
    def variables(self) -> Mapping[str, str]:
        """Return the environment variables that lead other clients to the same engine."""

    def build(self, request: Request, on_line: Callable[[Line], None]) -> str:
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

    def load(self, layout: Path, ref: str) -> None:
        """Load the image of an OCI layout under a name."""

    def version(self) -> str:
        """Return the engine's version."""

    def data_root(self) -> Path | None:
        """Return the folder that fills up when images are built; None if it is on another machine."""

    def describe(self) -> str:
        """Say in one line which engine and client these are."""


def up(settings: Settings, announce: Callable[[str], None], wanted: str = "auto") -> Engine:
    """Return an engine that builds: the one that is wanted, installed and started as far as needed.

    `auto`: a Docker daemon that answers; else, as root, one of ours; else buildah. Raises UserError if that one cannot
    work here.
    """
    if wanted not in NAMES:
        raise UserError(f"engine {wanted!r} is not known", hint=f"one of {', '.join(NAMES)}")
    name = _automatic(settings) if wanted == "auto" else wanted
    found = {"docker": _docker, "classic": _classic, "buildah": _buildah}[name](settings, announce)
    announce(f"engine: {found.describe()}")
    return found


def _automatic(settings: Settings) -> str:
    from kiln import dockerd, host

    chosen = os.environ.get("DOCKER_HOST") or os.environ.get("DOCKER_CONTEXT")
    return "docker" if chosen or host.is_root() or _ours(settings) or not dockerd.silence({}) else "buildah"


def _docker(settings: Settings, announce: Callable[[str], None]) -> Engine:
    from kiln import host
    from kiln.engines import docker

    address = _address(settings, announce)
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
    return found


def _classic(settings: Settings, announce: Callable[[str], None]) -> Engine:
    from kiln.engines import classic

    return classic.find(_address(settings, announce))


def _buildah(settings: Settings, announce: Callable[[str], None]) -> Engine:
    from kiln import host
    from kiln.engines import buildah

    host.ensure(settings, buildah.PROGRAMS if host.is_root() else buildah.ROOTLESS_PROGRAMS, announce)
    return buildah.find(settings)


def _address(settings: Settings, announce: Callable[[str], None]) -> str:
    from kiln import services

    service = services.engine_up(settings, announce)
    return service.address if service.started_by_us else ""


def quietly(settings: Settings) -> Engine | None:
    """Return the engine that answers now: the user's daemon, ours, or buildah if it has built; None if there is none.

    Starts nothing and says nothing.
    """
    from kiln.engines import buildah, docker

    chosen = os.environ.get("DOCKER_HOST") or os.environ.get("DOCKER_CONTEXT")
    return docker.quietly("" if chosen else _ours(settings)) or buildah.quietly(settings)


def _ours(settings: Settings) -> str:
    """Return the address of the daemon that kiln started, if it runs."""
    from kiln import services

    return next((one.address for one in services.running(settings) if one.name == "engine"), "")
