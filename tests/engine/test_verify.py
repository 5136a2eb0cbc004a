"""`inv verify` of images in Debian's real registry, whose disk is then tampered with: each change by its name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from kiln import attest, canon, cosign, digests, inventory, oci, referrers, sbom, services, signing, statement, verify
from kiln.canon import ConfigOverrides, Origin
from kiln.distribution import Repository
from kiln.errors import UserError
from kiln.plan import Plan
from kiln.registry import Registry
from kiln.settings import Settings, from_env
from tests import madeimages as made
from tests.madeimages import EPOCH, Entry

pytestmark = pytest.mark.engine
REPOSITORY = "kiln/sglang"


@dataclass(frozen=True)
class Pushed:
    """A small signed image in a registry, and the registry's disk."""

    settings: Settings
    registry: Registry
    plan: Plan
    layout: canon.Layout
    keys: signing.KeyFiles

    @property
    def digest(self) -> str:
        return self.layout.manifest_digest

    @property
    def ref(self) -> str:
        return f"{self.registry.address}/{REPOSITORY}@{self.digest}"

    def file(self, digest: str) -> Path:
        """Return where the registry keeps a blob or manifest."""
        blobs = self.settings.home / "registry/data/docker/registry/v2/blobs/sha256"
        return blobs / digest[7:9] / digest[7:] / "data"

    def verify(self, key: Path | None = None) -> verify.Report:
        return verify.verify(self.settings, self.ref, key=key, say=lambda line: None)


@pytest.fixture
def pushed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pushed]:
    monkeypatch.setattr(digests, "load", lambda root: {})  # those are of real images, this one is made up
    settings = replace(from_env({}), home=tmp_path / "home")
    plan = inventory.plan_for(settings, gpu="sm90", stack="ci", kernel_set="", image="")
    registry = Registry(services.registry_up(settings).address, first_wait_s=0.1)
    raw = made.layout(
        tmp_path / "raw", [made.layer([Entry("a", data=b"1" * 999)]), made.layer([Entry("b", data=b"2")])]
    )
    layout = canon.canonicalise(
        raw,
        tmp_path / "image",
        epoch=EPOCH,
        origins=[Origin("", 1), Origin("", EPOCH)],
        config=ConfigOverrides(labels=plan.labels()),
    )
    registry.push(layout.path, REPOSITORY, "v1")
    keys = signing.make_key(tmp_path / "keys", "")
    origin = statement.make(REPOSITORY, layout.manifest_digest, statement.PROVENANCE, {"buildDefinition": {}})
    bill = sbom.make(plan, layout.manifest_digest)
    signer = signing.load(keys.private, "")
    attest.attach(registry, REPOSITORY, layout.manifest_digest, bill, origin, signer)
    yield Pushed(settings, registry, plan, layout, keys)
    services.registry_down(settings)


def states(report: verify.Report) -> dict[str, str]:
    return {check.name: check.state for check in report.checks}


def why(report: verify.Report, name: str) -> str:
    return next(check.why for check in report.checks if check.name == name)


def flip(file: Path, at: int | None = None) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2 if at is None else at] ^= 1
    file.write_bytes(data)


def test_a_good_image_passes_every_check_and_leaves_nothing_behind(pushed: Pushed) -> None:
    report = pushed.verify(pushed.keys.public)
    assert report.failed == ()
    assert states(report) == dict.fromkeys(verify.IMAGE + verify.ATTACHED, "OK") | {"digest": "NOT_CHECKED"}
    assert report.digest == pushed.digest
    assert not list((pushed.settings.home / "verify").glob("*/"))


def test_without_a_key_the_signature_is_not_checked_and_says_so(pushed: Pushed) -> None:
    report = pushed.verify()
    assert report.failed == ()
    assert states(report)["signature"] == "NOT_CHECKED"
    assert why(report, "signature") == "no key given: --key FILE"


