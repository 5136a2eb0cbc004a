"""Docker's images through its SDK: everything of an engine but the build, which each builder does in its own way."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from kiln import oci
from kiln.engines import transfer
from kiln.errors import KilnError

if TYPE_CHECKING:
    from docker import DockerClient

# The engine writes the whole image to disk before the first byte of a save, and after the last one of a load.
TRANSFER_TIMEOUT_S = 3600


@dataclass(frozen=True)
class DockerImages:
    """The images of the engine at `address`; `variables` lead every client there."""

    address: str
    variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def runtime(self) -> str:
        """Return the name that testinfra has for what runs containers of these images."""
        return "docker"

    def image_id(self, ref: str) -> str | None:
        """Return the id of an image, None if there is none of that name."""
        from docker.errors import ImageNotFound

        with self.sdk() as sdk:
            try:
                return sdk.images.get(ref).id
            except ImageNotFound:
                return None

    def layer_count(self, ref: str) -> int:
        """Return how many layers an image has."""
        with self.sdk() as sdk:
            return len(sdk.images.get(ref).attrs["RootFS"]["Layers"])

    def images(self, prefix: str) -> tuple[str, ...]:
        """Return the names of all images that start with `prefix`, sorted."""
        with self.sdk() as sdk:
            names = (tag for image in sdk.images.list() for tag in image.tags)
            return tuple(sorted(name for name in names if name.startswith(prefix)))

    def tag(self, ref: str, name: str) -> None:
        """Give an image one more name, `repository:tag`."""
        repository, _, word = name.rpartition(":")
        with self.sdk() as sdk:
            sdk.images.get(ref).tag(repository, word)

    def remove(self, ref: str) -> None:
        """Remove a name, and the image with its last one; a missing one is fine."""
        from docker.errors import ImageNotFound

        with self.sdk() as sdk, suppress(ImageNotFound):
            sdk.images.remove(ref)

    @contextmanager
    def save(self, ref: str) -> Iterator[BinaryIO]:
        """Open the `docker save` archive of an image; it is streamed, never a file of ours."""
        with self.sdk(TRANSFER_TIMEOUT_S) as sdk:
            name = ref if ":" in ref else f"{ref}:latest"
            with closing(sdk.api.get_image(name, chunk_size=transfer.CHUNK)) as chunks:
                yield transfer.reader(chunks)

    def load(self, layout: Path, ref: str) -> None:
        """Load the image of an OCI layout under a name; its layers go as plain tars, which every version takes."""
        with self.sink() as sink:
            oci.write_docker_archive(layout, sink, ref)

    @contextmanager
    def sink(self) -> Iterator[BinaryIO]:
        """Open a sink for a `docker save` archive; a fault of the engine is raised at the end of the block."""

        def feed(chunks: Iterator[bytes]) -> None:
            with self.sdk(TRANSFER_TIMEOUT_S) as sdk:
                for event in sdk.api.load_image(chunks):  # type: ignore[no-untyped-call]
                    if "error" in event:
                        raise KilnError(f"the engine did not load the image: {event['error']}")

        with transfer.sink(feed) as stream:
            yield stream

    def data_root(self) -> Path | None:
        """Return the engine's folder, if the engine is on this machine."""
        if not self.address.startswith("unix://"):
            return None
        with self.sdk() as sdk:
            root = Path(str(sdk.info()["DockerRootDir"]))
        return root if root.exists() else None

    @contextmanager
    def sdk(self, timeout_s: int = 120) -> Iterator[DockerClient]:
        """Open the SDK's client; its errors become ours.

        It leaves the connection of an answer that was not read to its end open: they are closed here.
        """
        import docker
        from docker.errors import DockerException
        from requests import RequestException, Response

        try:
            with (
                closing(docker.from_env(timeout=timeout_s, environment={**os.environ, **self.variables})) as client,
                ExitStack() as answers,
            ):

                def remember(answer: Response, **_: object) -> None:
                    answers.callback(answer.close)

                client.api.hooks["response"].append(remember)
                yield client
        except (DockerException, RequestException) as error:
            raise KilnError(f"the engine at {self.address}: {error}") from error
