"""What is attached to a digest, over HTTP: with the referrers API, without it, with logins, with a registry unwell."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from kiln import credentials, oci, referrers
from kiln.credentials import Login
from kiln.distribution import Manifest, Repository
from kiln.errors import CheckFailed, UserError
from kiln.referrers import Document
from kiln.registry import Registry
from kiln.registry_errors import Corrupt, Missing
from tests.memoryregistry import MemoryRegistry

pytestmark = pytest.mark.unit

IMAGE = oci.canonical_json({"schemaVersion": 2, "config": {}, "layers": []})
DIGEST = oci.digest_of(IMAGE)
DOCUMENTS = (Document("text/a", b"a"), Document("text/b", b"b"))


@pytest.fixture(params=[True, False], ids=["referrers API", "fallback tag"])
def server(request: pytest.FixtureRequest) -> Iterator[MemoryRegistry]:
    yield from serving(MemoryRegistry(referrers_api=request.param))


def serving(found: MemoryRegistry) -> Iterator[MemoryRegistry]:
    found.put_manifest(DIGEST, IMAGE, oci.MANIFEST)
    with found.serve():
        yield found


def place(server: MemoryRegistry, name: str = "team/image") -> Repository:
    return Repository(Registry(server.address, attempts=3, first_wait_s=0.01), name)


def test_documents_are_attached_listed_by_type_and_read(server: MemoryRegistry) -> None:
    repository = place(server)
    referrers.attach(repository, DIGEST, DOCUMENTS)
    for document in DOCUMENTS:
        (name,) = referrers.listed(repository, DIGEST, document.media_type)
        assert referrers.read(repository, name, DIGEST) == document.data
    assert referrers.listed(repository, DIGEST, "text/c") == ()


def test_the_tag_is_written_only_where_the_registry_lists_nothing_itself(server: MemoryRegistry) -> None:
    referrers.attach(place(server), DIGEST, DOCUMENTS)
    assert (referrers.tag(DIGEST) in server.manifests) is not server.referrers_api


def test_attached_twice_is_attached_once(server: MemoryRegistry) -> None:
    referrers.attach(place(server), DIGEST, DOCUMENTS)
    before = dict(server.manifests), dict(server.blobs)
    referrers.attach(place(server), DIGEST, DOCUMENTS)
    assert (server.manifests, server.blobs) == before


def test_others_entries_stay_in_the_list(server: MemoryRegistry) -> None:
    referrers.attach(place(server), DIGEST, DOCUMENTS[:1])
    referrers.attach(place(server), DIGEST, DOCUMENTS[1:])
    assert len(referrers.listed(place(server), DIGEST, "text/a")) == 1


def test_what_is_not_pushed_cannot_get_anything_attached(server: MemoryRegistry) -> None:
    with pytest.raises(UserError, match=r"does not hold sha256:0{64}\n.*hint: inv push"):
        referrers.attach(place(server), "sha256:" + "0" * 64, DOCUMENTS)


def test_a_referrer_of_another_image_is_refused(server: MemoryRegistry) -> None:
    other = oci.canonical_json({"schemaVersion": 2, "config": {}, "layers": [], "annotations": {"a": "b"}})
    server.put_manifest(oci.digest_of(other), other, oci.MANIFEST)
    referrers.attach(place(server), oci.digest_of(other), DOCUMENTS)
    (name,) = referrers.listed(place(server), oci.digest_of(other), "text/a")
    with pytest.raises(CheckFailed, match=f"its subject is {oci.digest_of(other)}"):
        referrers.read(place(server), name, DIGEST)


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ({"schemaVersion": 2, "mediaType": oci.MANIFEST}, "not an index"),
        ([1], "JSON list, not an object"),
    ],
)
def test_a_fallback_tag_that_is_no_index_is_refused(index: object, message: str) -> None:
    for server in serving(MemoryRegistry(referrers_api=False)):
        server.manifests[referrers.tag(DIGEST)] = (json.dumps(index).encode(), oci.INDEX)
        with pytest.raises(CheckFailed, match=message):
            referrers.listed(place(server), DIGEST, "text/a")


def test_content_under_another_digest_is_refused(server: MemoryRegistry) -> None:
    server.manifests[DIGEST] = (IMAGE + b" ", oci.MANIFEST)
    name = oci.digest_of(b"a")
    server.blobs[name] = b"b"
    with pytest.raises(Corrupt, match=f"manifest {DIGEST}: the content has another digest"):
        place(server).manifest(DIGEST)
    with pytest.raises(Corrupt, match=f"blob {name}: the content has another digest"):
        place(server).blob(name)


def test_a_registry_that_recovers_is_waited_for(server: MemoryRegistry) -> None:
    server.failures = [503, 500]
    referrers.attach(place(server), DIGEST, DOCUMENTS)
    assert len(referrers.listed(place(server), DIGEST, "text/a")) == 1


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (400, "HTTP 400"), (401, "HTTP 401, it wants a login"), (403, "HTTP 403, this login may not"),
        (405, "HTTP 405"), (413, "HTTP 413"), (418, "HTTP 418"), (429, r"HTTP 429.*3 attempts"),
        (502, r"HTTP 502.*3 attempts"),
    ],
)  # fmt: skip
def test_every_refusal_names_its_http_code(status: int, message: str) -> None:
    for server in serving(MemoryRegistry()):
        server.failures = [status] * 3
        with pytest.raises(UserError, match=f"GET manifests/v1 of {server.address}/team/image: {message}"):
            place(server).manifest("v1")


def test_what_is_missing_is_told_from_what_is_refused(server: MemoryRegistry) -> None:
    assert place(server).manifest("v1") is None
    assert not place(server).has_blob("sha256:" + "1" * 64)
    with pytest.raises(Missing):
        place(server).blob("sha256:" + "1" * 64)


def test_a_second_writer_between_look_and_write_is_noticed(server: MemoryRegistry) -> None:
    """Each writer looks again after it wrote: the one that was overwritten adds itself to what is there now."""
    repository = place(server)
    interrupted: list[bool] = []

    def change(current: Manifest | None) -> bytes | None:
        names = json.loads(current.data)["names"] if current else []
        if not interrupted:
            interrupted.append(True)
            repository.rewrite("list", other, oci.INDEX)
        return None if "we" in names else json.dumps({"names": [*names, "we"]}).encode()

    def other(current: Manifest | None) -> bytes | None:
        names = json.loads(current.data)["names"] if current else []
        return None if "they" in names else json.dumps({"names": [*names, "they"]}).encode()

    repository.rewrite("list", change, oci.INDEX)
    repository.rewrite("list", other, oci.INDEX)
    assert json.loads(server.manifests["list"][0])["names"] == ["we", "they"]


def test_writers_that_never_rest_end_in_a_check_failed(server: MemoryRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    with pytest.raises(CheckFailed, match="other writers keep replacing the tag list"):
        place(server).rewrite("list", lambda current: b"{}", oci.INDEX)


def test_a_huge_answer_is_cut_off(server: MemoryRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kiln.distribution.LIMIT_BYTES", 10)
    server.manifests["v1"] = (b" " * 100, oci.MANIFEST)
    with pytest.raises(CheckFailed, match="where a small document was expected"):
        place(server).manifest("v1")


@pytest.fixture
def login(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("REGISTRY_AUTH_FILE", str(tmp_path / "auth.json"))
    return tmp_path / "auth.json"


def write_auth(path: Path, **logins: str) -> None:
    auths = {name: {"auth": base64.b64encode(text.encode()).decode()} for name, text in logins.items()}
    path.write_text(json.dumps({"auths": auths}))


def test_a_token_is_got_for_each_scope_with_the_login_that_skopeo_left(login: Path) -> None:
    for server in serving(MemoryRegistry(users={"me": "secret"})):
        write_auth(login, **{server.address: "me:secret"})
        referrers.attach(place(server), DIGEST, DOCUMENTS)
        assert server.scopes[:2] == ["repository:team/image:pull", "repository:team/image:pull,push"]
        assert len(referrers.listed(place(server), DIGEST, "text/a")) == 1


@pytest.mark.parametrize("text", ["me:wrong", "you:secret"])
def test_a_wrong_login_is_told_from_none(login: Path, text: str) -> None:
    for server in serving(MemoryRegistry(users={"me": "secret"})):
        write_auth(login, **{server.address: text})
        with pytest.raises(UserError, match="HTTP 401, it wants a login") as caught:
            place(server).manifest(DIGEST)
        assert "wrong" not in str(caught.value)


def test_a_login_for_the_repository_goes_before_one_for_the_host(login: Path) -> None:
    write_auth(login, **{"reg.test": "host:1", "reg.test/team": "team:2", "reg.test/team/image": "image:3"})
    assert credentials.find("reg.test", "other") == Login("host", "1")
    assert credentials.find("reg.test", "team/x") == Login("team", "2")
    assert credentials.find("reg.test/team", "image") == Login("image", "3")
    assert credentials.find("else.test", "team/image") == Login()


def test_dockers_login_is_found_where_skopeo_has_none(tmp_path: Path) -> None:
    (tmp_path / ".docker").mkdir()
    write_auth(tmp_path / ".docker" / "config.json", **{"reg.test": "me:secret"})
    found = credentials.find("reg.test", "image", {"HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path)})
    assert found == Login("me", "secret")


def test_an_identity_token_is_a_login_too(login: Path) -> None:
    login.write_text(json.dumps({"auths": {"reg.test": {"identitytoken": "t"}}}))
    assert credentials.find("reg.test", "image") == Login(identity_token="t")


def test_a_password_is_not_sent_in_the_clear(login: Path) -> None:
    from kiln import challenge
    from kiln.registry_errors import Refused

    session = credentials.session("reg.test")
    with pytest.raises(Refused, match=r"wants the login sent to tokens\.test over plain HTTP"):
        challenge.answer('Bearer realm="http://tokens.test/x",service="s"', Login("me", "secret"), session)


def test_basic_is_answered_with_the_login_or_not_at_all() -> None:
    from kiln import challenge

    session = credentials.session("reg.test")
    assert challenge.answer('Basic realm="x"', Login("me", "secret"), session) == "Basic bWU6c2VjcmV0"
    assert challenge.answer('Basic realm="x"', Login(), session) == ""
    assert challenge.answer("Negotiate", Login("me", "secret"), session) == ""