def test_a_tag_is_followed_to_its_digest(pushed: Pushed) -> None:
    ref = f"{pushed.registry.address}/{REPOSITORY}:v1"
    assert verify.verify(pushed.settings, ref, key=None, say=lambda line: None).digest == pushed.digest


@pytest.mark.parametrize("ref", [f"{REPOSITORY}:v2", f"{REPOSITORY}@sha256:{'0' * 64}", "kiln/none:v1"])
def test_an_image_that_is_not_there_is_the_users_error(pushed: Pushed, ref: str) -> None:
    with pytest.raises(UserError):
        verify.verify(pushed.settings, f"{pushed.registry.address}/{ref}", key=None, say=lambda line: None)


@pytest.mark.parametrize("part", ["layer 0", "layer 1", "config", "manifest"])
def test_one_changed_bit_of_the_image_is_refused(pushed: Pushed, part: str) -> None:
    digests = {"config": pushed.layout.config_digest, "manifest": pushed.digest}
    digests |= {f"layer {number}": layer.digest for number, layer in enumerate(pushed.layout.layers)}
    flip(pushed.file(digests[part]))
    report = pushed.verify()
    assert report.failed == ("blobs",)
    assert "digest" in why(report, "blobs")
    assert set(states(report).values()) == {"FAILED", "NOT_CHECKED"}


def attached(pushed: Pushed, media_type: str) -> str:
    """Return the digest of the one document of a type."""
    place = Repository(pushed.registry, REPOSITORY)
    (name,) = referrers.listed(place, pushed.digest, media_type)
    manifest = place.manifest(name)
    assert manifest
    return str(manifest.fields()["layers"][0]["digest"])


@pytest.mark.parametrize(("check", "media_type"), [("sbom", sbom.MEDIA_TYPE), ("provenance", statement.MEDIA_TYPE)])
@pytest.mark.parametrize("signed", [True, False])
def test_one_changed_bit_of_a_document_is_refused(pushed: Pushed, check: str, media_type: str, signed: bool) -> None:
    flip(pushed.file(attached(pushed, media_type)))
    report = pushed.verify(pushed.keys.public if signed else None)
    assert check in report.failed
    assert states(report)["blobs"] == states(report)["canonical"] == "OK"


def test_one_changed_bit_of_a_signature_is_refused(pushed: Pushed) -> None:
    place = Repository(pushed.registry, REPOSITORY)
    manifest = place.manifest(cosign.tag(pushed.digest, "sig"))
    assert manifest
    flip(pushed.file(str(manifest.fields()["layers"][0]["digest"])))
    assert "signature" in pushed.verify(pushed.keys.public).failed


def test_a_signature_by_another_key_is_refused(pushed: Pushed, tmp_path: Path) -> None:
    other = signing.make_key(tmp_path / "other", "")
    report = pushed.verify(other.public)
    assert report.failed == ("sbom", "provenance", "signature")
    assert "not by this key" in why(report, "signature")


def test_an_unsigned_image_is_refused_where_a_key_is_given(pushed: Pushed, tmp_path: Path) -> None:
    pushed.registry.push(pushed.layout.path, "kiln/unsigned", "v1")
    ref = f"{pushed.registry.address}/kiln/unsigned@{pushed.digest}"
    report = verify.verify(pushed.settings, ref, key=pushed.keys.public, say=lambda line: None)
    assert report.failed == ("sbom", "provenance", "signature")
    assert {why(report, name) for name in report.failed} == {"missing"}


def test_a_bill_that_the_locks_do_not_give_is_refused_though_it_is_about_this_image(pushed: Pushed) -> None:
    bill = json.loads(sbom.make(pushed.plan, pushed.digest))
    bill["components"] = bill["components"][1:]
    place = Repository(pushed.registry, REPOSITORY)
    referrers.attach(place, pushed.digest, [referrers.Document(sbom.MEDIA_TYPE, oci.canonical_json(bill))])
    report = pushed.verify()
    assert report.failed == ("sbom",)
    assert why(report, "sbom") == "not the one that the locks give for this digest"
