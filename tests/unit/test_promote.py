"""`inv promote` against a registry in memory: what is tagged, what is refused before anything is written."""

from __future__ import annotations

import datetime
import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kiln import oci, promote, receipts
from kiln.errors import CheckFailed, UserError
from kiln.promote import Tagged
from kiln.settings import ROOT, Settings, from_env
from tests import madereceipts as made
from tests.memoryregistry import MemoryRegistry

pytestmark = pytest.mark.unit
NOW = datetime.datetime(2026, 9, 10, 12, tzinfo=datetime.UTC)
TAG = "0.5.23-cu130-sm120"
PHASES = ("preflight", "container", "fabric", "numerics", "server", "after")


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    shutil.copy(ROOT / "versions.yaml", tmp_path)
    return replace(from_env({}), root=tmp_path)


@pytest.fixture
def server() -> Iterator[MemoryRegistry]:
    found = MemoryRegistry()
    with found.serve():
        yield found


def image(server: MemoryRegistry, layer: str = "zstd", **labels: str) -> str:
    """Store an image with labels; returns its digest."""
    named = {"org.opencontainers.image.ref.name": f"{TAG}-g{'b7' * 6}", "kiln.gpu": "sm120", **labels}
    config = oci.canonical_json({"config": {"Labels": named}})
    server.blobs[oci.digest_of(config)] = config
    layers = [{"mediaType": f"{oci.LAYER}+{layer}", "digest": "sha256:" + "1" * 64, "size": 1}]
    data = oci.canonical_json({"schemaVersion": 2, "mediaType": oci.MANIFEST, "layers": layers,
                               "config": {"digest": oci.digest_of(config), "size": len(config)}})  # fmt: skip
    server.put_manifest(oci.digest_of(data), data, oci.MANIFEST)
    return oci.digest_of(data)


def good(settings: Settings, digest: str, **changes: Any) -> None:
    """Save a receipt of a digest that satisfies the committed policy."""
    found = [{"check": f"{phase}/x", "verdict": "PASS", "message": "m"} for phase in PHASES]
    told = {"image": {"digest": digest}, "outcomes": found, "samples": [], **changes}
    receipts.save(settings, made.receipt(**told))


def promoted(
    settings: Settings, server: MemoryRegistry, digest: str, *tags: str, dry: bool = False
) -> promote.Promoted:
    name = f"{server.address}/kiln/sglang@{digest}"
    return promote.promote(settings, name, tags, now=NOW, say=lambda line: None, dry=dry)


def test_a_digest_with_good_receipts_gets_the_tag_it_was_built_under_without_the_plan(
    settings: Settings, server: MemoryRegistry
) -> None:
    digest = image(server)
    good(settings, digest)
    found = promoted(settings, server, digest)
    assert found.tags == (Tagged(TAG, ""),)
    assert server.manifests[TAG] == server.manifests[digest]
    assert not [line for line in server.asked if line.startswith(("POST", "PATCH"))]
    json.dumps(found.as_dict())


def test_the_gzip_variant_gets_a_tag_of_its_own(settings: Settings, server: MemoryRegistry) -> None:
    digest = image(server, "gzip")
    good(settings, digest)
    assert promoted(settings, server, digest).tags == (Tagged(f"{TAG}-gz", ""),)


def test_tags_may_be_chosen_and_what_moves_is_told(settings: Settings, server: MemoryRegistry) -> None:
    old, new = image(server, more="1"), image(server, more="2")
    good(settings, old)
    good(settings, new)
    promoted(settings, server, old, "stable")
    found = promoted(settings, server, new, "stable", "v1", "v1")
    assert found.tags == (Tagged("stable", old), Tagged("v1", ""))
    assert server.manifests["stable"] == server.manifests["v1"] == server.manifests[new]


def test_dry_judges_and_writes_nothing(settings: Settings, server: MemoryRegistry) -> None:
    digest = image(server)
    good(settings, digest)
    assert promoted(settings, server, digest, "v1", dry=True).dry
    assert not [line for line in server.asked if line.startswith("PUT")]
    with pytest.raises(CheckFailed):
        promoted(settings, server, image(server, more="1"), dry=True)


