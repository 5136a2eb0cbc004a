"""What vouches for an image, in Debian's real registry: attached once, refused by name when anything was changed."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from kiln import attached, attest, canon, cosign, inventory, oci, referrers, result, sbom, services, signing, statement
from kiln.distribution import Repository
from kiln.errors import CheckFailed, UserError
from kiln.plan import Plan
from kiln.registry import Registry
from kiln.result import Layer, Result
from kiln.settings import Settings, from_env
from tests import madeimages
from tests.madeimages import Entry

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    folder = tmp_path_factory.mktemp("attest")
    found = from_env({"KILN_HOME": str(folder / "home"), "KILN_KEY_PASSWORD": "secret"})
    files = signing.make_key(folder / "keys", "secret")
    yield found.signed_by(str(files.private))
    services.registry_down(found)


@pytest.fixture(scope="module")
def plan(settings: Settings) -> Plan:
    """A real plan with a few of its packages: its bill is made some fifty times here."""
    found = inventory.plan_for(settings, gpu="sm120", stack="ci", kernel_set="", image="")
    chain = tuple(replace(image, wheels=image.wheels[:1]) for image in found.chain)
    return replace(found, chain=chain, lock=replace(found.lock, debs=found.lock.debs[:2]))


@dataclass(frozen=True)
class Pushed:
    """An image in the registry with all that is attached to it."""

    settings: Settings
    plan: Plan
    registry: Registry
    built: Result

    @property
    def digest(self) -> str:
        return self.built.digest

    @property
    def place(self) -> Repository:
        return Repository(self.registry, self.built.repository)

    @property
    def public(self) -> Path:
        return Path(self.settings.signing_key).with_suffix(".pub")

    def publish(self, settings: Settings | None = None) -> str:
        return attest.publish(settings or self.settings, self.registry, self.plan, self.built, self.digest)

    def fetch(self) -> attached.Attached:
        return attached.fetch(self.registry, self.built.repository, self.digest)

    def verify(self, key: Path | None = None) -> attached.Attached:
        return attached.verify(self.fetch(), signing.load_public(key or self.public), self.digest)

    def stored(self, digest: str) -> Path:
        """Where the registry keeps a blob."""
        blobs = self.settings.home / "registry" / "data" / "docker" / "registry" / "v2" / "blobs" / "sha256"
        return blobs / digest[7:9] / digest[7:] / "data"

    def damage(self, digest: str) -> None:
        """Change one letter of a blob on the disk; a manifest is still one, so that the registry hands it out."""
        path = self.stored(digest)
        data = path.read_bytes()
        letter = max(data.rfind(b"vnd.oci.image.layer"), data.rfind(b"vnd.oci.empty"), data.find(b"linux"), 12)
        path.write_bytes(data[:letter] + bytes([data[letter] ^ 1]) + data[letter + 1 :])

    def manifest(self, reference: str) -> dict[str, Any]:
        found = self.place.manifest(reference)
        assert found
        return found.fields()


def push(settings: Settings, plan: Plan, folder: Path, name: str) -> Pushed:
    """Push a tiny canonical image to a repository of its own."""
    raw = madeimages.layout(
        folder / "raw", [madeimages.layer([Entry("etc", "dir"), Entry("etc/name", data=name.encode())])]
    )
    made = canon.canonicalise(raw, folder / "layout", epoch=plan.epoch)
    layers = tuple(Layer(one.digest, one.size_bytes, one.raw_bytes, one.files, "base") for one in made.layers)
    own = replace(settings, home=folder / "home")
    built = Result(plan.id, plan.tag, made.manifest_digest, f"kiln/{name}", str(made.path), layers)
    result.save(own, built)
    registry = Registry(services.registry_up(settings).address)
    registry.push(made.path, built.repository, built.tag)
    pushed = Pushed(settings, plan, registry, built)
    (settings.builds / plan.id[:12]).mkdir(parents=True, exist_ok=True)
    return pushed


@pytest.fixture
def pushed(settings: Settings, plan: Plan, tmp_path: Path) -> Pushed:
    """A pushed and signed image."""
    found = push(settings, plan, tmp_path, tmp_path.name.strip("_").lower())
    assert found.publish() == "SBOM and provenance attached, signed"
    return found


def test_what_was_attached_is_fetched_and_vouches_for_the_image(pushed: Pushed, plan: Plan) -> None:
    found = pushed.verify()
    assert found.sbom == sbom.make(plan, pushed.digest)
    (origin,) = found.provenances
    assert statement.subjects(json.loads(origin)) == (pushed.digest,)
    assert (len(found.signatures), len(found.envelopes)) == (1, 2)


def state(pushed: Pushed) -> dict[str, object]:
    """Every tag of the repository with what it holds."""
    return {tag: pushed.manifest(tag) for tag in pushed.registry.tags(pushed.built.repository)}


def test_two_pushes_attach_once(pushed: Pushed) -> None:
    before = state(pushed)
    assert len(before) == 4
    pushed.registry.push(Path(pushed.built.layout), pushed.built.repository, pushed.built.tag)
    pushed.publish()
    assert state(pushed) == before


def test_without_a_key_sbom_and_provenance_are_attached_unsigned(
    settings: Settings, plan: Plan, tmp_path: Path
) -> None:
    plain = push(settings, plan, tmp_path, "unsigned")
    assert plain.publish(replace(settings, signing_key="")) == "SBOM and provenance attached, not signed"
    assert attached.verify(plain.fetch(), None, plain.digest).sbom
    with pytest.raises(CheckFailed) as caught:
        plain.verify()
    assert str(caught.value).splitlines()[1:] == [
        "  SBOM: not signed by this key, or changed since",
        "  provenance: not signed by this key, or changed since",
        "  signature: missing",
    ]


def test_a_later_signature_is_added_to_what_was_attached_unsigned(
    settings: Settings, plan: Plan, tmp_path: Path
) -> None:
    plain = push(settings, plan, tmp_path, "later")
    plain.publish(replace(settings, signing_key=""))
    plain.publish()
    found = plain.verify()
    assert (len(found.sboms), len(found.provenances), len(found.envelopes)) == (1, 1, 2)


def test_two_keys_both_vouch_even_at_the_same_time(pushed: Pushed, tmp_path: Path) -> None:
    keys = [signing.make_key(tmp_path / name, "secret") for name in ("one", "two")]
    writers = [
        threading.Thread(target=pushed.publish, args=(pushed.settings.signed_by(str(key.private)),)) for key in keys
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    for public in (pushed.public, *(key.public for key in keys)):
        assert len(pushed.verify(public).signatures) == 3


def test_attaching_waits_for_a_registry_that_comes_back(settings: Settings, plan: Plan, tmp_path: Path) -> None:
    found = push(settings, plan, tmp_path, "restart")
    services.registry_down(settings)
    restart = threading.Timer(1.5, services.registry_up, (settings,))
    restart.start()
    found.publish()
    restart.join()
    assert found.verify().sbom


def test_writers_on_two_machines_both_stay_in_the_list(pushed: Pushed) -> None:
    """No lock of ours is between them; each looks again after it wrote."""
    documents = [referrers.Document(f"text/{number}", b"%d" % number) for number in range(2)]
    writers = [
        threading.Thread(target=referrers.attach, args=(pushed.place, pushed.digest, [document]))
        for document in documents
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    for document in documents:
        assert len(referrers.listed(pushed.place, pushed.digest, document.media_type)) == 1
    assert pushed.verify().sbom


@pytest.mark.parametrize("part", ["layer", "config", "manifest"])
def test_a_changed_image_is_refused_with_the_digest_of_the_part(pushed: Pushed, tmp_path: Path, part: str) -> None:
    manifest = pushed.manifest(pushed.digest)
    digests = {
        "layer": manifest["layers"][0]["digest"],
        "config": manifest["config"]["digest"],
        "manifest": pushed.digest,
    }
    pushed.damage(digests[part])
    with pytest.raises(CheckFailed, match=f"the content has another digest.*{digests[part]}"):
        pushed.registry.pull(pushed.built.repository, pushed.digest, tmp_path / "pulled")


def test_an_unchanged_image_is_pulled_byte_for_byte(pushed: Pushed, tmp_path: Path) -> None:
    pushed.registry.pull(pushed.built.repository, pushed.digest, tmp_path / "pulled")
    assert oci.verify(tmp_path / "pulled").manifest_digest == pushed.digest


def listed(pushed: Pushed, media_type: str) -> str:
    (name,) = referrers.listed(pushed.place, pushed.digest, media_type)
    return name


def layer_of(pushed: Pushed, reference: str) -> str:
    return str(pushed.manifest(reference)["layers"][0]["digest"])


def swap(pushed: Pushed, media_type: str, data: bytes) -> None:
    """Put another document in a referrer's place, with right digests everywhere: what a thief of the login can do."""
    old = listed(pushed, media_type)
    referrers.attach(pushed.place, pushed.digest, [referrers.Document(media_type, data)])
    index = pushed.manifest(referrers.tag(pushed.digest))
    index["manifests"] = [entry for entry in index["manifests"] if entry["digest"] != old]
    pushed.place.put_manifest(referrers.tag(pushed.digest), oci.canonical_json(index), oci.INDEX)


