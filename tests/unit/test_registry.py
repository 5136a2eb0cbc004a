# ruff: noqa: E501 (recorded lines are kept whole)
"""What a registry's answers mean, and which addresses may speak plain HTTP."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kiln import oci
from kiln.errors import UserError
from kiln.registry import is_loopback, manifest_digest, require_small_layers
from kiln.registry_errors import classify


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("127.0.0.1:5000", True), ("127.1.2.3", True), ("localhost:5000/team", True), ("[::1]:5000", True),
        ("reg.example", False), ("10.0.0.1:5000", False), ("localhost.example:5000", False), ("[fe80::1]:5000", False),
    ],
)  # fmt: skip
def test_only_loopback_may_speak_plain_http(address: str, expected: bool) -> None:
    assert is_loopback(address) is expected


FATAL = 'time="2026-11-29T17:00:00Z" level=fatal msg="%s"\n'


# Recorded from skopeo 1.9.3 against docker-registry 2.8.2, and from Go's net package.
@pytest.mark.parametrize(
    ("words", "kind", "text"),
    [
        ('pinging container registry 127.0.0.1:1: Get \\"http://127.0.0.1:1/v2/\\": dial tcp 127.0.0.1:1: connect: connection refused', "unavailable", "connection refused"),
        ('writing blob: Patch \\"http://127.0.0.1:1/v2/a\\": write tcp 127.0.0.1:2->127.0.0.1:1: write: connection reset by peer', "unavailable", "the connection broke"),
        ('writing blob: Patch \\"http://127.0.0.1:1/v2/a\\": EOF', "unavailable", "the connection broke"),
        ('writing blob: Patch \\"http://127.0.0.1:1/v2/a\\": readfrom tcp 127.0.0.1:2->127.0.0.1:1: write tcp 127.0.0.1:2->127.0.0.1:1: use of closed network connection', "unavailable", "the connection broke"),
        ("writing blob: read tcp 127.0.0.1:2->127.0.0.1:1: some new wording", "unavailable", "the connection broke"),
        ("writing blob: read tcp 10.0.0.1:2->10.0.0.2:443: i/o timeout", "unavailable", "no answer in time"),
        ("writing blob: uploading layer chunked: received unexpected HTTP status: 503 Service Unavailable", "unavailable", "HTTP 503 Service Unavailable"),
        ("writing blob: initiating layer upload to /v2/a/blobs/uploads/ in r: received unexpected HTTP status: 500 Internal Server Error", "unavailable", "HTTP 500 Internal Server Error"),
        ("writing blob: uploading layer chunked: blob upload unknown to registry", "unavailable", "HTTP 404, the registry lost the upload"),
        ("HTTP status: 404: BLOB_UPLOAD_UNKNOWN blob upload unknown to registry", "unavailable", "HTTP 404, the registry lost the upload"),
        ("HTTP status: 404: NAME_UNKNOWN repository name not known to registry", "missing", "HTTP 404, no such image"),
        ("toomanyrequests: slow down", "unavailable", "HTTP 429, too many requests"),
        ("dial tcp 10.255.255.1:443: i/o timeout", "unavailable", "no answer in time"),
        ("reading manifest sha256:ab in 127.0.0.1:5000/x: manifest unknown: manifest unknown", "missing", "HTTP 404, no such image"),
        ("fetching tags list: name unknown: repository name not known to registry", "missing", "HTTP 404, no such image"),
        ("dial tcp: lookup reg.example on 1.1.1.1:53: no such host", "refused", "there is no host of that name"),
        ("unable to retrieve auth token: invalid username/password: unauthorized: authentication required", "refused", "HTTP 401, it wants a login"),
        ("denied: requested access to the resource is denied", "refused", "HTTP 403, this login may not do that"),
        ("http: server gave HTTP response to HTTPS client", "refused", "it speaks plain HTTP"),
        ("writing blob: initiating layer upload to /v2/a/ in r: StatusCode: 405, Method not allowed", "refused", "HTTP 405, it allows no push"),
        ("writing manifest: uploading manifest v1 to r/a: manifest invalid: manifest invalid", "refused", "HTTP 400, it takes the manifest or a blob for malformed"),
        ("writing blob: uploading layer chunked: received unexpected HTTP status: 413 Request Entity Too Large", "refused", "HTTP 413, a layer is larger"),
        ("received unexpected HTTP status: 409 Conflict", "refused", "HTTP 409 Conflict"),
        ("happened during read: Digest did not match, expected sha256:a, got sha256:b", "corrupt", "the content has another digest"),
        ("Download config.json digest sha256:a does not match expected sha256:b", "corrupt", "the content has another digest"),
        ("Manifest does not match provided manifest digest sha256:a", "corrupt", "the content has another digest"),
        ("HTTPSConnectionPool(host='r', port=443): Read timed out. (read timeout=60)", "unavailable", "no answer in time"),
        ("('Connection aborted.', RemoteDisconnected('Remote end closed connection without response'))", "unavailable", "the connection broke"),
        ("NameResolutionError: Failed to resolve 'r' ([Errno -2] Name or service not known)", "refused", "there is no host of that name"),
        ("[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: self-signed certificate", "refused", "its certificate is not trusted here"),
        ("[SSL: WRONG_VERSION_NUMBER] wrong version number (_ssl.c:1006)", "refused", "it speaks plain HTTP"),
        ("x509: certificate signed by unknown authority", "refused", "its certificate is not trusted here"),
        ("something never seen", "refused", "something never seen"),
    ],
)  # fmt: skip
def test_a_failure_is_named_by_its_cause(words: str, kind: str, text: str) -> None:
    fault = classify(FATAL % words)
    assert (fault.kind, fault.text[: len(text)]) == (kind, text)


def test_progress_lines_before_the_last_words_do_not_decide() -> None:
    text = "Copying blob sha256:401\nHTTP status: 401\n" + FATAL % "write: broken pipe"
    assert classify(text).kind == "unavailable"


def layout(folder: Path, *digests: str) -> Path:
    (folder / "index.json").write_text(json.dumps({"manifests": [{"digest": each} for each in digests]}))
    return folder


def test_the_digest_of_a_layout_is_its_one_manifests(tmp_path: Path) -> None:
    assert manifest_digest(layout(tmp_path, "sha256:ab")) == "sha256:ab"


@pytest.mark.parametrize(
    ("digests", "message"), [((), "holds 0 manifests"), (("sha256:a", "sha256:b"), "holds 2 manifests")]
)
def test_a_layout_with_another_number_of_manifests_is_refused(
    tmp_path: Path, digests: tuple[str, ...], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        manifest_digest(layout(tmp_path, *digests))


def test_what_is_no_layout_is_refused_with_the_command_that_makes_one(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"is no OCI layout.*\n.*hint: inv build"):
        manifest_digest(tmp_path)


def sized(folder: Path, *sizes: int) -> tuple[Path, str]:
    layers = [{"digest": f"sha256:{number}", "size": size} for number, size in enumerate(sizes)]
    data = json.dumps({"layers": layers}).encode()
    file = oci.blob_path(folder, oci.digest_of(data))
    file.parent.mkdir(parents=True)
    file.write_bytes(data)
    return folder, oci.digest_of(data)


def test_layers_of_4_gb_may_be_pushed(tmp_path: Path) -> None:
    require_small_layers(*sized(tmp_path, 4_000_000_000, 1))


def test_a_layer_above_4_gb_is_refused_by_name_and_size(tmp_path: Path) -> None:
    message = r"layers above 4 GB: sha256:1 \(4\.1 GB\), sha256:2 \(9\.0 GB\)\n.*hint: split the step"
    with pytest.raises(UserError, match=message):
        require_small_layers(*sized(tmp_path, 10, 4_100_000_000, 9_000_000_000))