def test_without_receipts_every_unmet_clause_and_the_next_command_are_told(
    settings: Settings, server: MemoryRegistry
) -> None:
    digest = image(server)
    good(settings, image(server, more="1"))
    good(settings, digest, verdict="FAIL", id="f00d")
    with pytest.raises(CheckFailed) as caught:
        promoted(settings, server, digest, "v1")
    said = str(caught.value).splitlines()
    assert said[0] == f"{digest} is not promoted, its receipts do not satisfy the policy:"
    assert said[1:3] == [
        f"  ✗ 1 node of topology rtx-pro-6000-8x-* with PASS or WARN: 0 of 1; {made.NODE} (f00d): FAIL as a whole",
        f"  ✗ no node whose last receipt is FAIL: {made.NODE} (f00d)",
    ]
    name = f"{server.address}/kiln/sglang@{digest}"
    assert said[3] == f"  hint: inv smoke --hosts NODE,… --image {name}, then inv promote {name}"
    assert "v1" not in server.manifests


@pytest.mark.parametrize("text", ["", "kiln", "host/kiln/sglang:v1", "sha256:" + "0" * 64, "host/a@sha256:12"])
def test_an_image_is_named_by_its_digest(settings: Settings, text: str) -> None:
    with pytest.raises(UserError, match="does not name an image by its digest"):
        promote.promote(settings, text, (), now=NOW, say=lambda line: None)


@pytest.mark.parametrize("tag", ["a b", "-v1", "x" * 129, "v1/x", "sha256-" + "0" * 64, "sha256-x.sig"])
def test_a_tag_that_is_none_or_taken_is_refused(settings: Settings, server: MemoryRegistry, tag: str) -> None:
    digest = image(server)
    good(settings, digest)
    with pytest.raises(UserError, match="is not a tag"):
        promoted(settings, server, digest, tag)
    assert not [line for line in server.asked if line.startswith("PUT")]


def test_the_tag_of_a_build_never_moves(settings: Settings, server: MemoryRegistry) -> None:
    old, new = image(server, more="1"), image(server, more="2")
    own = f"{TAG}-g{'b7' * 6}"
    for digest in (old, new):
        good(settings, digest)
    promoted(settings, server, old, own)
    promoted(settings, server, old, own)
    with pytest.raises(UserError, match=f"the tag {own} names {old} already"):
        promoted(settings, server, new, "v1", own)
    assert "v1" not in server.manifests


def test_what_the_registry_does_not_have_is_named(settings: Settings, server: MemoryRegistry) -> None:
    with pytest.raises(UserError, match="kiln/sglang holds no sha256:00"):
        promoted(settings, server, "sha256:" + "0" * 64)


def test_an_index_of_several_platforms_is_refused(settings: Settings, server: MemoryRegistry) -> None:
    data = oci.canonical_json({"schemaVersion": 2, "mediaType": oci.INDEX, "manifests": []})
    server.put_manifest(oci.digest_of(data), data, oci.INDEX)
    with pytest.raises(UserError, match="not one image"):
        promoted(settings, server, oci.digest_of(data))


def test_a_foreign_image_has_no_rule_and_no_name_of_its_own(settings: Settings, server: MemoryRegistry) -> None:
    digest = image(server, **{"org.opencontainers.image.ref.name": "", "kiln.gpu": ""})
    with pytest.raises(UserError, match="does not say what it was built as\n  hint: --tag NAME"):
        promoted(settings, server, digest)
    with pytest.raises(CheckFailed, match=r"a rule for an image without the label kiln\.gpu"):
        promoted(settings, server, digest, "v1")


def test_without_a_policy_nothing_is_promoted(settings: Settings, server: MemoryRegistry) -> None:
    file = settings.root / "versions.yaml"
    file.write_text(file.read_text().partition("\npromotion:\n")[0])
    with pytest.raises(UserError, match="there is no promotion policy"):
        promoted(settings, server, image(server))


def test_a_broken_receipt_stops_a_promotion(settings: Settings, server: MemoryRegistry) -> None:
    digest = image(server)
    good(settings, digest)
    (settings.root / receipts.FOLDER / "x.json").write_text("{}")
    with pytest.raises(UserError, match=r"x\.json: is no kiln/receipt/1"):
        promoted(settings, server, digest)
