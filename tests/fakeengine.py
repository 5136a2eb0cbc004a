"""An engine that keeps names only: for tests of what is asked of one, since processes end at its boundary."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from kiln.engines.progress import Line
from kiln.engines.request import Request
from kiln.errors import KilnError
from tests.madeimages import docker_archive


@dataclass
class FakeEngine:
    """Keeps the names of images and what it was asked; fails at the image that it is told to, says what it is told to.

    `counts`: layers of an image by its name without `kiln/` and tag; `layers`: those of what it saves.
    """

    refs: set[str] = field(default_factory=set)
    root: Path | None = None
    counts: Mapping[str, int] = field(default_factory=dict)
    layers: Sequence[bytes] = ()
    fail_at: str = ""
    says: Sequence[Line] = ()
    built: list[str] = field(default_factory=list)
    loaded: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    args: dict[str, Mapping[str, str]] = field(default_factory=dict)
    secrets: dict[str, Mapping[str, Path]] = field(default_factory=dict)
    pause: threading.Event = field(default_factory=threading.Event)
    runtime: str = "docker"

    def __post_init__(self) -> None:
        self.pause.set()

    @property
    def variables(self) -> Mapping[str, str]:
        return {"KILN_FAKE_ENGINE": "yes"}

    def build(self, request: Request, on_line: Callable[[Line], None]) -> str:
        name = _short(request.tag)
        self.pause.wait(10)
        if name == self.fail_at:
            request.log.parent.mkdir(parents=True, exist_ok=True)
            request.log.write_text("it broke")
            raise KilnError("the engine broke")
        for line in self.says:
            on_line(line)
        self.built.append(name)
        self.args[name], self.secrets[name] = dict(request.args), dict(request.secrets)
        self.refs.add(request.tag)
        return f"sha256:{name}"

    def image_id(self, ref: str) -> str | None:
        return ref if ref in self.refs else None

    def images(self, prefix: str) -> tuple[str, ...]:
        return tuple(sorted(ref for ref in self.refs if ref.startswith(prefix)))

    def layer_count(self, ref: str) -> int:
        return self.counts.get(_short(ref), 1)

    def tag(self, ref: str, name: str) -> None:
        self.refs.add(name)

    def remove(self, ref: str) -> None:
        self.refs.discard(ref)
        self.removed.append(ref)

    @contextmanager
    def save(self, ref: str) -> Iterator[BinaryIO]:
        yield io.BytesIO(docker_archive(list(self.layers)))

    def load(self, layout: Path, ref: str) -> None:
        assert (layout / "index.json").is_file()
        self.loaded.append(ref)

    def version(self) -> str:
        return "fake"

    def data_root(self) -> Path | None:
        return self.root

    def describe(self) -> str:
        return "fake"


def _short(ref: str) -> str:
    return ref.removeprefix("kiln/").partition(":")[0]
