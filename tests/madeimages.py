"""Images made by hand with Python's tar module: a second implementation to hold the canonicaliser against."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kiln import oci
from kiln.compression import open_layer

EPOCH = 1_700_000_000
KINDS = {"file": tarfile.REGTYPE, "dir": tarfile.DIRTYPE, "symlink": tarfile.SYMTYPE, "hardlink": tarfile.LNKTYPE,
         "fifo": tarfile.FIFOTYPE, "chardev": tarfile.CHRTYPE}  # fmt: skip


@dataclass(frozen=True)
class Entry:
    """A path with what `lstat`, `readlink` and reading it would show."""

    path: str
    kind: str = "file"
    data: bytes = b""
    mode: int = 0o644
    uid: int = 0
    gid: int = 0
    link: str = ""
    xattrs: tuple[tuple[str, str], ...] = ()
    mtime: int = 1
    owner: str = ""


def layer(entries: Iterable[Entry], form: int = tarfile.PAX_FORMAT) -> bytes:
    """Write a raw layer."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form, encoding="utf-8", errors="surrogateescape") as tar:
        for entry in entries:
            info = tarfile.TarInfo(entry.path)
            info.type, info.size, info.linkname = KINDS[entry.kind], len(entry.data), entry.link
            info.mode, info.uid, info.gid, info.mtime = entry.mode, entry.uid, entry.gid, entry.mtime
            info.uname = info.gname = entry.owner
            info.pax_headers = {f"SCHILY.xattr.{key}": value for key, value in entry.xattrs}
            tar.addfile(info, io.BytesIO(entry.data))
    return out.getvalue()


def config(layers: Sequence[bytes], **runtime: object) -> dict[str, Any]:
    """Make the config an engine would, with its clock and its names in it."""
    return {
        "architecture": "amd64", "os": "linux", "created": "2026-11-29T17:00:00.123Z", "docker_version": "20.10.24",
        "container": "f00", "container_config": {"Hostname": "builder"},
        "config": {"Hostname": "builder", "Env": ["PATH=/bin"], "Cmd": None, "OnBuild": None, **runtime},
        "history": [{"created": "2026-11-29T17:00:00Z", "created_by": f"RUN step {n}"} for n in range(len(layers))],
        "rootfs": {"type": "layers", "diff_ids": [oci.digest_of(data) for data in layers]},
    }  # fmt: skip


def docker_archive(layers: Sequence[bytes], **changes: Any) -> bytes:
    """Write what `docker save` of 20.10 does: layer folders in an order of their own, repeated layers as links."""
    described = {**config(layers), **changes}
    names = [hashlib.sha256(b"%d" % number + data).hexdigest() + "/layer.tar" for number, data in enumerate(layers)]
    first = dict(reversed(list(zip(layers, names, strict=True))))
    entries = []
    for name, data in sorted(zip(names, layers, strict=True)):
        entries += [
            Entry(name.split("/", maxsplit=1)[0], "dir", mode=0o755),
            Entry(name.replace("layer.tar", "VERSION"), data=b"1.0"),
        ]
        same = first[data]
        entries.append(Entry(name, data=data) if same == name else Entry(name, "symlink", link=f"../{same}"))
    manifest = [{"Config": "c0ffee.json", "RepoTags": ["a:b"], "Layers": names}]
    entries += [Entry("c0ffee.json", data=json.dumps(described).encode())]
    entries += [Entry("manifest.json", data=json.dumps(manifest).encode())]
    return layer(entries)


def layout(path: Path, layers: Sequence[bytes], media_types: Sequence[str] = (), **changes: Any) -> Path:
    """Write an OCI layout; `layers` are blobs as they are, `changes` go into the config."""
    blobs = path / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    types = media_types or [oci.LAYER] * len(layers)

    def add(data: bytes, media_type: str) -> dict[str, object]:
        (blobs / hashlib.sha256(data).hexdigest()).write_bytes(data)
        return {"mediaType": media_type, "digest": oci.digest_of(data), "size": len(data)}

    head = add(json.dumps({**config(layers), **changes}).encode(), oci.CONFIG)
    described = [add(data, media_type) for data, media_type in zip(layers, types, strict=True)]
    manifest = add(json.dumps({"schemaVersion": 2, "config": head, "layers": described}).encode(), oci.MANIFEST)
    (path / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    (path / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [manifest]}))
    return path


def entries_of(layout_path: Path) -> Iterator[list[tarfile.TarInfo]]:
    """Yield each layer's tar entries."""
    for info in oci.read(layout_path).layers:
        with (
            open_layer(oci.blob_path(layout_path, info.digest)) as raw,
            tarfile.open(fileobj=raw, mode="r|") as tar,
        ):
            yield list(tar)


def tree(layers: Iterable[bytes]) -> dict[str, Entry]:
    """Apply layers as an engine does: whiteouts hide what is below, then the entries come."""
    paths: dict[str, Entry] = {}
    for data in layers:
        with tarfile.open(fileobj=io.BytesIO(data), encoding="utf-8", errors="surrogateescape") as tar:
            members = [(info, _entry(tar, info)) for info in tar]
        for info, _ in members:
            _hide(paths, info.name)
        for info, entry in members:
            if "/.wh." in f"/{info.name}":
                continue
            if entry.kind != "dir":
                _remove(paths, entry.path)
            paths[entry.path] = entry
    return paths


def tree_of(layout_path: Path) -> dict[str, Entry]:
    """Apply the layers of a layout."""
    blobs = []
    for info in oci.read(layout_path).layers:
        with open_layer(oci.blob_path(layout_path, info.digest)) as raw:
            blobs.append(raw.read())
    return tree(blobs)


def _hide(paths: dict[str, Entry], name: str) -> None:
    folder, _, base = name.rpartition("/")
    if base == ".wh..wh..opq":
        _remove(paths, folder, inside=True)
    elif base.startswith(".wh."):
        _remove(paths, f"{folder}/{base[4:]}".lstrip("/"))


def _remove(paths: dict[str, Entry], path: str, inside: bool = False) -> None:
    for known in [known for known in paths if known.startswith(f"{path}/") or (known == path and not inside)]:
        del paths[known]


def _entry(tar: tarfile.TarFile, info: tarfile.TarInfo) -> Entry:
    shown = info
    while shown.islnk():
        shown = tar.getmember(shown.linkname)
    content = tar.extractfile(shown) if shown.isreg() else None
    prefix = "SCHILY.xattr."
    xattrs = tuple(sorted((k[len(prefix) :], v) for k, v in shown.pax_headers.items() if k.startswith(prefix)))
    kind = next(kind for kind, code in KINDS.items() if code == shown.type or (kind == "file" and shown.isreg()))
    link = shown.linkname if shown.issym() else ""
    return Entry(info.name, kind, content.read() if content else b"", shown.mode, shown.uid, shown.gid, link, xattrs)


def stripped(paths: Mapping[str, Entry]) -> dict[str, Entry]:
    """Leave out what is no property of a tree: mtimes, owner names, and the modes of symbolic links."""
    modes = {path: 0o777 if entry.kind == "symlink" else entry.mode for path, entry in paths.items()}
    return {path: replace(entry, mode=modes[path], mtime=1, owner="") for path, entry in paths.items()}
