"""Canonical images: OCI layouts whose bytes depend on the tree, the runtime config and the epoch only."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from kiln import imageconfig, layercache, layerscan, oci, spool, tarlayer, workspace
from kiln.compression import Compression
from kiln.errors import UserError
from kiln.imageconfig import ConfigOverrides
from kiln.oci import LayerInfo, Layout
from kiln.tarlayer import Contents, Written
from kiln.tree import Item, Tree

__all__ = ["ConfigOverrides", "LayerInfo", "Layout", "Origin", "canonicalise"]

_MAX_EPOCH = 8**11 - 1
MAX_STORED_BYTES = 4 * 10**9
"""Size of a stored layer from which registries and the proxies before them begin to refuse (docs/adr/0008)."""
WORKERS = 8
"""Layers at work at a time, if there are as many CPUs; each takes about 12 MB."""


@dataclass(frozen=True)
class Origin:
    """Where a raw layer comes from: a name for people, and the time of its newest input, which its entries get."""

    name: str
    epoch: int


def canonicalise(
    source: BinaryIO | Path,
    dest: Path,
    *,
    epoch: int,
    compression: Compression = "zstd",
    config: ConfigOverrides | None = None,
    cache: Path | None = None,
    on_progress: Callable[[int], None] | None = None,
    expected_bytes: int = 0,
    workers: int = WORKERS,
    origins: Sequence[Origin] = (),
) -> Layout:
    """Write the canonical form of an image to `dest`, replacing it whole.

    `source`: stream or file of `docker save` or of an OCI archive, or an OCI layout directory.
    `origins`: for each raw layer, where it comes from and its own epoch, so that a newer input on top leaves the layers
    below as they are; without them every layer has `epoch`. `cache`: canonical layers made before.
    `expected_bytes`: uncompressed size if known, to refuse early for lack of disk: the raw layers and the result must
    fit beside `dest`. `on_progress` gets the bytes read plus the bytes
    compressed so far (twice the image's size at the end), from one thread at a time. Raises UserError for bad images.
    """
    if not 0 <= epoch <= _MAX_EPOCH:
        raise UserError(f"epoch {epoch} is not between 0 and {_MAX_EPOCH} seconds after 1970")
    dest.parent.mkdir(parents=True, exist_ok=True)
    spool.need_free(dest.parent, expected_bytes * 3 // 2)
    tick = counter(on_progress)
    with workspace.workspace(dest.parent) as work:
        (work / "raw").mkdir()
        raw = spool.load(source, work / "raw", tick=tick)
        with tarlayer.open_contents(raw.layers) as contents:
            layers = _diff(raw, contents, origins, epoch)
            job = _Job(work / "layout", contents, compression, cache, tick)
            infos = job.write_all(layers, workers)
        data = imageconfig.canonical(raw.config, config or ConfigOverrides(), epoch, [info.diff_id for info in infos])
        layout = oci.write(job.path, data, infos, compression)
        workspace.replace(job.path, dest, work / "old")
    return Layout(dest, layout.manifest_digest, layout.config_digest, layout.layers)


def require_storable(size_bytes: int, name: str) -> None:
    """Refuse a layer that registries would not take. `name`: the image or step that made it."""
    if size_bytes > MAX_STORED_BYTES:
        size = f"{size_bytes / 1e9:.2f} GB, more than {MAX_STORED_BYTES / 1e9:.2f} GB"
        hint = f"split the step of {name} that adds most, or move packages to another image: docs/canonical-images.md"
        raise UserError(f"a layer of {name} takes {size} as stored; many registries refuse that", hint=hint)


@dataclass(frozen=True)
class _Layer:
    """A canonical layer before it is written, and the raw layers that it comes from."""

    items: tuple[Item, ...]
    chain: tuple[str, ...]
    origin: Origin


def _diff(raw: spool.RawImage, contents: Contents, origins: Sequence[Origin], epoch: int) -> list[_Layer]:
    tree, layers = Tree(), []
    known = origins or [Origin(step, epoch) for step in imageconfig.created_by(raw.config, len(raw.layers))]
    if len(known) != len(raw.layers):
        raise UserError(f"the image has {len(raw.layers)} layers, {len(known)} were expected")
    for number, path in enumerate(raw.layers):
        scan = layerscan.scan(path, number, f"layer {number}")
        items = tree.advance(scan, contents.equal)
        if items:
            layers.append(_Layer(items, raw.diff_ids[: number + 1], known[number]))
    return layers


@dataclass(frozen=True)
class _Job:
    """Where and how the layers are written."""

    path: Path
    contents: Contents
    compression: Compression
    cache: Path | None
    tick: Callable[[int], None]

    @property
    def blobs(self) -> Path:
        return self.path / "blobs" / "sha256"

    def write_all(self, layers: list[_Layer], workers: int) -> list[LayerInfo]:
        self.blobs.mkdir(parents=True)
        with ThreadPoolExecutor(min(workers, os.cpu_count() or 1)) as pool:
            written = [pool.submit(self.write, number, layer) for number, layer in enumerate(layers)]
            try:
                return [_info(future.result(), layer) for future, layer in zip(written, layers, strict=True)]
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise

    def write(self, number: int, layer: _Layer) -> Written:
        name = layercache.key(layer.chain, layer.origin.epoch, self.compression)
        if self.cache and (known := layercache.get(self.cache, name, self.blobs)):
            self.tick(known.raw_bytes)
            return known
        half = self.path / str(number)
        written = tarlayer.write(
            layer.items,
            self.contents,
            half,
            epoch=layer.origin.epoch,
            compression=self.compression,
            on_progress=self.tick,
        )
        require_storable(written.size_bytes, layer.origin.name or f"layer {number}")
        blob = oci.blob_path(self.path, written.digest)
        half.chmod(0o444)
        half.replace(blob)
        if self.cache:
            layercache.put(self.cache, name, written, blob)
        return written


def _info(written: Written, layer: _Layer) -> LayerInfo:
    return LayerInfo(
        written.digest, written.diff_id, written.size_bytes, written.raw_bytes, written.files, layer.origin.name
    )


def counter(report: Callable[[int], None] | None) -> Callable[[int], None]:
    """Return a function that adds sizes up, from any thread, and reports the sum."""
    lock, done = threading.Lock(), 0

    def add(size: int) -> None:
        nonlocal done
        with lock:
            done += size
            if report:
                report(done)

    return add
