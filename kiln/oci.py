"""OCI image layouts: write, read and verify one image in a directory; stream it to an engine that cannot read them."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

from kiln.compression import Compression, open_layer
from kiln.errors import CheckFailed, UserError
from kiln.tarread import padded
from kiln.tarwrite import plain

INDEX = "application/vnd.oci.image.index.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar"
INDEXES = (INDEX, "application/vnd.docker.distribution.manifest.list.v2+json")
MANIFESTS = (MANIFEST, "application/vnd.docker.distribution.manifest.v2+json")
CONFIGS = (CONFIG, "application/vnd.docker.container.image.v1+json")
LAYERS: Mapping[str, str] = {
    LAYER: "", f"{LAYER}+gzip": "gzip", f"{LAYER}+zstd": "zstd",
    "application/vnd.docker.image.rootfs.diff.tar": "", "application/vnd.docker.image.rootfs.diff.tar.gzip": "gzip",
    "application/vnd.docker.image.rootfs.diff.tar.zstd": "zstd",
}  # fmt: skip
"""Media types of layers → compression."""

RAW_BYTES, FILES = "kiln.raw-bytes", "kiln.files"
HISTORY = "kiln canonical layer"
_CHUNK = 1 << 20
JSON_LIMIT_BYTES = 16 << 20
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


@dataclass(frozen=True)
class LayerInfo:
    """One layer. `raw_bytes`: its tar's size; `files`: all but directories; both 0 if the manifest doesn't say."""

    digest: str
    diff_id: str
    size_bytes: int
    raw_bytes: int
    files: int
    created_by: str


@dataclass(frozen=True)
class Layout:
    """One image in a layout directory."""

    path: Path
    manifest_digest: str
    config_digest: str
    layers: tuple[LayerInfo, ...]


def canonical_json(value: object) -> bytes:
    """Sorted keys, no blanks, UTF-8."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def digest_of(data: bytes) -> str:
    """Return `sha256:<hex>`."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def blob_path(layout: Path, digest: str) -> Path:
    """Return where a blob lies; a digest that is not sha256 is refused, so that it can't lead elsewhere."""
    if not _DIGEST.fullmatch(digest):
        raise UserError(f"{digest!r} is not a sha256 digest", source=str(layout))
    return layout / "blobs" / "sha256" / digest[7:]


def write(path: Path, config: bytes, layers: Sequence[LayerInfo], compression: Compression) -> Layout:
    """Complete a layout whose layer blobs are in place."""
    (path / "blobs" / "sha256").mkdir(parents=True, exist_ok=True)
    described = [_describe(f"{LAYER}+{compression}", layer) for layer in layers]
    head = {"mediaType": CONFIG, "digest": _add(path, config), "size": len(config)}
    manifest = canonical_json({"schemaVersion": 2, "mediaType": MANIFEST, "config": head, "layers": described})
    entry = {"mediaType": MANIFEST, "digest": _add(path, manifest), "size": len(manifest)}
    entries = [entry | {"platform": _platform(config)}]
    (path / "oci-layout").write_bytes(canonical_json({"imageLayoutVersion": "1.0.0"}))
    (path / "index.json").write_bytes(canonical_json({"schemaVersion": 2, "mediaType": INDEX, "manifests": entries}))
    return Layout(path, digest_of(manifest), digest_of(config), tuple(layers))


@contextmanager
def well_formed(label: str) -> Iterator[None]:
    """Turn the errors of reading JSON of another shape than the spec's into a UserError."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise UserError(f"malformed image: {type(error).__name__}: {error}", source=label) from error


def read(path: Path, platform: str = "linux/amd64") -> Layout:
    """Read a layout's one image (or the one for `platform`)."""
    with well_formed(str(path)):
        return _read(path, platform)


def _read(path: Path, platform: str) -> Layout:
    descriptor = find_manifest(lambda name: path / name, platform)
    manifest = read_json(lambda name: path / name, descriptor)
    config = read_json(lambda name: path / name, manifest["config"])
    diff_ids = [str(diff_id) for diff_id in config.get("rootfs", {}).get("diff_ids", [])]
    if len(diff_ids) != len(manifest["layers"]):
        raise UserError(f"{len(manifest['layers'])} layers, {len(diff_ids)} diffIDs", source=str(path))
    layers = tuple(_layer(*pair) for pair in zip(manifest["layers"], diff_ids, strict=True))
    return Layout(path, descriptor["digest"], manifest["config"]["digest"], layers)


def verify(path: Path, platform: str = "linux/amd64") -> Layout:
    """Hash every blob of the image, compressed and not. Raises CheckFailed naming all that are wrong."""
    layout = read(path, platform)
    wrong = [f"{layer.digest}: {what}" for layer in layout.layers if (what := _wrong(path, layer))]
    if wrong:
        raise CheckFailed(f"{path}: " + "; ".join(wrong))
    return layout


