"""What is attached to an image in a registry: fetched, and verified against a key."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from kiln import cosign, referrers, sbom, signing, statement
from kiln.distribution import Repository, parse
from kiln.errors import CheckFailed
from kiln.registry_errors import Missing

if TYPE_CHECKING:
    from securesystemslib.signer import Key

    from kiln.registry import Registry

Answer = TypeVar("Answer")
Part = Literal["SBOM", "provenance", "signature"]
BILL: Part = "SBOM"
PROVENANCE: Part = "provenance"
SIGNATURE: Part = "signature"


@dataclass(frozen=True)
class Fault:
    """One thing wrong with one part of what is attached."""

    part: Part
    text: str

    def __str__(self) -> str:
        return f"{self.part}: {self.text}"


@dataclass(frozen=True)
class Attached:
    """What a registry holds for a digest. `faults`: what could not be read.

    `signatures` are signed payloads, `envelopes` signed statements; documents are in `sboms` and `provenances`.
    """

    sboms: tuple[bytes, ...] = ()
    provenances: tuple[bytes, ...] = ()
    signatures: tuple[cosign.Entry, ...] = ()
    envelopes: tuple[bytes, ...] = ()
    faults: tuple[Fault, ...] = ()

    @property
    def sbom(self) -> bytes:
        """Return the bill, or b"" if there is none."""
        return self.sboms[0] if self.sboms else b""


def fetch(registry: Registry, repository: str, digest: str) -> Attached:
    """Read all that is attached to a digest. What is missing or damaged is for `verify` to tell."""
    place = Repository(registry, repository)
    faults: list[Fault] = []

    def documents(kind: Part, media_type: str) -> tuple[bytes, ...]:
        names = _tried(faults, kind, lambda: referrers.listed(place, digest, media_type)) or ()
        found = (_tried(faults, kind, partial(referrers.read, place, name, digest)) for name in names)
        return tuple(each for each in found if each is not None)

    def entries(suffix: str) -> tuple[cosign.Entry, ...]:
        return _tried(faults, SIGNATURE, lambda: cosign.read(place, cosign.tag(digest, suffix))) or ()

    bills, origins = documents(BILL, sbom.MEDIA_TYPE), documents(PROVENANCE, statement.MEDIA_TYPE)
    envelopes = tuple(each.data for each in entries("att"))
    return Attached(bills, origins, entries("sig"), envelopes, tuple(faults))


def _tried(faults: list[Fault], part: Part, step: Callable[[], Answer]) -> Answer | None:
    try:
        return step()
    except (CheckFailed, Missing) as error:
        faults.append(Fault(part, str(error)))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        faults.append(Fault(part, f"malformed: {type(error).__name__}: {error}"))
    return None


def verify(attached: Attached, key: Key | None, digest: str) -> Attached:
    """Return what vouches for the image with this digest; without a key, nothing is said of signatures.

    Other people's provenance may be attached too: it is left out of the return unless the key signed it.
    Raises CheckFailed with every fault.
    """
    found = faults(attached, key, digest)
    if found:
        raise CheckFailed("\n  ".join([f"{digest} is not vouched for:", *map(str, found)]))
    statements = _statements(attached, key) if key else None
    return replace(attached, provenances=_vouched(attached.provenances, statements))


def faults(attached: Attached, key: Key | None, digest: str) -> tuple[Fault, ...]:
    """Return everything that is missing, damaged, about another image, or not signed by the key."""
    statements = _statements(attached, key) if key else None
    bill = (Fault(BILL, text) for text in _bill_faults(attached.sboms, statements, digest))
    origin = (Fault(PROVENANCE, text) for text in _provenance_faults(attached.provenances, statements, digest))
    signature = (Fault(SIGNATURE, text) for text in _signature_faults(attached.signatures, key, digest)) if key else ()
    return (*attached.faults, *bill, *origin, *signature)


def _statements(attached: Attached, key: Key) -> tuple[bytes, ...]:
    """The statements that the key signed."""
    found = (signing.unseal(key, envelope) for envelope in attached.envelopes)
    return tuple(each for each in found if each is not None)


def _bill_faults(bills: tuple[bytes, ...], statements: tuple[bytes, ...] | None, digest: str) -> Iterator[str]:
    """Every attached bill must be the signed one: a plan has one, and a scanner takes the first."""
    if not bills:
        yield "missing"
    for document in map(_object, bills):
        about = sbom.subject(document)
        if about != digest:
            yield f"it is about another image, {about or 'which it does not name'}"
        elif statements is not None and not any(_seals(each, document, digest) for each in statements):
            yield "not signed by this key, or changed since"


def _seals(signed: bytes, bill: dict[str, Any], digest: str) -> bool:
    """Tell whether a signed statement holds this very bill, said of this image."""
    fields = _object(signed)
    return (
        fields.get("predicateType") == statement.BILL
        and digest in statement.subjects(fields)
        and fields.get("predicate") == bill
    )


def _provenance_faults(origins: tuple[bytes, ...], statements: tuple[bytes, ...] | None, digest: str) -> Iterator[str]:
    vouched = _vouched(origins, statements)
    if not origins:
        yield "missing"
    elif not vouched:
        yield "not signed by this key, or changed since"
    for subjects in (statement.subjects(_object(each)) for each in vouched):
        if digest not in subjects:
            yield f"it is about another image, {', '.join(subjects) or 'which it does not name'}"


def _vouched(origins: tuple[bytes, ...], statements: tuple[bytes, ...] | None) -> tuple[bytes, ...]:
    return origins if statements is None else tuple(each for each in origins if each in statements)


def _signature_faults(entries: tuple[cosign.Entry, ...], key: Key, digest: str) -> Iterator[str]:
    good = [each.data for each in entries if signing.is_signed(key, each.data, each.signature)]
    named = sorted({cosign.signed_digest(_object(data)) for data in good})
    if not entries:
        yield "missing"
    elif not good:
        yield "not by this key, or changed since"
    elif digest not in named:
        yield f"it is for another image, {', '.join(named)}"


def _object(data: bytes) -> dict[str, Any]:
    """Read a document that anyone may have written: what is no JSON object says nothing."""
    try:
        return parse(data, "")
    except CheckFailed:
        return {}
