"""What vouches for a pushed image, made and attached: bill of materials, provenance, signatures."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock

from kiln import cosign, provenance, referrers, result, sbom, signing, statement, whole
from kiln.attached import BILL, PROVENANCE
from kiln.distribution import Repository, parse
from kiln.errors import UserError
from kiln.registry_errors import Missing

if TYPE_CHECKING:
    from securesystemslib.signer import CryptoSigner

    from kiln.plan import Plan
    from kiln.registry import Registry
    from kiln.result import Result
    from kiln.settings import Settings


def record(settings: Settings, plan: Plan, built: Result, engine: str, started: datetime | None) -> bytes:
    """Keep the provenance of a layout that was just written beside its result, so that every push attaches the same."""
    finished = datetime.fromtimestamp((Path(built.layout) / "index.json").stat().st_mtime, UTC)
    # An engine's address may name a host.
    seen = provenance.observe(settings.root, engine.partition(" at ")[0], started, finished)
    made = provenance.make(settings, plan, built, seen)
    whole.write(_kept(settings, plan), made)
    return made


def publish(settings: Settings, registry: Registry, plan: Plan, built: Result, digest: str) -> str:
    """Attach SBOM and provenance to a pushed image, signed if settings name a key; says in words what is there now.

    `digest`: the image's, or that of a variant of it with another compression.
    """
    signer = load_signer(settings)
    bill, origin = sbom.make(plan, digest), _provenance(settings, plan, built)
    if digest != built.digest:
        origin = statement.make(built.repository, digest, statement.PROVENANCE, parse(origin, PROVENANCE)["predicate"])
    locks = settings.home / "locks"
    locks.mkdir(parents=True, exist_ok=True)
    with FileLock(locks / f"attach-{digest[7:19]}.lock"):
        attach(registry, built.repository, digest, bill, origin, signer)
    return f"SBOM and provenance attached, {'signed' if signer else 'not signed'}"


def load_signer(settings: Settings) -> CryptoSigner | None:
    """Load the key that settings name, if any. Raises UserError; worth asking for before a long build."""
    return signing.load(Path(settings.signing_key), settings.key_password) if settings.signing_key else None


def attach(registry: Registry, repository: str, digest: str, bill: bytes, origin: bytes,
           signer: CryptoSigner | None) -> None:  # fmt: skip
    """Attach both documents; with a signer also sign the image and both. What is there already is not added again."""
    place = Repository(registry, repository)
    try:
        documents = (referrers.Document(sbom.MEDIA_TYPE, bill), referrers.Document(statement.MEDIA_TYPE, origin))
        referrers.attach(place, digest, documents)
        if signer:
            bill_statement = statement.make(repository, digest, statement.BILL, parse(bill, BILL))
            _sign(place, digest, signer)
            _seal(place, digest, signer, ((bill_statement, statement.BILL), (origin, statement.PROVENANCE)))
    except Missing as error:
        raise UserError(f"attach to {digest}: {error}", hint="inv push", source=place.shown) from None


def _sign(place: Repository, digest: str, signer: CryptoSigner) -> None:
    name, payload = cosign.tag(digest, "sig"), cosign.payload(place.name, digest)
    known = (each for each in cosign.read(place, name) if each.data == payload)
    if not any(signing.is_signed(signer.public_key, each.data, each.signature) for each in known):
        cosign.add(place, name, cosign.signed(payload, signing.sign(signer, payload)))


def _seal(place: Repository, digest: str, signer: CryptoSigner, statements: tuple[tuple[bytes, str], ...]) -> None:
    name = cosign.tag(digest, "att")
    known = {signing.unseal(signer.public_key, each.data) for each in cosign.read(place, name)}
    for document, predicate_type in statements:
        if document not in known:
            cosign.add(place, name, cosign.attestation(signing.seal(signer, document), predicate_type))


def _provenance(settings: Settings, plan: Plan, built: Result) -> bytes:
    """What `record` kept; of a layout that was built before there was provenance, without engine and start."""
    file = _kept(settings, plan)
    known = file.read_bytes() if file.exists() else b""
    if known and built.digest in statement.subjects(parse(known, str(file))):
        return known
    return record(settings, plan, built, "", None)


def _kept(settings: Settings, plan: Plan) -> Path:
    return result.path(settings, plan.id).with_name("provenance.json")