def write_docker_archive(path: Path, stream: BinaryIO, *tags: str) -> None:
    """Write what `docker load` reads, for engines without zstd: plain layers; the image ID is the config digest."""
    layout = read(path)
    config = layout.config_digest[7:]
    names = [f"{layer.diff_id[7:]}/layer.tar" for layer in layout.layers]
    data = blob_path(path, layout.config_digest).read_bytes()
    _write_file(stream, f"{config}.json", data)
    for name, layer in dict(zip(names, layout.layers, strict=True)).items():
        size = layer.raw_bytes or _raw_size(path, layer)
        stream.write(plain(name, size))
        with open_layer(blob_path(path, layer.digest)) as raw:
            shutil.copyfileobj(raw, stream, _CHUNK)
        stream.write(bytes(padded(size) - size))
    image = {"Config": f"{config}.json", "RepoTags": list(tags) or None, "Layers": names}
    _write_file(stream, "manifest.json", canonical_json([image]))
    stream.write(bytes(1024))


def find_manifest(find: Callable[[str], Path | None], platform: str) -> dict[str, Any]:
    """Return the descriptor of the image manifest; nested indexes are followed. `find` maps names to files."""
    index = _load(_existing(find, "index.json"), "index.json")
    for _ in range(4):
        entries = [entry for entry in index.get("manifests", []) if _matches(entry, platform)]
        known = sorted({_platform_of(entry) for entry in index.get("manifests", [])})
        if len(entries) != 1:
            found = ", ".join(known) or "none"
            raise UserError(f"{len(entries)} images for {platform}; found: {found}", source="index.json")
        if entries[0].get("mediaType") in MANIFESTS:
            return cast(dict[str, Any], entries[0])
        if entries[0].get("mediaType") not in INDEXES:
            raise UserError(f"unknown media type {entries[0].get('mediaType')!r}", source="index.json")
        index = read_json(find, entries[0])
    raise UserError("indexes nested more than four deep", source="index.json")


def read_json(find: Callable[[str], Path | None], descriptor: Mapping[str, Any]) -> dict[str, Any]:
    """Read the JSON blob of a descriptor; its digest is checked."""
    digest = str(descriptor.get("digest"))
    file = _existing(find, str(blob_path(Path(), digest)))
    require_size(file, descriptor)
    value = _load(file, digest)
    if digest_of(file.read_bytes()) != digest:
        raise UserError("the content has another digest", source=digest)
    return value


def require_size(file: Path, descriptor: Mapping[str, Any]) -> None:
    """Refuse a blob whose size is not the one that its descriptor declares."""
    declared, found = descriptor.get("size"), file.stat().st_size
    if declared is not None and declared != found:
        raise UserError(f"{found} bytes, the manifest says {declared}", source=str(descriptor.get("digest")))


def _describe(media_type: str, layer: LayerInfo) -> dict[str, object]:
    notes = {RAW_BYTES: str(layer.raw_bytes), FILES: str(layer.files)}
    return {"mediaType": media_type, "digest": layer.digest, "size": layer.size_bytes, "annotations": notes}


def _layer(descriptor: Mapping[str, Any], diff_id: str) -> LayerInfo:
    notes = descriptor.get("annotations") or {}
    numbers = (int(descriptor["size"]), int(notes.get(RAW_BYTES, 0)), int(notes.get(FILES, 0)))
    return LayerInfo(descriptor["digest"], diff_id, *numbers, HISTORY)


def _add(path: Path, data: bytes) -> str:
    blob_path(path, digest_of(data)).write_bytes(data)
    return digest_of(data)


def _platform(config: bytes) -> dict[str, str]:
    fields = json.loads(config)
    return {"architecture": fields["architecture"], "os": fields["os"]}


def _matches(entry: Mapping[str, Any], platform: str) -> bool:
    return "platform" not in entry or _platform_of(entry) == platform


def _platform_of(entry: Mapping[str, Any]) -> str:
    named = entry.get("platform") or {}
    return f"{named.get('os', '?')}/{named.get('architecture', '?')}"


def _existing(find: Callable[[str], Path | None], name: str) -> Path:
    found = find(name)
    if found is None or not found.is_file():
        raise UserError("missing in the image", source=name)
    return found


def _load(file: Path, label: str) -> dict[str, Any]:
    if file.stat().st_size > JSON_LIMIT_BYTES:
        raise UserError(f"{file.stat().st_size} bytes of JSON, more than {JSON_LIMIT_BYTES}", source=label)
    try:
        value = json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        raise UserError(f"broken JSON: {error}", source=label) from error
    if not isinstance(value, dict):
        raise UserError(f"JSON {type(value).__name__}, not an object", source=label)
    return value


def _hash(stream: BinaryIO) -> tuple[str, int]:
    state, size = hashlib.sha256(), 0
    while chunk := stream.read(_CHUNK):
        state.update(chunk)
        size += len(chunk)
    return f"sha256:{state.hexdigest()}", size


def _wrong(path: Path, layer: LayerInfo) -> str:
    blob = blob_path(path, layer.digest)
    if not blob.is_file():
        return "missing"
    with blob.open("rb") as file:
        if _hash(file) != (layer.digest, layer.size_bytes):
            return "the content has another digest or size"
    with open_layer(blob) as raw:
        return "" if _hash(raw)[0] == layer.diff_id else f"the content is not diffID {layer.diff_id}"


def _raw_size(path: Path, layer: LayerInfo) -> int:
    with open_layer(blob_path(path, layer.digest)) as raw:
        return _hash(raw)[1]


def _write_file(stream: BinaryIO, name: str, data: bytes) -> None:
    stream.write(plain(name, len(data)) + data + bytes(padded(len(data)) - len(data)))
