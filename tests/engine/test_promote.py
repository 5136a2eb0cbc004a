"""Promotion in Debian's real registry: the same manifest bytes under another tag, no blob sent."""

from __future__ import annotations

import datetime
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from kiln import oci, receipts
from kiln.errors import CheckFailed
from kiln.promote import Promoted, promote
from kiln.registry import Registry
from kiln.settings import ROOT, Settings, from_env
from tests import madereceipts as made
from tests.engine.test_registry import asked, registry_with

pytestmark = pytest.mark.engine
NOW = datetime.datetime(2026, 9, 10, 12, tzinfo=datetime.UTC)
TAG = "0.5.23-cu130-sm120"
PHASES = ("preflight", "container", "fabric", "numerics", "server", "after")


def layout(folder: Path) -> tuple[Path, str]:
    """Write an OCI layout of one small layer with kiln's labels; returns it and its manifest digest."""
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True)

    def blob(data: bytes, kind: str) -> dict[str, object]:
        digest = oci.digest_of(data)
        (blobs / digest[7:]).write_bytes(data)
        return {"mediaType": f"application/vnd.oci.image.{kind}", "digest": digest, "size": len(data)}

    layer = blob(os.urandom(2000), "layer.v1.tar")
    labels = {"kiln.gpu": "sm120", "org.opencontainers.image.ref.name": f"{TAG}-g{'b7' * 6}"}
    config = {"architecture": "amd64", "os": "linux", "config": {"Labels": labels},
              "rootfs": {"type": "layers", "diff_ids": [layer["digest"]]}}  # fmt: skip
    # Blanks and the order of the keys are part of the digest: what is put must be these bytes.
    parts = {"config": blob(json.dumps(config).encode(), "config.v1+json"), "layers": [layer]}
    text = json.dumps({"schemaVersion": 2, "mediaType": oci.MANIFEST, **parts}, indent=3)
    entry = blob(text.encode(), "manifest.v1+json")
    (folder / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [entry]}))
    (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    return folder, str(entry["digest"])


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    (tmp_path / "root").mkdir()
    shutil.copy(ROOT / "versions.yaml", tmp_path / "root")
    return replace(from_env({}), root=tmp_path / "root")


def smoked(settings: Settings, digest: str, started: str = "2026-09-01T12:00:00Z") -> None:
    found = [{"check": f"{phase}/x", "verdict": "PASS", "message": "m"} for phase in PHASES]
    receipts.save(settings, made.receipt(image={"digest": digest}, outcomes=found, samples=[], started=started))


def promoted(settings: Settings, name: str, *tags: str, dry: bool = False) -> Promoted:
    return promote(settings, name, tags, now=NOW, say=lambda line: None, dry=dry)


def test_a_digest_is_tagged_only_once_it_has_a_good_receipt(tmp_path: Path, settings: Settings) -> None:
    folder, digest = layout(tmp_path / "layout")
    with registry_with(tmp_path) as (address, log):
        registry = Registry(address)
        registry.push(folder, "kiln/sglang", f"{TAG}-g{'b7' * 6}")
        name, sent = f"{address}/kiln/sglang@{digest}", len(asked(log, "PATCH"))
        with pytest.raises(CheckFailed, match="no receipt of this digest"):
            promoted(settings, name)
        smoked(settings, digest)
        promoted(settings, name, dry=True)
        assert registry.tags("kiln/sglang") == (f"{TAG}-g{'b7' * 6}",)
        promoted(settings, name)
        promoted(settings, name, "stable", "2026.09")
        assert set(registry.tags("kiln/sglang")) == {TAG, f"{TAG}-g{'b7' * 6}", "stable", "2026.09"}
        raw = oci.blob_path(folder, digest).read_text()
        for tag in (TAG, "stable", "2026.09"):
            assert registry._skopeo("inspect", "--raw", f"docker://{address}/kiln/sglang:{tag}") == raw
        assert len(asked(log, "PATCH")) == sent


def test_a_second_build_takes_the_tag_over_and_is_told_what_it_named(tmp_path: Path, settings: Settings) -> None:
    with registry_with(tmp_path) as (address, _):
        digests = []
        for number in (1, 2):
            folder, digest = layout(tmp_path / f"layout{number}")
            Registry(address).push(folder, "kiln/sglang", f"v{number}")
            smoked(settings, digest, f"2026-09-0{number}T12:00:00Z")
            digests.append(digest)
        first, second = (promoted(settings, f"{address}/kiln/sglang@{digest}") for digest in digests)
        assert (first.tags[0].before, second.tags[0].before) == ("", digests[0])
        assert Registry(address).exists("kiln/sglang", digests[0])


def test_the_command_ends_with_1_and_says_what_is_missing(tmp_path: Path) -> None:
    folder, digest = layout(tmp_path / "layout")
    with registry_with(tmp_path) as (address, _):
        Registry(address).push(folder, "kiln/sglang", "v1")
        argv = [sys.executable, "-m", "invoke", "promote", f"{address}/kiln/sglang@{digest}", "--tag", "stable"]
        done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
        assert (done.returncode, done.stdout) == (1, "")
        assert f"error: {digest} is not promoted, its receipts do not satisfy the policy:" in done.stderr
        assert f"hint: inv smoke --hosts NODE,… --image {address}/kiln/sglang@{digest}" in done.stderr
        assert Registry(address).tags("kiln/sglang") == ("v1",)
