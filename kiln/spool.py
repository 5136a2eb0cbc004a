"""Images as engines give them (`docker save`, OCI archive or layout) → config and raw layers as plain tar files."""

from __future__ import annotations

import hashlib
import json
import posixpath
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from kiln import oci
from kiln.compression import open_layer
from kiln.errors import UserError
from kiln.tarread import DIRECTORY, REGULAR, SYMLINK, Source, members, show

RESERVE_BYTES = 1 << 30
MAX_LAYER_BYTES = 128 << 30
"""A layer's tar: the most that a small blob may make us write, however much room there is."""
_CHUNK = 1 << 20
_CHECK_EVERY = 64 << 20
Tick = Callable[[int], None]


@dataclass(frozen=True)
class RawImage:
    """An engine's image: its config, and layers with their checked diffIDs, lowest first."""

    config: Mapping[str, Any]
    layers: tuple[Path, ...]
    diff_ids: tuple[str, ...]


def load(source: BinaryIO | Path, work: Path, *, tick: Tick, platform: str = "linux/amd64") -> RawImage:
    """Bring an image into reach, layers uncompressed below `work` (or where they lie). Every digest is checked."""
    with oci.well_formed("image"):
        return _load(source, work, tick, platform)


def _load(source: BinaryIO | Path, work: Path, tick: Tick, platform: str) -> RawImage:
    if isinstance(source, Path) and source.is_dir():
        folder = source
        return _Spool(work, tick, platform).oci(lambda name: folder / name)
    if isinstance(source, Path):
        if not source.is_file():
            raise UserError("no such image file or layout", source=str(source))
        with source.open("rb") as file:
            return _load(file, work, tick, platform)
    spool = _Spool(work, tick, platform)
    spool.unpack(source)
    if spool.find("oci-layout"):
        return spool.oci(spool.find)
    return spool.docker()


def need_free(folder: Path, size: int) -> None:
    """Refuse to go on with less than `size` bytes and a reserve free."""
    free = shutil.disk_usage(folder).free
    if free < size + RESERVE_BYTES:
        needed = (size + RESERVE_BYTES) / 1e9
        message = f"disk too small: {free / 1e9:.1f} GB free, {needed:.1f} GB needed for the image's layers"
        raise UserError(message, hint="inv gc", source=str(folder))


