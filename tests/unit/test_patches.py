"""patches/: headers are read, bad ones are refused, and a build gets the right ones in order."""

from __future__ import annotations

from pathlib import Path

import pytest

from kiln import patches, versions
from kiln.errors import UserError
from kiln.patches import Choice
from kiln.settings import ROOT

pytestmark = pytest.mark.unit

MAIL = """\
From 4f1c0000 Mon Sep 17 00:00:00 2001
From: A Person <person@example.org>
Date: Sat, 15 Aug 2026 10:00:00 +0000
Subject: [PATCH 1/2] jit: emit sm_120a, not sm_120,
 for compute capability 12.0

"""
FIELDS = """\
Origin: vendor
Forwarded: no
Applies-To: >=0.7,<0.8
Targets: sm120
Status: default
Checked-By: tests/image/test_arch.py::test_sass
Evidence: 2 tok/s before, 3 after; one request; our own run
Drop-When: flashinfer >=0.9

The compiler needs the suffix for what the kernels use.
"""
DIFF = """\
---
 x.py | 2 +-
diff --git a/x.py b/x.py
--- a/x.py
+++ b/x.py
@@ -1 +1 @@
-a
+b
"""
GOOD = MAIL + FIELDS + DIFF
NUMBERS = FIELDS[FIELDS.index("Status") : FIELDS.index("\nDrop-When")]


def write(root: Path, text: str = GOOD, name: str = "flashinfer/0001-arch.patch") -> Path:
    test = root / "tests/image/test_arch.py"
    test.parent.mkdir(parents=True, exist_ok=True)
    test.write_text("def test_sass() -> None: ...\n", encoding="utf-8")
    path = root / "patches" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def problems_of(root: Path) -> list[str]:
    with pytest.raises(UserError) as caught:
        patches.load_all(root)
    return [str(problem) for problem in caught.value.problems]


def test_a_git_mail_with_dep3_fields_is_read(tmp_path: Path) -> None:
    patch = patches.load(write(tmp_path), tmp_path)
    assert patch.label == "flashinfer/0001-arch"
    assert patch.subject == "jit: emit sm_120a, not sm_120, for compute capability 12.0"
    assert (patch.origin, patch.forwarded, patch.applies_to) == ("vendor", "no", ">=0.7,<0.8")
    assert (patch.targets, patch.status, len(patch.sha256)) == (("sm120",), "default", 64)


def test_a_bare_dep3_header_is_read_too(tmp_path: Path) -> None:
    text = "Description: short\n" + FIELDS + DIFF.partition("+-\n")[2]
    assert patches.load(write(tmp_path, text), tmp_path).subject == "short"


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("Origin: vendor\n", "", "1: header has no Origin\n  hint: Origin: upstream, backport, vendor or other, "
         "and from where"),
        ("Applies-To:", "Apply-To:", "1: header has no Applies-To\n"
         "  hint: Applies-To: a PEP 440 range of the component: >=0.7,<0.8; did you mean 'Apply-To'?"),
        (">=0.7,<0.8", "0.7 and up", "9: Applies-To: '0.7 and up' cannot be read\n"
         "  hint: Applies-To: a PEP 440 range of the component: >=0.7,<0.8"),
        ("Status: default", "Status: on", "11: Status: 'on' cannot be read\n"
         "  hint: Status: default, opt-in: <name> or rejected"),
        ("::test_sass", "::test_sas", "12: Checked-By: 'tests/image/test_arch.py::test_sas' is not a test\n"
         "  hint: the test that fails without the patch: tests/image/test_x.py::test_name"),
        ("flashinfer >=0.9", "flashinfer >=x", "14: Drop-When: 'flashinfer >=x' cannot be read\n"
         "  hint: Drop-When: <component> <range>, such as flashinfer >=0.8; or what has to happen"),
        (NUMBERS, "Status: rejected\nChecked-By: tests/image/test_arch.py::test_sass\nEvidence: it was slow",
         "13: Evidence: holds no number\n"
         "  hint: a rejected patch is kept for its numbers: say what was measured, with what setup"),
        (f"{NUMBERS}\n", "Status: opt-in: gates\nChecked-By: tests/image/test_arch.py::test_sass\n",
         "1: header has no Evidence\n"
         "  hint: Evidence: numbers, their setup and source; `none` and why, if it touches no performance"),
        ("tests/image/test_arch.py::test_sass", "by hand", "12: Checked-By: 'by hand' is not a test\n"
         "  hint: the test that fails without the patch: tests/image/test_x.py::test_name"),
    ],
)  # fmt: skip
def test_a_bad_header_is_refused_with_its_line(tmp_path: Path, old: str, new: str, expected: str) -> None:
    assert GOOD.count(old) == 1
    write(tmp_path, GOOD.replace(old, new))
    assert problems_of(tmp_path) == [f"patches/flashinfer/0001-arch.patch:{expected}"]


