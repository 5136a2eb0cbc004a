"""`inv verify` on layouts: canonical ones are fixed points, and one changed bit is refused by the name of its check."""

from __future__ import annotations

import json
import shutil
import tarfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from kiln import canon, digests, inventory, labels, oci, recompress, result, verify
from kiln.canon import ConfigOverrides, Origin
from kiln.compression import Compression
from kiln.digests import Expected
from kiln.errors import UserError
from kiln.plan import Plan
from kiln.settings import Settings, from_env
from tests import madeimages as made
from tests.madeimages import EPOCH, Entry

pytestmark = pytest.mark.unit
LAYERS = [
    [Entry("etc", "dir", mode=0o755), Entry("etc/passwd", data=b"root\n"), Entry("bin", "symlink", link="usr/bin")],
    [Entry("etc", "dir", mode=0o755), Entry("etc/hosts.deny", data=b"all\n" * 100, mode=0o600)],
]


@pytest.fixture(scope="module")
def plan() -> Plan:
    return inventory.plan_for(from_env({}), gpu="sm90", stack="ci", kernel_set="", image="")


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Return settings of a checkout that expects no digest yet: the images of these tests are made up."""
    monkeypatch.setattr(digests, "load", lambda root: {})
    return replace(from_env({}), home=tmp_path / "home")


def image(path: Path, plan: Plan, compression: Compression = "zstd", labels: Mapping[str, str] = {}) -> Path:
    """Make a small image that says it was built from a plan."""
    raw = made.layout(path.with_name(f"{path.name}-raw"), [made.layer(entries) for entries in LAYERS])
    origins = [Origin("", EPOCH - 1000), Origin("", EPOCH)]
    config = ConfigOverrides(labels={**plan.labels(), **labels})
    canon.canonicalise(raw, path, epoch=EPOCH, compression=compression, origins=origins, config=config)
    return path


def state(report: verify.Report, name: str) -> tuple[str, str]:
    (check,) = [check for check in report.checks if check.name == name]
    return check.state, check.why


def check(settings: Settings, path: Path) -> verify.Report:
    return verify.verify(settings, str(path), key=None, say=lambda line: None)


@pytest.mark.parametrize("compression", ["zstd", "gzip"])
def test_a_good_layout_passes_all_that_a_folder_can_be_asked(
    tmp_path: Path, settings: Settings, plan: Plan, compression: Compression
) -> None:
    report = check(settings, image(tmp_path / "image", plan, compression))
    assert report.failed == ()
    assert [check.name for check in report.checks] == [*verify.IMAGE, *verify.ATTACHED]
    assert [state(report, name)[0] for name in ("blobs", "canonical", "plan")] == ["OK"] * 3
    assert {state(report, name)[0] for name in verify.ATTACHED} == {"NOT_CHECKED"}
    assert "name the image in its registry" in state(report, "signature")[1]
    assert sorted(path.name for path in settings.home.iterdir()) == []


@pytest.mark.parametrize("blob", ["layer 0", "layer 1", "config", "manifest"])
@pytest.mark.parametrize("bit", [0, 7])
def test_one_changed_bit_of_any_blob_is_refused_with_its_digest(
    tmp_path: Path, settings: Settings, plan: Plan, blob: str, bit: int
) -> None:
    path = image(tmp_path / "image", plan)
    layout = oci.read(path)
    digests = {"config": layout.config_digest, "manifest": layout.manifest_digest}
    digests |= {f"layer {number}": layer.digest for number, layer in enumerate(layout.layers)}
    file = oci.blob_path(path, digests[blob])
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1 << bit
    file.chmod(0o644)
    file.write_bytes(data)
    report = check(settings, path)
    assert report.failed == ("blobs",)
    assert digests[blob] in state(report, "blobs")[1]
    assert state(report, "canonical") == ("NOT_CHECKED", "the blobs are damaged")


def rewritten(path: Path, what: str, fields: dict[str, object]) -> None:
    """Change the config or the manifest and give everything above it the digest that follows: an honest forgery."""
    layout = oci.read(path)
    manifest = json.loads(oci.blob_path(path, layout.manifest_digest).read_bytes())
    config = json.loads(oci.blob_path(path, layout.config_digest).read_bytes())
    (config if what == "config" else manifest).update(fields)
    data = oci.canonical_json(config)
    oci.blob_path(path, oci.digest_of(data)).write_bytes(data)
    manifest["config"] |= {"digest": oci.digest_of(data), "size": len(data)}
    data = oci.canonical_json(manifest)
    oci.blob_path(path, oci.digest_of(data)).write_bytes(data)
    index = json.loads((path / "index.json").read_bytes())
    index["manifests"][0] |= {"digest": oci.digest_of(data), "size": len(data)}
    (path / "index.json").write_bytes(oci.canonical_json(index))


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("config created", "2026-01-01T00:00:00.5Z", "a canonical config has whole seconds"),
        ("config author", "me", 'config: author: "me" instead of nothing'),
        ("config history", [], "written in another way; canonical, it is sha256:"),
        ("manifest annotations", {"a": "b"}, 'manifest: annotations.a: "b" instead of nothing'),
        ("manifest artifactType", "x", 'manifest: artifactType: "x" instead of nothing'),
    ],
)
def test_what_no_build_of_kiln_writes_is_not_canonical(
    tmp_path: Path, settings: Settings, plan: Plan, key: str, value: object, why: str
) -> None:
    path = image(tmp_path / "image", plan)
    what, _, name = key.partition(" ")
    rewritten(path, what, {name: value})
    report = check(settings, path)
    assert report.failed == ("canonical",)
    assert why in state(report, "canonical")[1]


def test_an_entry_with_a_time_of_its_own_is_told_with_its_layer_and_path(
    tmp_path: Path, settings: Settings, plan: Plan
) -> None:
    entries = [Entry("a", mtime=EPOCH), Entry("b", mtime=EPOCH + 1)]
    created = "2026-11-29T17:00:00Z"
    raw = made.layout(tmp_path / "raw", [made.layer(entries, tarfile.USTAR_FORMAT)], created=created)
    zstd = tmp_path / "image"
    recompress.recompress(raw, zstd, "zstd")
    assert "layer 0: b: mtime" in state(check(settings, zstd), "canonical")[1]


@pytest.mark.parametrize(
    ("label", "value", "why"),
    [
        ("kiln.pin.sglang", "0.0.1", "kiln.pin.sglang: the image says '0.0.1', the locks '"),
        ("kiln.patches", "flashinfer/9999-x", "kiln.patches: the image says 'flashinfer/9999-x', the locks '"),
        ("kiln.gpu", "sm999", "this checkout cannot plan it: "),
        ("kiln.plan", "f" * 64, ": a wheel, package, Dockerfile, source or tool that no label names"),
        ("kiln.extra", "1", "kiln.extra: the image says '1', the locks 'nothing'"),
    ],
)
def test_labels_that_the_locks_do_not_give_are_named(
    tmp_path: Path, settings: Settings, plan: Plan, label: str, value: str, why: str
) -> None:
    report = check(settings, image(tmp_path / "image", plan, labels={label: value}))
    assert report.failed == ("plan",)
    assert why in state(report, "plan")[1]
    assert state(report, "digest") == ("NOT_CHECKED", "the plan it was built from is not known here")


def test_an_image_of_somebody_else_has_no_plan(plan: Plan, settings: Settings) -> None:
    found = labels.match(settings, {"maintainer": "me"})
    assert (found.plan, found.same) == (None, False)
    assert "lacks the labels kiln.gpu, kiln.stack, kiln.kernels, kiln.plan: not built by kiln" in found.why


def test_the_plan_of_an_image_below_the_last_is_found(settings: Settings) -> None:
    base = inventory.plan_for(settings, gpu="sm90", stack="ci", kernel_set="", image="cuda")
    found = labels.match(settings, base.labels())
    assert found.same
    assert found.plan
    assert found.plan.image == "cuda"


def test_another_digest_than_the_build_here_gave_is_a_failure(tmp_path: Path, settings: Settings, plan: Plan) -> None:
    path = image(tmp_path / "image", plan)
    layout = settings.home / "images" / plan.id[:12]
    shutil.copytree(path, layout)
    for digest, wanted in ((oci.read(path).manifest_digest, "OK"), ("sha256:" + "0" * 64, "FAILED")):
        result.save(settings, result.Result(plan.id, plan.tag, digest, plan.repository, str(layout), ()))
        assert state(check(settings, path), "digest")[0] == wanted


def test_another_digest_than_the_committed_one_is_a_failure(
    tmp_path: Path, settings: Settings, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = {("ci", "sm90"): Expected(plan=plan.id, digest="sha256:" + "0" * 64)}
    monkeypatch.setattr(digests, "load", lambda root: expected)
    report = check(settings, image(tmp_path / "image", plan))
    assert report.failed == ("digest",)
    assert state(report, "digest")[1] == f"{digests.FILE} has sha256:{'0' * 64}"


@pytest.mark.parametrize(
    ("text", "reference"),
    [
        ("127.0.0.1:5000/kiln/sglang:1", ("127.0.0.1:5000", "kiln/sglang", "1", "")),
        ("host/a@sha256:" + "0" * 64, ("host", "a", "", "sha256:" + "0" * 64)),
        ("host:1/a/b:t@sha256:" + "0" * 64, ("host:1", "a/b", "t", "sha256:" + "0" * 64)),
        ("[::1]:5000/a:t", ("[::1]:5000", "a", "t", "")),
    ],
)
def test_a_reference_is_read(text: str, reference: tuple[str, ...]) -> None:
    found = verify.parse(text)
    assert (found.address, found.repository, found.tag, found.digest) == reference


@pytest.mark.parametrize(
    "text", ["", "kiln", "kiln:1", "host/a", "host/a@sha256:12", "host/A:1", "--help", "https://host/a:1"]
)
def test_what_names_no_image_is_refused_with_the_form(text: str) -> None:
    with pytest.raises(UserError, match="neither a folder nor an image in a registry\n  hint: inv verify HOST"):
        verify.parse(text)


def test_a_folder_without_an_image_fails_its_blobs(tmp_path: Path, settings: Settings) -> None:
    report = check(settings, tmp_path)
    assert report.failed == ("blobs",)
    assert "index.json: missing in the image" in state(report, "blobs")[1]