def change_sbom(pushed: Pushed) -> None:
    bill = json.loads(pushed.fetch().sbom)
    bill["components"][0]["version"] = "6.6.6"
    swap(pushed, sbom.MEDIA_TYPE, oci.canonical_json(bill))


def add_sbom(pushed: Pushed) -> None:
    bill = {**json.loads(pushed.fetch().sbom), "components": []}
    document = referrers.Document(sbom.MEDIA_TYPE, oci.canonical_json(bill))
    referrers.attach(pushed.place, pushed.digest, [document])


def change_provenance(pushed: Pushed) -> None:
    (origin,) = pushed.fetch().provenances
    swap(pushed, statement.MEDIA_TYPE, origin.replace(b'"dirty":true', b'"dirty":false').replace(b'"ci"', b'"current"'))


def swap_subjects(pushed: Pushed) -> None:
    """Move what another image has to this one."""
    other = "sha256:" + "ab" * 32
    swap(pushed, sbom.MEDIA_TYPE, sbom.make(pushed.plan, other))
    signer = attest.load_signer(pushed.settings)
    assert signer
    document = statement.make(pushed.built.repository, other, statement.PROVENANCE, {})
    swap(pushed, statement.MEDIA_TYPE, document)
    cosign.add(pushed.place, cosign.tag(pushed.digest, "att"),
               cosign.attestation(signing.seal(signer, document), statement.PROVENANCE))  # fmt: skip
    payload = cosign.payload(pushed.built.repository, other)
    resign(pushed, payload, signing.sign(signer, payload))


