"""What a finished build left: one JSON file per plan, written last, so that its presence means the build is whole."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from kiln import whole
from kiln.settings import Settings


@dataclass(frozen=True)
class StageCost:
    """One line of the timing table; a cached stage has the costs of the build that made it.

    `cpu_s` and `peak_bytes` are the whole machine's (see kiln.meter).
    """

    name: str
    state: str
    wall_s: float
    cpu_s: float
    peak_bytes: int


@dataclass(frozen=True)
class Layer:
    """One layer of the image: `size_bytes` as stored and pushed, `raw_bytes` unpacked."""

    digest: str
    size_bytes: int
    raw_bytes: int
    files: int
    image: str


@dataclass(frozen=True)
class Result:
    """A built image. `pushed` is `registry/repository@digest`, `gzip` the digest of the gzip variant, or empty."""

    plan: str
    tag: str
    digest: str
    repository: str
    layout: str
    layers: tuple[Layer, ...]
    stages: tuple[StageCost, ...] = field(default=())
    tests: str = ""
    pushed: str = ""
    gzip: str = ""

    @property
    def gzip_layout(self) -> str:
        """Where the gzip variant lies, if it was made."""
        return f"{self.layout}-gz"

    @property
    def gzip_tag(self) -> str:
        return f"{self.tag}-gz"

    @property
    def raw_bytes(self) -> int:
        return sum(layer.raw_bytes for layer in self.layers)

    @property
    def size_bytes(self) -> int:
        return sum(layer.size_bytes for layer in self.layers)


def remember_cost(settings: Settings, key: str, cost: StageCost) -> None:
    """Keep what an image cost to build, so that a later build that finds it made can tell."""
    file = settings.home / "costs" / f"{key[:12]}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(asdict(cost)) + "\n")


def recall_cost(settings: Settings, key: str) -> StageCost | None:
    """Return what an image cost when it was built, as `cached`; None if that is not known."""
    file = settings.home / "costs" / f"{key[:12]}.json"
    if not file.exists():
        return None
    return replace(StageCost(**json.loads(file.read_text())), state="cached")


def path(settings: Settings, plan_id: str) -> Path:
    """The result file of a plan."""
    return settings.builds / plan_id[:12] / "result.json"


def load(settings: Settings, plan_id: str) -> Result | None:
    """Read a plan's result; None unless the build is whole and its layout still there."""
    file = path(settings, plan_id)
    if not file.exists():
        return None
    data: dict[str, Any] = json.loads(file.read_text())
    data["layers"] = tuple(Layer(**layer) for layer in data["layers"])
    data["stages"] = tuple(StageCost(**stage) for stage in data["stages"])
    found = Result(**data)
    return found if found.plan == plan_id and (Path(found.layout) / "index.json").exists() else None


def save(settings: Settings, result: Result) -> None:
    """Write the result file in one step."""
    whole.write(path(settings, result.plan), (json.dumps(asdict(result), indent=1) + "\n").encode())
