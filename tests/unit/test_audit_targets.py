"""`inv audit` reads layouts, wheels, folders and files, remembers what it read, and ends with 1 if a check fails."""

from __future__ import annotations

import json
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from kiln import locks
from kiln.audit import auditing, fatbin, layers, sources
from kiln.audit.facts import Compiler
from kiln.audit.html import page
from kiln.audit.layers import Layer
from kiln.audit.reader import Reader
from kiln.audit.records import Record
from kiln.audit.report import Report
from kiln.errors import CheckFailed, UserError
from kiln.settings import ROOT, Settings, from_env
from kiln.store import Store
from tests import madeimages as made
from tests.madeelf import shared_object
from tests.madeimages import Entry

pytestmark = pytest.mark.unit

SITE = "opt/kiln/lib/python3.11/site-packages"
STUBS = (ROOT / "tests" / "data" / "audit" / "stubs.fatbin").read_bytes()
MODULE = shared_object(needed=["libc.so.6"], data=STUBS)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return replace(from_env(), home=tmp_path / "home")


def audit(settings: Settings, path: Path, **named: str) -> Report:
    about = auditing.subject(
        settings, str(path), gpu=named.get("gpu", "sm120"), stack=named.get("stack", ""), kernel_set=""
    )
    return auditing.audit(settings, about, lambda _: None)


def wheel(path: Path) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("pkg/module.so", MODULE)
    return path


def folder(path: Path) -> Path:
    (path / "pkg").mkdir(parents=True)
    (path / "pkg" / "module.so").write_bytes(MODULE)
    (path / "pkg" / "link.so").symlink_to("module.so")
    return path


def image(path: Path) -> Path:
    return made.layout(path, [made.layer([Entry(f"{SITE}/pkg/module.so", data=MODULE)])])


def single(path: Path) -> Path:
    path.mkdir()
    (path / "module.so").write_bytes(MODULE)
    return path / "module.so"


@pytest.mark.parametrize("make", [wheel, folder, image, single])
def test_every_kind_of_target_shows_the_hollow_kernels(make: object, settings: Settings, tmp_path: Path) -> None:
    report = audit(settings, make(tmp_path / "target"))  # type: ignore[operator]
    guarded = next(one for one in report.failed if one.subject == "hollow::guarded")
    assert guarded.file.endswith("module.so")
    assert guarded.message == "2 of 2 kernels for sm_120a are empty"
    assert not [one for one in report.failed if one.subject.startswith("real")]
    with pytest.raises(CheckFailed, match="hollow"):
        auditing.require_passed(report)


def test_the_second_run_reads_no_layer(settings: Settings, tmp_path: Path) -> None:
    path = image(tmp_path / "target")
    first = audit(settings, path)
    for blob in (path / "blobs" / "sha256").iterdir():
        if blob.read_bytes()[:1] != b"{":
            blob.unlink()
    assert replace(audit(settings, path), seconds=first.seconds) == first


def test_what_a_layer_hides_is_gone(settings: Settings, tmp_path: Path) -> None:
    below = made.layer(
        [Entry("a/b.so", data=MODULE), Entry("c/d", data=b"1"), Entry("e/f", data=b"1"), Entry("g", data=b"1")]
    )
    above = made.layer([Entry("a/.wh.b.so"), Entry("c/.wh..wh..opq"), Entry("c/new", data=b"2"), Entry("g", data=b"3")])
    reader = Reader(fatbin.gpu("12.0"), settings.home, lambda: tmp_path)
    found = sources.read(made.layout(tmp_path / "target", [below, above]), reader, lambda _: None)
    assert sorted(path for path, record in found.records.items() if record.sha256) == ["c/new", "e/f", "g"]
    assert found.records["g"].size == 1


def test_a_file_in_place_of_a_folder_hides_what_was_in_it() -> None:
    below, above = Layer({"a/b": Record("a/b")}), Layer({"a": Record("a", link="c")})
    assert list(layers.merge([below, above])) == ["a"]


def test_hard_links_and_names_that_are_no_utf8_are_read(settings: Settings, tmp_path: Path) -> None:
    entries = [Entry(".a", data=MODULE), Entry("b", "hardlink", link=".a"), Entry("caf\udce9", data=b"1")]
    reader = Reader(fatbin.gpu("12.0"), settings.home, lambda: tmp_path)
    found = sources.read(made.layout(tmp_path / "t", [made.layer(entries)]), reader, lambda _: None)
    assert found.records["b"].sha256 == found.records[".a"].sha256
    assert "caf\\xe9" in found.records
    assert [record.path for record, _ in found.binaries()] == [".a"]