def resign(pushed: Pushed, payload: bytes, signature: str) -> None:
    """Leave one signature only."""
    tag = cosign.tag(pushed.digest, "sig")
    cosign.add(pushed.place, tag, cosign.signed(payload, signature))
    manifest = pushed.manifest(tag)
    manifest["layers"] = manifest["layers"][-1:]
    pushed.place.put_manifest(tag, oci.canonical_json(manifest))


def change_signature(pushed: Pushed) -> None:
    (entry,) = pushed.fetch().signatures
    resign(pushed, entry.data.replace(b"kiln/", b"evil/"), entry.signature)


def remove_signature(pushed: Pushed) -> None:
    manifest = pushed.manifest(cosign.tag(pushed.digest, "sig"))
    pushed.place.put_manifest(cosign.tag(pushed.digest, "sig"), oci.canonical_json({**manifest, "layers": []}))


def remove_everything(pushed: Pushed) -> None:
    empty = {"schemaVersion": 2, "mediaType": oci.INDEX, "manifests": []}
    pushed.place.put_manifest(referrers.tag(pushed.digest), oci.canonical_json(empty), oci.INDEX)
    remove_signature(pushed)


ATTACKS: dict[str, tuple[Callable[[Pushed], None], list[str]]] = {
    "SBOM changed on disk": (
        lambda pushed: pushed.damage(layer_of(pushed, listed(pushed, sbom.MEDIA_TYPE))),
        ["SBOM: blob sha256:… the content has another digest", "SBOM: missing"],
    ),
    "SBOM's manifest changed on disk": (
        lambda pushed: pushed.damage(listed(pushed, sbom.MEDIA_TYPE)),
        ["SBOM: ", "SBOM: missing"],
    ),
    "provenance changed on disk": (
        lambda pushed: pushed.damage(layer_of(pushed, listed(pushed, statement.MEDIA_TYPE))),
        ["provenance: blob sha256:… the content has another digest", "provenance: missing"],
    ),
    "signature changed on disk": (
        lambda pushed: pushed.damage(layer_of(pushed, cosign.tag(pushed.digest, "sig"))),
        ["signature: blob sha256:… the content has another digest", "signature: missing"],
    ),
    "another SBOM": (change_sbom, ["SBOM: not signed by this key, or changed since"]),
    "one more SBOM": (add_sbom, ["SBOM: not signed by this key, or changed since"]),
    "another provenance": (change_provenance, ["provenance: not signed by this key, or changed since"]),
    "another image's": (
        swap_subjects,
        ["SBOM: it is about another image, sha256:abab", "provenance: it is about another image, sha256:abab",
         "signature: it is for another image, sha256:abab"],
    ),
    "another signature": (change_signature, ["signature: not by this key, or changed since"]),
    "no signature": (remove_signature, ["signature: missing"]),
    "nothing": (remove_everything, ["SBOM: missing", "provenance: missing", "signature: missing"]),
}  # fmt: skip


