"""What an engine is asked to build."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Request:
    """One build: the Dockerfile of a context under a name. `log` gets all that the engine prints.

    `secrets` are files by id, mounted and never part of a layer. `no_cache`: nothing of an earlier build is used.
    """

    context: Path
    tag: str
    log: Path
    args: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, Path] = field(default_factory=dict)
    no_cache: bool = False

    @property
    def dockerfile(self) -> Path:
        return self.context / "Dockerfile"

    def options(self) -> Iterator[str]:
        """Yield arguments, labels and secrets as the words that `docker build` and `buildah build` share."""
        yield from (f"--build-arg={key}={value}" for key, value in self.args.items())
        yield from (f"--label={key}={value}" for key, value in self.labels.items())
        yield from (f"--secret=id={name},src={path}" for name, path in self.secrets.items())
