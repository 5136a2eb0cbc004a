"""Docker's classic builder through the SDK, for engines and clients without BuildKit. No mounts, no compiler cache."""

from __future__ import annotations

import io
import re
import tarfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, BinaryIO, TextIO, cast

from kiln import dockerd
from kiln.engines import mounts, progress, transfer
from kiln.engines.dockerfile import inherit_args
from kiln.engines.progress import Line
from kiln.engines.request import Request
from kiln.engines.sdk import TRANSFER_TIMEOUT_S, DockerImages
from kiln.errors import KilnError

_STEP_IMAGE = re.compile(r" ---> ([0-9a-f]{12})")
_TAIL_LINES = 12


def find(address: str = "") -> Classic:
    """Return the engine at `address` (default: what the environment says). Raises KilnError if it does not answer."""
    variables = dockerd.environment(address) if address else {}
    found = Classic(address or dockerd.environment_address(), variables)
    found.version()
    return found


@dataclass(frozen=True)
class Classic(DockerImages):
    """One engine; a Dockerfile is translated to what its classic builder understands."""

    def describe(self) -> str:
        """Say which builder and engine these are."""
        return f"the classic builder of dockerd {self.version()} at {self.address}"

    def version(self) -> str:
        """Return the engine's version."""
        with self.sdk() as sdk:
            return str(sdk.version()["Version"])

    def build(self, request: Request, on_line: Callable[[Line], None]) -> str:
        """Build without network and return the image's id; what mounts would show is sent and copied."""
        text = inherit_args(request.dockerfile.read_text(encoding="utf-8"))
        translated = mounts.translate(text, secrets=request.secrets)
        request.log.parent.mkdir(parents=True, exist_ok=True)
        with (
            transfer.source(lambda out: _write_context(out, request.context, translated, request.secrets)) as chunks,
            self.sdk(TRANSFER_TIMEOUT_S) as sdk,
            request.log.open("a", encoding="utf-8") as file,
        ):
            events = sdk.api.build(
                fileobj=cast(IO[bytes], chunks), custom_context=True, dockerfile=_DOCKERFILE, tag=request.tag,
                buildargs=dict(request.args), labels=dict(request.labels), network_mode="none",
                nocache=request.no_cache, rm=True,
                forcerm=True, decode=True,
            )  # fmt: skip
            steps = _listen(events, file, on_line, request.log)
        self._drop_unused(steps)
        return self.image_id(request.tag) or ""

    def _drop_unused(self, steps: list[str]) -> None:
        """Remove what the stages that are no image leave; a step that an image rests on has children and stays."""
        from docker.errors import APIError

        with self.sdk() as sdk:
            for step in reversed(steps):
                try:
                    if not sdk.images.get(step).tags:
                        sdk.images.remove(step)
                except APIError:
                    continue


_DOCKERFILE = ".kiln-dockerfile"


def _write_context(out: BinaryIO, context: Path, made: mounts.Translated, secrets: Mapping[str, Path]) -> None:
    """Write the context as a tar, with the modes and the additional files that the translation asks for."""

    def owned(info: tarfile.TarInfo) -> tarfile.TarInfo:
        info.mode = made.modes.get(info.name, info.mode)
        info.uid = info.gid = 0
        info.uname = info.gname = ""
        return info

    with tarfile.open(fileobj=out, mode="w|") as tar:
        for path in sorted(context.iterdir()):
            tar.add(path, path.name, filter=owned)
        folder = tarfile.TarInfo(mounts.EMPTY)
        folder.type, folder.mode = tarfile.DIRTYPE, 0o755
        tar.addfile(folder)
        extra = {f"{mounts.SECRETS}/{name}": path.read_bytes() for name, path in secrets.items()}
        for name, data in {_DOCKERFILE: made.text.encode(), **extra}.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))


def _listen(
    events: Iterator[Mapping[str, object]], log: TextIO, on_line: Callable[[Line], None], name: Path
) -> list[str]:
    """Log and hand on what the builder says; returns the ids of its steps. Raises KilnError with its error."""
    tail: list[str] = []
    steps: list[str] = []
    for event in events:
        text = str(event.get("stream", event.get("error", "")))
        for line in filter(str.strip, text.splitlines()):
            log.write(line + "\n")
            log.flush()
            tail = [*tail[-_TAIL_LINES:], line]
            if step := _STEP_IMAGE.fullmatch(line):
                steps.append(step[1])
            on_line(Line(0, "error", line) if "error" in event else progress.parse_steps(line))
        if "error" in event:
            raise KilnError("\n".join([f"the classic builder failed\n  log: {name}", *tail]))
    return steps
