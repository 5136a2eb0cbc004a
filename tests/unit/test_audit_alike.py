"""Findings and binaries of one kind are told once, whatever a package holds of them."""

from __future__ import annotations

import pytest

from kiln import tables
from kiln.audit import alike
from kiln.audit.arch import Row
from kiln.audit.html import page
from kiln.audit.report import Report
from kiln.audit.rules import Finding
from kiln.settings import ROOT

pytestmark = pytest.mark.unit

CUBINS = tuple(f"cubins/v1/{number}.cubin" for number in range(300))
ROWS = tuple(Row(file, ("sm_100f",), (), 1, 0, 2) for file in CUBINS)
NO_CODE = tuple(Finding("arch", file, "no code", "none of its targets runs on sm120") for file in CUBINS)
HOLLOW = Finding("hollow", "cubins/a.so", "k", "1 of 2 kernels for sm_120a are empty", ("_Z1kv",))
REPORT = Report("t", "sm120", "", 301, 1, ROWS, (*NO_CODE, HOLLOW), 0.1)


def test_findings_that_differ_by_their_file_are_one_and_others_stay() -> None:
    found = alike.findings(REPORT.findings)
    assert [(len(one.files), one.first.subject) for one in found] == [(300, "no code"), (1, "k")]
    assert [alike.label(one.files) for one in found] == ["cubins/v1/0.cubin and 299 more below cubins/", "cubins/a.so"]


@pytest.mark.parametrize(
    "other",
    [
        Finding("arch", "else/0.cubin", "no code", "none of its targets runs on sm120"),
        Finding("arch", "cubins/v1/0.so", "PTX only", "none of its targets runs on sm120"),
        Finding("arch", "cubins/v1/0.so", "no code", "none of its targets runs on sm120", reason="an old one"),
        Finding("arch", "cubins/v1/0.so", "no code", "none of its targets runs on sm120", names=("sm_90",)),
    ],
)
def test_another_folder_subject_reason_or_name_is_another_kind(other: Finding) -> None:
    assert [len(one.files) for one in alike.findings([*NO_CODE, other])] == [300, 1]


def test_binaries_for_other_gpus_are_counted_together_and_those_for_ours_stay_apart() -> None:
    ours = [Row(f"cubins/v1/{name}.cubin", ("sm_120a",), ("sm_120a",), 3, 2, 5) for name in "ab"]
    found = alike.rows([*ROWS, *ours])
    assert [(row.parts, row.covered, row.kernels, len(files)) for row, files in found] == [
        (300, 0, 600, 300),
        (3, 2, 5, 1),
        (3, 2, 5, 1),
    ]


def test_the_terminal_names_one_file_and_the_page_some_and_the_count(capsys: pytest.CaptureFixture[str]) -> None:
    tables.audit(REPORT)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("✗")]
    assert lines == [
        "✗ arch      cubins/v1/0.cubin and 299 more below cubins/: no code: none of its targets runs on sm120",
        "✗ hollow    cubins/a.so: k: 1 of 2 kernels for sm_120a are empty",
    ]
    text = page(ROOT, REPORT)
    assert text.count("cubins/v1/") < 150
    assert "300 files" in text
    assert "250 more, all in --json" in text


def test_the_json_keeps_every_finding() -> None:
    findings = REPORT.as_dict()["findings"]
    assert isinstance(findings, list)
    assert len(findings) == 301
