"""Keys and signatures: made, encrypted, loaded or refused; a signature holds for these bytes and this key only."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization as form
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from kiln import cosign, settings, signing, statement
from kiln.errors import UserError

pytestmark = pytest.mark.unit

DOCUMENT = statement.make("kiln/image", "sha256:" + "ab" * 32, statement.BILL, {"a": 1})


def pem(key: Any) -> bytes:
    data: bytes = key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption())
    return data


@pytest.mark.parametrize("password", ["", "secret"])
def test_a_new_key_signs_and_its_public_half_verifies(tmp_path: Path, password: str) -> None:
    files = signing.make_key(tmp_path / "keys", password)
    assert files.private.stat().st_mode & 0o777 == 0o600
    assert (b"ENCRYPTED" in files.private.read_bytes()) is bool(password)
    signer, key = signing.load(files.private, password), signing.load_public(files.public)
    text = signing.sign(signer, b"data")
    assert signing.is_signed(key, b"data", text)
    assert not signing.is_signed(key, b"date", text)


def test_a_key_is_never_overwritten(tmp_path: Path) -> None:
    first = signing.make_key(tmp_path, "").private.read_bytes()
    with pytest.raises(UserError, match="there is a key already"):
        signing.make_key(tmp_path, "")
    assert (tmp_path / "kiln.key").read_bytes() == first


@pytest.mark.parametrize(
    ("made", "given", "message"),
    [
        ("secret", "", r"the key cannot be opened: .*\n.*KILN_KEY_PASSWORD"),
        ("", "secret", r"the key cannot be opened: .*\n.*unset KILN_KEY_PASSWORD"),
        ("secret", "wrong", "the password is wrong"),
    ],
)
def test_a_password_that_does_not_fit_is_told(tmp_path: Path, made: str, given: str, message: str) -> None:
    files = signing.make_key(tmp_path, made)
    with pytest.raises(UserError, match=message):
        signing.load(files.private, given)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"-----BEGIN ENCRYPTED SIGSTORE PRIVATE KEY-----\n", "this is a private key in cosign's own form"),
        (b"rubbish", "the key cannot be read"),
        (pem(ec.generate_private_key(ec.SECP384R1())), "not an ECDSA P-256 key"),
        (pem(rsa.generate_private_key(65537, 2048)), "not an ECDSA P-256 key"),
        (None, "no key there: No such file"),
    ],
    ids=["cosign", "rubbish", "P-384", "RSA", "missing"],
)
def test_another_kind_of_key_is_refused_with_the_next_command(tmp_path: Path, data: bytes | None, message: str) -> None:
    path = tmp_path / "key"
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(UserError, match=rf"{path}: {message}[^\n]*\n.*inv key.new"):
        signing.load(path, "")


def test_a_private_key_is_not_taken_for_a_public_one(tmp_path: Path) -> None:
    files = signing.make_key(tmp_path, "")
    with pytest.raises(UserError, match=r"not a public key in PEM\n.*kiln\.pub"):
        signing.load_public(files.private)


@pytest.mark.parametrize("text", ["", "x", "AAAA", "Z" * 96])
def test_rubbish_is_no_signature(tmp_path: Path, text: str) -> None:
    key = signing.load_public(signing.make_key(tmp_path, "").public)
    assert not signing.is_signed(key, b"data", text)


def test_an_envelope_gives_its_statement_to_the_right_key_only(tmp_path: Path) -> None:
    files, others = signing.make_key(tmp_path / "a", ""), signing.make_key(tmp_path / "b", "")
    envelope = signing.seal(signing.load(files.private, ""), DOCUMENT)
    assert signing.unseal(signing.load_public(files.public), envelope) == DOCUMENT
    assert signing.unseal(signing.load_public(others.public), envelope) is None


def test_a_key_id_is_a_hint_only_as_cosign_leaves_it_out(tmp_path: Path) -> None:
    files = signing.make_key(tmp_path, "")
    envelope = json.loads(signing.seal(signing.load(files.private, ""), DOCUMENT))
    envelope["signatures"][0]["keyid"] = ""
    assert signing.unseal(signing.load_public(files.public), json.dumps(envelope).encode()) == DOCUMENT


@pytest.mark.parametrize(
    "change",
    [
        {"payload": base64.b64encode(DOCUMENT + b" ").decode()},
        {"payloadType": "text/plain"},
        {"signatures": []},
        {"signatures": [{"keyid": "", "sig": "AAAA"}]},
        {"signatures": [{"sig": 5}]},
        {"payload": 5},
    ],
)
def test_a_changed_envelope_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    files = signing.make_key(tmp_path, "")
    envelope = {**json.loads(signing.seal(signing.load(files.private, ""), DOCUMENT)), **change}
    assert signing.unseal(signing.load_public(files.public), json.dumps(envelope).encode()) is None


@pytest.mark.parametrize("data", [b"", b"[]", b"null", b"{", b"{}"])
def test_what_is_no_envelope_is_refused(tmp_path: Path, data: bytes) -> None:
    assert signing.unseal(signing.load_public(signing.make_key(tmp_path, "").public), data) is None


def test_the_signed_payload_is_cosigns_and_names_no_registry() -> None:
    payload = json.loads(cosign.payload("kiln/image", "sha256:ab"))
    assert payload["critical"]["type"] == "cosign container image signature"
    assert payload["critical"]["identity"] == {"docker-reference": "kiln/image"}
    assert cosign.signed_digest(payload) == "sha256:ab"
    assert cosign.tag("sha256:ab", "sig") == "sha256-ab.sig"


@pytest.mark.parametrize("document", [{}, {"critical": 1}, {"critical": {"type": "other", "image": {}}}])
def test_a_malformed_payload_names_nothing(document: dict[str, Any]) -> None:
    assert cosign.signed_digest(document) == ""


def test_the_password_is_not_shown_with_the_settings() -> None:
    found = settings.from_env({"KILN_KEY_PASSWORD": "hunter2", "KILN_SIGNING_KEY": "a.key"})
    assert "hunter2" not in repr(found)
    assert found.signed_by("").signing_key == "a.key"
    assert found.signed_by("b.key").signing_key == "b.key"
