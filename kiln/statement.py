"""in-toto statements: what is said (the predicate) about which image (the subject)."""

from __future__ import annotations

from typing import Any

from kiln import oci

# Names out of the specifications in-toto v1, SLSA v1 and CycloneDX's of its own predicate; nothing is fetched by them.
STATEMENT = "https://in-toto.io/Statement/v1"
PROVENANCE = "https://slsa.dev/provenance/v1"
BILL = "https://cyclonedx.org/bom"
MEDIA_TYPE = "application/vnd.in-toto+json"


def make(repository: str, digest: str, predicate_type: str, predicate: dict[str, Any]) -> bytes:
    """Return a statement about one image, as canonical JSON."""
    return oci.canonical_json(
        {
            "_type": STATEMENT,
            "subject": [{"name": repository, "digest": {"sha256": digest.removeprefix("sha256:")}}],
            "predicateType": predicate_type,
            "predicate": predicate,
        }
    )


def subjects(document: dict[str, Any]) -> tuple[str, ...]:
    """Return the digests that a statement is about, none if it is malformed."""
    try:
        return tuple(f"sha256:{each['digest']['sha256']}" for each in document["subject"])
    except (KeyError, TypeError):
        return ()
