"""A canonical image with another compression: other blobs, the same config, so the same image id."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from kiln import layercache, oci, workspace
from kiln.canon import WORKERS, counter, require_storable
from kiln.compression import Compression, open_layer
from kiln.errors import UserError
from kiln.oci import LayerInfo, Layout
from kiln.tarlayer import CHUNK, Blob, Written

_TIMES_KEPT = -1
"""In place of an epoch in the cache's key: the layer is not made anew, only compressed."""


def recompress(
    layout: Path, dest: Path, compression: Compression, *, cache: Path | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> Layout:  # fmt: skip
    """Write `layout` with all layers in `compression` to `dest`, replacing it whole. Raises UserError for bad blobs.

    `on_progress` gets the bytes compressed so far, from one thread at a time.
    """
    image = oci.read(layout)
    config = oci.blob_path(layout, image.config_digest).read_bytes()
    dest.parent.mkdir(parents=True, exist_ok=True)
    with workspace.workspace(dest.parent) as work:
        job = _Job(image, work / "layout", compression, cache, counter(on_progress))
        made = oci.write(job.path, config, job.run(), compression)
        workspace.replace(job.path, dest, work / "old")
    return replace(made, path=dest)


@dataclass(frozen=True)
class _Job:
    image: Layout
    path: Path
    compression: Compression
    cache: Path | None
    on_progress: Callable[[int], None]

    def run(self) -> list[LayerInfo]:
        (self.path / "blobs" / "sha256").mkdir(parents=True)
        with ThreadPoolExecutor(min(WORKERS, os.cpu_count() or 1)) as pool:
            return list(pool.map(self._layer, self.image.layers))

    def _layer(self, layer: LayerInfo) -> LayerInfo:
        written = self._known(layer) or self._write(layer)
        return replace(layer, digest=written.digest, size_bytes=written.size_bytes, raw_bytes=written.raw_bytes)

    def _known(self, layer: LayerInfo) -> Written | None:
        name = layercache.key((layer.diff_id,), _TIMES_KEPT, self.compression)
        return layercache.get(self.cache, name, self.path / "blobs" / "sha256") if self.cache else None

    def _write(self, layer: LayerInfo) -> Written:
        half = self.path / layer.diff_id[7:]
        blob = Blob(half, self.compression, self.on_progress)
        with open_layer(oci.blob_path(self.image.path, layer.digest)) as raw:
            while data := raw.read(CHUNK):
                blob.write(data)
        digest, diff_id = blob.close()
        if diff_id != layer.diff_id:
            raise UserError(f"the layer is {diff_id}, the config says {layer.diff_id}", source=layer.digest)
        require_storable(blob.size_bytes, layer.diff_id)
        written = Written(digest, diff_id, blob.size_bytes, blob.raw_bytes, layer.files)
        half.chmod(0o444)
        half.replace(target := oci.blob_path(self.path, digest))
        if self.cache:
            layercache.put(self.cache, layercache.key((diff_id,), _TIMES_KEPT, self.compression), written, target)
        return written