def test_the_same_bytes_as_a_compiler_and_not_have_facts_of_their_own(settings: Settings, tmp_path: Path) -> None:
    data = shared_object(data=b"\0sm_120a\0release 13.0, V13.0.88\0")
    for name in ("tool", "ptxas"):
        (tmp_path / name).write_bytes(data)
    reader = Reader(fatbin.gpu("12.0"), settings.home, lambda: tmp_path)
    tool, ptxas = (reader.read_file(name, tmp_path / name).facts for name in ("tool", "ptxas"))
    assert tool is not None
    assert tool.compiler is None
    assert ptxas is not None
    assert ptxas.compiler == Compiler(("sm_120a",), "13.0.88")


def test_a_large_binary_passes_through_the_scratch_folder_and_leaves_nothing(
    settings: Settings, tmp_path: Path
) -> None:
    (tmp_path / "big.so").write_bytes(MODULE + bytes(40 << 20))
    assert audit(settings, tmp_path / "big.so").rows[0].kernels == 11
    assert list((settings.home / "audit" / "scratch").iterdir()) == []


def test_the_locked_cuobjdump_decompresses_lz4(settings: Settings, tmp_path: Path) -> None:
    ours = from_env()
    (tool,) = [one for one in locks.read(ROOT, "locks/tools.toml").all() if one.name == "nvidia-cuda-cuobjdump"]
    if not Store(ours.store).has(tool):
        pytest.skip("NOT_RUN: cuobjdump is not in the store; inv fetch")
    settings.home.mkdir()
    (settings.home / "store").symlink_to(ours.store)
    (tmp_path / "lz4.fatbin").write_bytes((ROOT / "tests" / "data" / "audit" / "stubs-lz4.fatbin").read_bytes())
    report = audit(settings, tmp_path / "lz4.fatbin")
    assert report.rows[0].kernels == 11
    assert "hollow::guarded" in {one.subject for one in report.failed}


def test_a_path_that_is_not_there_is_the_user_s_error(settings: Settings, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not exist"):
        audit(settings, tmp_path / "nothing")


def test_a_plan_that_is_not_built_names_the_command(settings: Settings) -> None:
    with pytest.raises(UserError, match="is not built") as caught:
        auditing.subject(settings, "", gpu="sm120", stack="ci", kernel_set="")
    assert caught.value.problems[0].hint == "inv build --gpu sm120 --stack ci --kernels ci"


def test_a_layout_s_labels_tell_its_gpu_and_stack(settings: Settings, tmp_path: Path) -> None:
    path = made.layout(tmp_path / "t", [made.layer([])], config={"Labels": {"kiln.gpu": "sm90", "kiln.stack": "ci"}})
    about = auditing.subject(settings, str(path), gpu="", stack="", kernel_set="")
    assert (about.gpu.name, about.stack) == ("sm90", "ci")


def test_the_report_is_plain_data_with_readable_names(settings: Settings, tmp_path: Path) -> None:
    data = json.loads(json.dumps(audit(settings, single(tmp_path / "t")).as_dict()))
    assert data["passed"] is False
    guarded = next(one for one in data["findings"] if one["subject"] == "hollow::guarded")
    assert "void hollow::guarded<float, 3>(float*)" in guarded["names"]


def test_the_page_holds_every_finding_and_needs_nothing_else(settings: Settings, tmp_path: Path) -> None:
    text = page(ROOT, audit(settings, single(tmp_path / "t")))
    assert "hollow::guarded&lt;float, 3&gt;(float*)" in text
    assert not [word for word in ("<script", "<link", "<img", "http:", "https:", "@import", "url(") if word in text]


def test_a_baseline_shows_a_lost_target(settings: Settings, tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "audit" / "baselines").mkdir(parents=True)
    for name in ("versions.yaml", "audit/allow.yaml", "audit/report.html.j2"):
        (root / name).write_bytes((ROOT / name).read_bytes())
    ours = replace(settings, root=root)
    path = image(tmp_path / "target")
    report = audit(ours, path, stack="ci")
    (file,) = auditing.write(ours, report, html="", accept=True)
    assert json.loads(file.read_text()) == {"pkg/module.so": ["sm_120a", "sm_120f", "ptx_120a"]}
    assert not [one for one in audit(ours, path, stack="ci").findings if one.check == "arch"]
    file.write_text('{"pkg/module.so": ["sm_120"], "pkg/gone.so": ["sm_120a"]}')
    lost = [one for one in audit(ours, path, stack="ci").failed if one.subject == "lost target"]
    assert [one.message for one in lost] == [
        "has lost a target of the baseline: sm_120",
        "of the baseline is gone: sm_120a",
    ]


def test_a_target_of_no_stack_is_nobody_s_baseline(settings: Settings, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="belongs to no stack"):
        list(auditing.write(settings, audit(settings, single(tmp_path / "t")), html="", accept=True))
