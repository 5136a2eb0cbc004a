"""cosign's place and form for signatures (tag `sha256-….sig`) and attestations (`.att`): layers of one manifest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kiln import oci
from kiln.distribution import Manifest, Repository

PAYLOAD = "application/vnd.dev.cosign.simplesigning.v1+json"
ENVELOPE = "application/vnd.dsse.envelope.v1+json"
SIGNATURE = "dev.cosignproject.cosign/signature"
_TYPE = "cosign container image signature"


@dataclass(frozen=True)
class Entry:
    """One layer: a payload with its signature as annotation, or an envelope."""

    data: bytes
    media_type: str
    annotations: Mapping[str, str]

    @property
    def signature(self) -> str:
        """Return the payload's signature in base64, "" for an envelope."""
        return self.annotations.get(SIGNATURE, "")


def tag(digest: str, kind: str) -> str:
    """Return the tag for "sig" or "att"."""
    return f"{digest.replace(':', '-')}.{kind}"


def payload(repository: str, digest: str) -> bytes:
    """Return what is signed for an image; the repository stands in it without its registry, which may be a mirror."""
    image = {"docker-manifest-digest": digest}
    identity = {"docker-reference": repository}
    return oci.canonical_json({"critical": {"identity": identity, "image": image, "type": _TYPE}, "optional": None})


def signed_digest(document: Mapping[str, Any]) -> str:
    """Return the digest that a payload names, or ""."""
    try:
        critical = document["critical"]
        return str(critical["image"]["docker-manifest-digest"]) if critical["type"] == _TYPE else ""
    except (KeyError, TypeError):
        return ""


def signed(data: bytes, signature: str) -> Entry:
    """Return the entry for a payload and its signature."""
    return Entry(data, PAYLOAD, {SIGNATURE: signature})


def attestation(envelope: bytes, predicate_type: str) -> Entry:
    """Return the entry for a signed statement."""
    return Entry(envelope, ENVELOPE, {SIGNATURE: "", "predicateType": predicate_type})


def read(repository: Repository, name: str) -> tuple[Entry, ...]:
    """Return the entries under a tag. Raises Corrupt for one whose content was changed."""
    return tuple(
        Entry(repository.blob(layer["digest"]), layer["mediaType"], layer.get("annotations") or {})
        for layer in _layers(repository.manifest(name))
    )


def add(repository: Repository, name: str, entry: Entry) -> None:
    """Add an entry to those under a tag."""
    described = {
        "mediaType": entry.media_type, "digest": oci.digest_of(entry.data), "size": len(entry.data),
        "annotations": dict(entry.annotations),
    }  # fmt: skip
    repository.put_blob(entry.data)

    def change(current: Manifest | None) -> bytes | None:
        layers = _layers(current)
        if described in layers:
            return None
        config = _config([*layers, described])
        repository.put_blob(config)
        head = {"mediaType": oci.CONFIG, "digest": oci.digest_of(config), "size": len(config)}
        fields = {"schemaVersion": 2, "mediaType": oci.MANIFEST, "config": head, "layers": [*layers, described]}
        return oci.canonical_json(fields)

    repository.rewrite(name, change, oci.MANIFEST)


def _layers(manifest: Manifest | None) -> list[dict[str, Any]]:
    return list(manifest.fields().get("layers") or []) if manifest else []


def _config(layers: list[dict[str, Any]]) -> bytes:
    """An image's config, since cosign's manifests are images to most registries."""
    rootfs = {"type": "layers", "diff_ids": [layer["digest"] for layer in layers]}
    return oci.canonical_json({"architecture": "", "os": "", "config": {}, "rootfs": rootfs})