@dataclass
class _Spool:
    """Files of an archive below `work`, by number; a name in an archive never becomes a path."""

    work: Path
    tick: Tick
    platform: str
    files: dict[str, Path] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    digests: dict[Path, str] = field(default_factory=dict)

    def unpack(self, stream: BinaryIO) -> None:
        source = Source(stream, "image archive")
        for member in members(source):
            name = posixpath.normpath(show(member.name))
            if member.kind == SYMLINK:
                self.links[name] = posixpath.normpath(posixpath.join(posixpath.dirname(name), show(member.linkname)))
            elif member.kind == REGULAR and member.segments is None:
                self.files[name] = self._store(source.read, member.size, show(member.name))
            elif member.kind != DIRECTORY:
                source.refuse(member.name, "an image archive holds plain files only")
        source.drain()
        if not self.files:
            raise UserError("empty or not a tar", source="image archive")

    def find(self, name: str) -> Path | None:
        return self.files.get(self.links.get(name, name))

    def docker(self) -> RawImage:
        image = self._docker_manifest()
        config = _object(self._file(image.get("Config")), "image config")
        layers = [self._file(name) for name in image.get("Layers") or []]
        return self._image(config, [(path, None) for path in layers])

    def oci(self, find: Callable[[str], Path | None]) -> RawImage:
        manifest = oci.read_json(find, oci.find_manifest(find, self.platform))
        _known(manifest["config"], oci.CONFIGS)
        config = oci.read_json(find, manifest["config"])
        layers = []
        for descriptor in manifest["layers"]:
            _known(descriptor, oci.LAYERS)
            path = find(str(oci.blob_path(Path(), descriptor["digest"])))
            if path is None or not path.is_file():
                raise UserError("layer missing in the image", source=descriptor["digest"])
            oci.require_size(path, descriptor)
            if self._digest(path) != descriptor["digest"]:
                raise UserError("the layer's content has another digest", source=descriptor["digest"])
            layers.append((path, oci.LAYERS[descriptor["mediaType"]]))
        return self._image(config, layers)

    def _image(self, config: dict[str, Any], layers: Sequence[tuple[Path, str | None]]) -> RawImage:
        found = f"{config.get('os') or '?'}/{config.get('architecture') or '?'}"
        if found != self.platform:
            raise UserError(f"the image is for {found}, {self.platform} is needed", source="image config")
        diff_ids = tuple(str(diff_id) for diff_id in (config.get("rootfs") or {}).get("diff_ids") or [])
        if len(diff_ids) != len(layers):
            raise UserError(f"{len(layers)} layers, but the config names {len(diff_ids)}", source="image config")
        raw = []
        for number, ((path, compression), diff_id) in enumerate(zip(layers, diff_ids, strict=True)):
            plain = self._plain(path, compression, f"layer {number}")
            if (found := self._digest(plain)) != diff_id:
                raise UserError(f"the layer is {found}, the config says {diff_id}", source=f"layer {number}")
            raw.append(plain)
        return RawImage(config, tuple(raw), diff_ids)

    def _plain(self, path: Path, compression: str | None, label: str) -> Path:
        with open_layer(path, compression) as file:
            if compression == "" or (compression is None and getattr(file, "name", None) == str(path)):
                return path
            return self._store(file.read, None, label)

    def _store(self, read: Callable[[int], bytes], size: int | None, label: str) -> Path:
        path = self.work / str(len(self.digests))
        state, done = hashlib.sha256(), 0
        with path.open("wb", buffering=0) as file:
            while size is None or done < size:
                if done % _CHECK_EVERY < _CHUNK:
                    need_free(self.work, min(_CHECK_EVERY, (size or _CHECK_EVERY) - done))
                chunk = read(_CHUNK if size is None else min(_CHUNK, size - done))
                if not chunk:
                    break
                file.write(chunk)
                state.update(chunk)
                done += len(chunk)
                if done > MAX_LAYER_BYTES:
                    raise UserError(f"unpacks to more than {MAX_LAYER_BYTES} bytes", source=label)
                self.tick(len(chunk))
        self.digests[path] = f"sha256:{state.hexdigest()}"
        return path

    def _digest(self, path: Path) -> str:
        if path not in self.digests:
            with path.open("rb") as file:
                self.digests[path] = f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"
        return self.digests[path]

    def _docker_manifest(self) -> dict[str, Any]:
        images = _json(self._file("manifest.json"), "manifest.json")
        if not isinstance(images, list) or len(images) != 1 or not isinstance(images[0], dict):
            count = len(images) if isinstance(images, list) else 0
            raise UserError(f"the archive holds {count} images, one is needed", source="manifest.json")
        return images[0]

    def _file(self, name: object) -> Path:
        path = self.find(posixpath.normpath(str(name)))
        if path is None:
            raise UserError("missing in the image archive", source=str(name))
        return path


def _known(descriptor: Mapping[str, Any], media_types: Mapping[str, str] | tuple[str, ...]) -> None:
    if descriptor.get("mediaType") not in media_types:
        raise UserError(f"unknown media type {descriptor.get('mediaType')!r}", source=str(descriptor.get("digest")))


def _json(path: Path, label: str) -> Any:
    if path.stat().st_size > oci.JSON_LIMIT_BYTES:
        raise UserError(f"{path.stat().st_size} bytes of JSON, more than {oci.JSON_LIMIT_BYTES}", source=label)
    try:
        return json.loads(path.read_bytes())
    except ValueError as error:
        raise UserError(f"broken JSON: {error}", source=label) from error


def _object(path: Path, label: str) -> dict[str, Any]:
    value = _json(path, label)
    if not isinstance(value, dict):
        raise UserError("not a JSON object", source=label)
    return value