@pytest.mark.parametrize("attack", ATTACKS)
def test_what_was_tampered_with_is_refused_by_name(pushed: Pushed, attack: str) -> None:
    tamper, expected = ATTACKS[attack]
    tamper(pushed)
    with pytest.raises(CheckFailed) as caught:
        pushed.verify()
    head, *faults = str(caught.value).splitlines()
    assert head == f"{pushed.digest} is not vouched for:"
    assert len(faults) == len(expected)
    for fault, start in zip(faults, expected, strict=True):
        first, _, last = start.partition("…")
        assert fault.startswith(f"  {first}")
        assert last in fault


def test_another_key_is_refused_for_every_part(pushed: Pushed, tmp_path: Path) -> None:
    with pytest.raises(CheckFailed) as caught:
        pushed.verify(signing.make_key(tmp_path / "other", "").public)
    assert str(caught.value).splitlines()[1:] == [
        "  SBOM: not signed by this key, or changed since",
        "  provenance: not signed by this key, or changed since",
        "  signature: not by this key, or changed since",
    ]


def test_provenance_of_another_rebuilder_does_not_disturb_and_is_not_believed(pushed: Pushed) -> None:
    theirs = statement.make(pushed.built.repository, pushed.digest, statement.PROVENANCE, {"they": "say"})
    referrers.attach(pushed.place, pushed.digest, [referrers.Document(statement.MEDIA_TYPE, theirs)])
    assert len(pushed.fetch().provenances) == 2
    assert theirs not in pushed.verify().provenances


def test_an_image_that_is_not_pushed_gets_nothing_attached(pushed: Pushed) -> None:
    absent = replace(pushed, built=replace(pushed.built, repository="kiln/absent"))
    with pytest.raises(UserError, match=f"does not hold {pushed.digest}\n.*hint: inv push"):
        absent.publish()
    assert pushed.registry.tags("kiln/absent") == ()
