"""OCI layouts: read, verified, and streamed to engines; what is damaged or foreign is named."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from pathlib import Path

import pytest
import zstandard

from kiln import canon, oci
from kiln.errors import CheckFailed, UserError
from tests import madeimages as made
from tests.madeimages import EPOCH, Entry

LAYER = made.layer([Entry("a", data=b"x" * 2000)])


@pytest.fixture
def image(tmp_path: Path) -> oci.Layout:
    layers = [LAYER, made.layer([Entry("b/c", data=b"y")])]
    return canon.canonicalise(io.BytesIO(made.docker_archive(layers)), tmp_path / "image", epoch=EPOCH)


def test_reading_gives_what_writing_gave(image: oci.Layout) -> None:
    found = oci.read(image.path)
    assert found.manifest_digest == image.manifest_digest
    assert found.config_digest == image.config_digest
    assert [(one.digest, one.diff_id, one.size_bytes, one.raw_bytes, one.files) for one in found.layers] == [
        (one.digest, one.diff_id, one.size_bytes, one.raw_bytes, one.files) for one in image.layers
    ]
    assert oci.verify(image.path) == found


def test_a_changed_layer_is_named(image: oci.Layout) -> None:
    blob = oci.blob_path(image.path, image.layers[1].digest)
    blob.chmod(0o644)
    blob.write_bytes(blob.read_bytes()[:-1] + b"!")
    with pytest.raises(CheckFailed, match=image.layers[1].digest):
        oci.verify(image.path)


def test_a_missing_layer_is_named(image: oci.Layout) -> None:
    oci.blob_path(image.path, image.layers[0].digest).unlink()
    with pytest.raises(CheckFailed, match="missing"):
        oci.verify(image.path)


@pytest.mark.parametrize("which", ["manifest_digest", "config_digest"])
def test_a_changed_manifest_or_config_is_named(which: str, image: oci.Layout) -> None:
    digest = getattr(image, which)
    blob = oci.blob_path(image.path, digest)
    blob.write_bytes(blob.read_bytes().replace(b"linux", b"minix").replace(b'"schemaVersion":2', b'"schemaVersion":3'))
    with pytest.raises(UserError, match=f"{digest}: the content has another digest"):
        oci.verify(image.path)


def test_a_docker_archive_holds_plain_layers_and_the_config_under_its_digest(image: oci.Layout) -> None:
    out = io.BytesIO()
    oci.write_docker_archive(image.path, out, "name:tag")
    out.seek(0)
    with tarfile.open(fileobj=out) as tar:
        (described,) = json.load(tar.extractfile("manifest.json") or io.BytesIO())
        assert described["RepoTags"] == ["name:tag"]
        assert described["Config"] == f"{image.config_digest[7:]}.json"
        for layer, name in zip(image.layers, described["Layers"], strict=True):
            member = tar.extractfile(name)
            assert member is not None
            assert oci.digest_of(member.read()) == layer.diff_id
    out.seek(0)
    again = canon.canonicalise(out, image.path.parent / "again", epoch=EPOCH)
    assert again.manifest_digest == image.manifest_digest


@pytest.mark.parametrize(
    ("blob", "media_type"),
    [
        (LAYER, oci.LAYER),
        (gzip.compress(LAYER), f"{oci.LAYER}+gzip"),
        (gzip.compress(LAYER), "application/vnd.docker.image.rootfs.diff.tar.gzip"),
        (zstandard.compress(LAYER), f"{oci.LAYER}+zstd"),
    ],
)
def test_a_foreign_layout_gives_the_same_image_whatever_its_compression(
    blob: bytes, media_type: str, tmp_path: Path
) -> None:
    diff_ids = {"diff_ids": [oci.digest_of(LAYER)]}
    layout = made.layout(tmp_path / "in", [blob], [media_type], rootfs=diff_ids)
    direct = canon.canonicalise(io.BytesIO(made.docker_archive([LAYER])), tmp_path / "direct", epoch=EPOCH)
    assert canon.canonicalise(layout, tmp_path / "out", epoch=EPOCH).manifest_digest == direct.manifest_digest
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        tar.add(layout, ".")
    archive.seek(0)
    assert canon.canonicalise(archive, tmp_path / "tar", epoch=EPOCH).manifest_digest == direct.manifest_digest


def edit(layout: Path, old: str, new: str) -> None:
    index = layout / "index.json"
    index.write_text(index.read_text().replace(old, new))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (oci.MANIFEST, "text/plain", "unknown media type 'text/plain'"),
        ('"sha256:', '"sha256:../../', "is not a sha256 digest"),
        ('"sha256:', '"md5:', "is not a sha256 digest"),
        ('"mediaType"', '"platform": {"os": "linux", "architecture": "arm64"}, "mediaType"', "found: linux/arm64"),
        ("[", "[[", "broken JSON"),
        ('"size": ', '"size": 1', "the manifest says"),
    ],
)
def test_a_bad_index_is_refused(old: str, new: str, message: str, tmp_path: Path) -> None:
    layout = made.layout(tmp_path / "in", [LAYER])
    edit(layout, old, new)
    with pytest.raises(UserError) as caught:
        canon.canonicalise(layout, tmp_path / "out", epoch=EPOCH)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("blob", "media_type", "message"),
    [
        (LAYER, "application/x-zip", "unknown media type 'application/x-zip'"),
        (gzip.compress(LAYER)[:-20], f"{oci.LAYER}+gzip", "corrupt gzip layer"),
        (LAYER, f"{oci.LAYER}+gzip", "corrupt gzip layer"),
        (LAYER, f"{oci.LAYER}+zstd", "corrupt zstd layer"),
        (zstandard.compress(LAYER)[:-20], f"{oci.LAYER}+zstd", "layer 0: the layer is sha256:"),
    ],
)
def test_a_bad_blob_is_refused(blob: bytes, media_type: str, message: str, tmp_path: Path) -> None:
    diff_ids = {"diff_ids": [oci.digest_of(LAYER)]}
    layout = made.layout(tmp_path / "in", [blob], [media_type], rootfs=diff_ids)
    with pytest.raises(UserError) as caught:
        canon.canonicalise(layout, tmp_path / "out", epoch=EPOCH)
    assert message in str(caught.value)


def test_a_missing_layout_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"index\.json: missing"):
        oci.read(tmp_path)
