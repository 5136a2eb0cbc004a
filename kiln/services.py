"""The container engine and the registry of this host: the user's own if there is one, else started below `.kiln/`."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from kiln import bridge, daemon, dockerd, host, registryd
from kiln.errors import UserError
from kiln.settings import Settings

Announce = Callable[[str], None]


def silent(line: str) -> None:
    """Announce nothing."""


@dataclass(frozen=True)
class Service:
    """One thing that listens. `address`: DOCKER_HOST form for the engine, host:port[/prefix] for the registry."""

    name: str
    address: str
    started_by_us: bool
    pid: int | None = None

    def describe(self) -> str:
        """Say what it is and whose."""
        return f"{self.name} {self.address} ({f'ours, pid {self.pid}' if self.started_by_us else 'yours'})"


def up(settings: Settings, announce: Announce = silent) -> tuple[Service, ...]:
    """Return engine and registry, each started if none answers."""
    return engine_up(settings, announce), registry_up(settings, announce)


def down(settings: Settings) -> tuple[str, ...]:
    """Stop what kiln started; returns the names of what was stopped."""
    return tuple(service.name for stop in (engine_down, registry_down) if (service := stop(settings)))


def engine_up(settings: Settings, announce: Announce = silent) -> Service:
    """Return the engine that answers: DOCKER_HOST's or the current context's, else ours, started now if need be.

    Raises UserError if none answers and none can be started.
    """
    chosen = os.environ.get("DOCKER_HOST") or os.environ.get("DOCKER_CONTEXT")
    with _lock(settings, "engine"):
        if not chosen and (ours := _ours(settings, "engine")):
            return ours
        reason = dockerd.silence({})
        if not reason:
            return Service("engine", dockerd.environment_address(), started_by_us=False)
        _refuse_to_start(chosen, reason)
        host.ensure(settings, ("docker", "dockerd"), announce)
        if not dockerd.silence({}):  # the package's own service came up
            return Service("engine", dockerd.environment_address(), started_by_us=False)
        return _service("engine", dockerd.start(settings, announce))


def own_engine_up(settings: Settings, announce: Announce = silent) -> Service:
    """Return an engine of our own, started now if need be, whichever other one answers. Takes root."""
    with _lock(settings, "engine"):
        if ours := _ours(settings, "engine"):
            return ours
        if not host.is_root():
            raise UserError("starting a container engine takes root", hint="--engine buildah works without")
        host.ensure(settings, ("docker", "dockerd"), announce)
        return _service("engine", dockerd.start(settings, announce))


def _refuse_to_start(chosen: str | None, reason: str) -> None:
    if chosen:
        raise UserError(
            f"the engine that the environment names ({chosen}) does not answer: {reason}",
            hint="unset DOCKER_HOST and DOCKER_CONTEXT to let kiln use or start another",
        )
    if not host.is_root():
        raise UserError(
            f"no container engine answers ({reason}), and starting one takes root",
            hint="start Docker, set DOCKER_HOST to one that you may use, or run this as root",
        )


def registry_up(settings: Settings, announce: Announce = silent) -> Service:
    """Return the registry to push to: KILN_REGISTRY as it is, else ours on loopback, started now if need be."""
    if settings.registry:
        return Service("registry", settings.registry.removesuffix("/"), started_by_us=False)
    with _lock(settings, "registry"):
        if ours := _ours(settings, "registry"):
            return ours
        host.ensure(settings, ("docker-registry",), announce)
        return _service("registry", registryd.start(settings, announce))


def engine_down(settings: Settings) -> Service | None:
    """Stop the engine if kiln started it; returns what was stopped."""
    with _lock(settings, "engine"):
        stopped = _stop(settings, "engine")
        if not _known(settings, "engine"):
            dockerd.clean_up(settings)
            bridge.remove(dockerd.bridge_name(settings))
        return stopped


def registry_down(settings: Settings) -> Service | None:
    """Stop the registry if kiln started it; returns what was stopped."""
    with _lock(settings, "registry"):
        return _stop(settings, "registry")


def running(settings: Settings) -> tuple[Service, ...]:
    """Return what kiln started and what still runs of it."""
    found = ((name, _known(settings, name)) for name in ("engine", "registry"))
    return tuple(_service(name, known) for name, known in found if known)


def _service(name: str, known: daemon.Daemon) -> Service:
    return Service(name, known.address, started_by_us=True, pid=known.pid)


def _lock(settings: Settings, name: str) -> FileLock:
    settings.home.mkdir(parents=True, exist_ok=True)
    return FileLock(settings.home / f"{name}.lock", timeout=180)


def _state(settings: Settings, name: str) -> Path:
    return {"engine": dockerd.state, "registry": registryd.state}[name](settings)


def _known(settings: Settings, name: str) -> daemon.Daemon | None:
    known = daemon.recall(_state(settings, name))
    return known if known and daemon.is_alive(known) else None


def _ours(settings: Settings, name: str) -> Service | None:
    """What kiln started earlier, if that very process lives. It may be busy with another build: wait, never kill."""
    known = _known(settings, name)
    if known is None:
        return None
    if daemon.wait(known, lambda: _answers(name, known.address), 60):
        return _service(name, known)
    if daemon.is_alive(known):
        raise UserError(
            f"our {name} (pid {known.pid}) runs but does not answer at {known.address}", hint="inv engine.down"
        )
    return None


def _answers(name: str, address: str) -> bool:
    return registryd.answers(address) if name == "registry" else not dockerd.silence(dockerd.environment(address))


def _stop(settings: Settings, name: str) -> Service | None:
    """Stop ours. The state file stays: it holds the address, which is worth having again."""
    known = daemon.recall(_state(settings, name))
    return _service(name, known) if known and daemon.stop(known) else None