def test_every_missing_field_is_reported_at_once(tmp_path: Path) -> None:
    write(tmp_path, "Subject: x\n" + DIFF)
    assert [problem.splitlines()[0].rpartition(" ")[2] for problem in problems_of(tmp_path)] == [
        "Applies-To", "Checked-By", "Drop-When", "Evidence", "Forwarded", "Origin", "Status", "Targets",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("flashinfer/arch.patch", GOOD, "is not called NNNN-slug.patch\n"
         "  hint: git mv it to such as 0001-what-it-does.patch"),
        ("flashinfer/0002-x.patch", MAIL + FIELDS, "holds no diff\n  hint: write it with git format-patch"),
        ("flashinfer/0001-zz.patch", GOOD, "number 0001 is taken by 0001-arch.patch\n"
         "  hint: give it the next free number"),
    ],
)  # fmt: skip
def test_a_bad_file_is_refused_beside_a_good_one(tmp_path: Path, name: str, text: str, expected: str) -> None:
    write(tmp_path)
    write(tmp_path, text, name)
    assert problems_of(tmp_path) == [f"patches/{name}: {expected}"]


def test_a_build_gets_the_default_patches_that_fit_in_order(tmp_path: Path) -> None:
    loaded = versions.load(ROOT / "versions.yaml")
    fits = GOOD.replace(">=0.7,<0.8", ">=0.1")
    write(tmp_path, fits, "sglang/0001-one.patch")
    write(tmp_path, fits, "flashinfer/0010-ten.patch")
    write(tmp_path, fits.replace("Targets: sm120", "Targets: all"), "flashinfer/0002-all.patch")
    write(tmp_path, fits.replace("Targets: sm120", "Targets: sm90"), "flashinfer/0003-other-gpu.patch")
    write(tmp_path, fits.replace(">=0.1", "<0.1"), "flashinfer/0004-old.patch")
    write(tmp_path, fits.replace("Status: default", "Status: opt-in: gates"), "flashinfer/0005-opt-in.patch")
    write(tmp_path, fits.replace("Status: default", "Status: rejected"), "flashinfer/0006-rejected.patch")
    write(tmp_path, fits, "elsewhere/0001-x.patch")
    stack, gpu = loaded.stack("current"), loaded.gpu("sm120")
    labels = [patch.label for patch in patches.patches_for(tmp_path, stack, gpu)]
    assert labels == ["flashinfer/0002-all", "flashinfer/0010-ten", "sglang/0001-one"]
    assert [patch.label for patch in patches.patches_for(tmp_path, stack, gpu, "sglang")] == ["sglang/0001-one"]


def test_names_that_versions_yaml_lacks_are_reported(tmp_path: Path) -> None:
    write(tmp_path, name="flashinfr/0001-x.patch")
    found = patches.reference_problems(tmp_path, patches.load_all(tmp_path), {"flashinfer"}, {"sm90"})
    assert [str(problem) for problem in found] == [
        "patches/flashinfr/0001-x.patch: there is no component 'flashinfr'\n"
        "  hint: did you mean 'flashinfer'? known: flashinfer",
        "patches/flashinfr/0001-x.patch:10: Targets: there is no GPU 'sm120'\n  hint: did you mean 'sm90'? known: sm90",
    ]


def test_the_real_patches_load() -> None:
    patches.load_all(ROOT)


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (Choice(), ["flashinfer/0001-one", "sglang/0001-one"]),
        (Choice(("gates",)), ["flashinfer/0001-one", "flashinfer/0002-two", "sglang/0001-one"]),
        (Choice(("flashinfer/0002-two",)), ["flashinfer/0001-one", "flashinfer/0002-two", "sglang/0001-one"]),
        (Choice((), ("one",)), []),
        (Choice((), ("sglang/0001-one",)), ["flashinfer/0001-one"]),
        (Choice(("three",), ("one",), i_know=True), ["flashinfer/0003-three"]),
    ],
    ids=["default", "an opt-in", "by label", "a slug of two", "one of two", "a rejected one"],
)
def test_a_choice_changes_the_default_queue(tmp_path: Path, choice: Choice, expected: list[str]) -> None:
    loaded = versions.load(ROOT / "versions.yaml")
    fits = GOOD.replace(">=0.7,<0.8", ">=0.1")
    write(tmp_path, fits, "flashinfer/0001-one.patch")
    write(tmp_path, fits.replace("Status: default", "Status: opt-in: gates"), "flashinfer/0002-two.patch")
    write(tmp_path, fits.replace("Status: default", "Status: rejected"), "flashinfer/0003-three.patch")
    write(tmp_path, fits, "sglang/0001-one.patch")
    found = patches.patches_for(tmp_path, loaded.stack("current"), loaded.gpu("sm120"), choice=choice)
    assert [patch.label for patch in found] == expected


def test_a_rejected_patch_is_not_added_without_a_word(tmp_path: Path) -> None:
    loaded = versions.load(ROOT / "versions.yaml")
    write(tmp_path, GOOD.replace("Status: default", "Status: rejected"))
    with pytest.raises(UserError) as caught:
        patches.patches_for(tmp_path, loaded.stack("current"), loaded.gpu("sm120"), choice=Choice(("arch",)))
    assert str(caught.value) == (
        "patches/flashinfer/0001-arch.patch: was tried and rejected: "
        "2 tok/s before, 3 after; one request; our own run\n"
        "  hint: to repeat the experiment all the same, add --i-know"
    )


def test_the_files_of_a_patch_are_told_with_both_their_names(tmp_path: Path) -> None:
    moved = "diff --git a/old.py b/new.py\nsimilarity index 100%\nrename from old.py\nrename to new.py\n"
    assert patches.load(write(tmp_path, GOOD + moved), tmp_path).files == ("x.py", "old.py", "new.py")
