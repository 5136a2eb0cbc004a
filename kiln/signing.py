"""Signatures by key: ECDSA P-256 with SHA-256, as cosign makes and checks them."""

from __future__ import annotations

import base64
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kiln import oci, statement
from kiln.errors import UserError

if TYPE_CHECKING:
    from securesystemslib.dsse import Envelope
    from securesystemslib.signer import CryptoSigner, Key

SCHEME = "ecdsa-sha2-nistp256"
NAMES = ("kiln.key", "kiln.pub")


@dataclass(frozen=True)
class KeyFiles:
    """Where the two halves of a new key lie."""

    private: Path
    public: Path


def make_key(folder: Path, password: str) -> KeyFiles:
    """Write a new key pair as PEM; the private half is encrypted if there is a password. Raises UserError."""
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    lock = form.BestAvailableEncryption(password.encode()) if password else form.NoEncryption()
    private = key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, lock)
    public = key.public_key().public_bytes(form.Encoding.PEM, form.PublicFormat.SubjectPublicKeyInfo)
    files = KeyFiles(*(folder / name for name in NAMES))
    for path in (files.private, files.public):
        if path.exists():
            raise UserError("there is a key already", hint="name another folder", source=str(path))
    folder.mkdir(parents=True, exist_ok=True)
    _write_new(files.private, private, 0o600)
    _write_new(files.public, public, 0o644)
    return files


def load(path: Path, password: str) -> CryptoSigner:
    """Load a private key to sign with. Raises UserError."""
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_pem_private_key
    from securesystemslib.signer import CryptoSigner, SSlibKey

    data = _read(path)
    if b"SIGSTORE PRIVATE KEY" in data or b"COSIGN PRIVATE KEY" in data:
        raise UserError("this is a private key in cosign's own form", hint="inv key.new FOLDER", source=str(path))
    try:
        key = load_pem_private_key(data, password.encode() if password else None)
    except TypeError as error:
        hint = "set KILN_KEY_PASSWORD" if not password else "unset KILN_KEY_PASSWORD: this key is not encrypted"
        raise UserError(f"the key cannot be opened: {error}", hint=hint, source=str(path)) from None
    except ValueError as error:
        what = f"the key cannot be read, or the password is wrong: {str(error)[:120]}"
        raise UserError(what, hint="set KILN_KEY_PASSWORD, or inv key.new FOLDER", source=str(path)) from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.curve.name != "secp256r1":
        raise UserError("not an ECDSA P-256 key", hint="inv key.new FOLDER", source=str(path))
    return CryptoSigner(key, SSlibKey.from_crypto(key.public_key(), scheme=SCHEME))


def load_public(path: Path) -> Key:
    """Load a public key to verify with. Raises UserError, for a private key too."""
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_pem_public_key
    from securesystemslib.signer import SSlibKey

    try:
        key = load_pem_public_key(_read(path))
    except ValueError:
        raise UserError("not a public key in PEM", hint=f"the file {NAMES[1]} of the pair", source=str(path)) from None
    if not isinstance(key, ec.EllipticCurvePublicKey) or key.curve.name != "secp256r1":
        raise UserError("not an ECDSA P-256 key", source=str(path))
    return SSlibKey.from_crypto(key, scheme=SCHEME)


def sign(signer: CryptoSigner, data: bytes) -> str:
    """Return a signature in base64."""
    return base64.b64encode(bytes.fromhex(signer.sign(data).signature)).decode()


def is_signed(key: Key, data: bytes, signature: str) -> bool:
    """Tell whether a base64 signature over data is by this key."""
    from securesystemslib.exceptions import UnverifiedSignatureError
    from securesystemslib.signer import Signature

    try:
        key.verify_signature(Signature(key.keyid, base64.b64decode(signature, validate=True).hex()), data)
    except (UnverifiedSignatureError, ValueError):
        return False
    return True


def seal(signer: CryptoSigner, document: bytes) -> bytes:
    """Put a statement into a signed DSSE envelope."""
    from securesystemslib.dsse import Envelope

    envelope = Envelope(document, statement.MEDIA_TYPE, {})
    envelope.sign(signer)
    return oci.canonical_json(envelope.to_dict())


def unseal(key: Key, data: bytes) -> bytes | None:
    """Return the statement in an envelope, or None if this key did not sign it. Key ids are hints only, as in DSSE."""
    from securesystemslib.dsse import Envelope
    from securesystemslib.exceptions import FormatError

    try:
        envelope = Envelope.from_dict(json.loads(data))
    except (ValueError, KeyError, TypeError, AttributeError, FormatError):
        return None
    return envelope.payload if envelope.payload_type == statement.MEDIA_TYPE and _signs(key, envelope) else None


def _signs(key: Key, envelope: Envelope) -> bool:
    signatures = (base64.b64encode(bytes.fromhex(each.signature)).decode() for each in envelope.signatures.values())
    return any(is_signed(key, envelope.pae(), signature) for signature in signatures)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"no key there: {error.strerror}", hint="inv key.new FOLDER", source=str(path)) from None


def _write_new(path: Path, data: bytes, mode: int) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(data)
