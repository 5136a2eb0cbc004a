"""What is attached to a digest: OCI 1.1 referrers, listed by the registry or, where it can't, under a tag."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kiln import oci
from kiln.distribution import Manifest, Repository
from kiln.errors import CheckFailed, UserError

EMPTY = "application/vnd.oci.empty.v1+json"
_NOTHING = b"{}"


@dataclass(frozen=True)
class Document:
    """One file to attach; its media type is the artifact's type too."""

    media_type: str
    data: bytes


def attach(repository: Repository, digest: str, documents: Sequence[Document]) -> None:
    """Attach documents to an image. What is attached already stays as it is; the same document counts once."""
    subject = _subject(repository, digest)
    repository.put_blob(_NOTHING)
    unlisted = []
    for document in documents:
        repository.put_blob(document.data)
        manifest = _artifact(subject, document)
        if not repository.put_manifest(oci.digest_of(manifest), manifest):
            unlisted.append(_entry(manifest, document))
    if unlisted:
        _list_under_tag(repository, digest, unlisted)


def listed(repository: Repository, digest: str, media_type: str) -> tuple[str, ...]:
    """Return the manifest digests of the referrers of one artifact type, sorted."""
    entries = repository.referrers(digest)
    if entries is None:
        entries = _entries(repository.manifest(tag(digest)))
    return tuple(sorted(str(each["digest"]) for each in entries if each.get("artifactType") == media_type))


def read(repository: Repository, name: str, digest: str) -> bytes:
    """Return the document of the referrer `name`. Raises CheckFailed unless it refers to `digest`; Corrupt."""
    manifest = repository.manifest(name)
    if manifest is None:
        raise CheckFailed(f"referrer {name} is listed but not there")
    fields = manifest.fields()
    if (found := (fields.get("subject") or {}).get("digest")) != digest:
        raise CheckFailed(f"referrer {name} is listed, but its subject is {found}")
    (layer,) = fields["layers"]
    return repository.blob(layer["digest"])


def tag(digest: str) -> str:
    """Return the tag that lists the referrers where the registry doesn't (OCI distribution 1.1)."""
    return digest.replace(":", "-")


def _subject(repository: Repository, digest: str) -> dict[str, Any]:
    manifest = repository.manifest(digest)
    if manifest is None:
        raise UserError(f"the registry does not hold {digest}", hint="inv push", source=repository.shown)
    return {"mediaType": manifest.media_type, "digest": digest, "size": len(manifest.data)}


def _artifact(subject: dict[str, Any], document: Document) -> bytes:
    layer = {"mediaType": document.media_type, "digest": oci.digest_of(document.data), "size": len(document.data)}
    config = {"mediaType": EMPTY, "digest": oci.digest_of(_NOTHING), "size": len(_NOTHING)}
    return oci.canonical_json(
        {
            "schemaVersion": 2, "mediaType": oci.MANIFEST, "artifactType": document.media_type, "config": config,
            "layers": [layer], "subject": subject,
        }
    )  # fmt: skip


def _entry(manifest: bytes, document: Document) -> dict[str, Any]:
    size = len(manifest)
    head = {"mediaType": oci.MANIFEST, "digest": oci.digest_of(manifest), "size": size}
    return {**head, "artifactType": document.media_type}


def _list_under_tag(repository: Repository, digest: str, new: list[dict[str, Any]]) -> None:
    def change(current: Manifest | None) -> bytes | None:
        entries = _entries(current)
        known = {each.get("digest") for each in entries}
        missing = [entry for entry in new if entry["digest"] not in known]
        index = {"schemaVersion": 2, "mediaType": oci.INDEX, "manifests": [*entries, *missing]}
        return oci.canonical_json(index) if missing else None

    repository.rewrite(tag(digest), change, oci.INDEX)


def _entries(index: Manifest | None) -> list[dict[str, Any]]:
    if index is None:
        return []
    fields = index.fields()
    if fields.get("mediaType", index.media_type) != oci.INDEX:
        raise CheckFailed(f"the tag that lists referrers is {fields.get('mediaType')}, not an index")
    return [each for each in fields.get("manifests") or [] if isinstance(each, dict)]
