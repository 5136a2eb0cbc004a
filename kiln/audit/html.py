"""An audit as one page that needs nothing but itself."""

from __future__ import annotations

from pathlib import Path

from kiln.audit import alike
from kiln.audit.demangle import demangle
from kiln.audit.report import Report
from kiln.audit.rules import CHECKS
from kiln.page import render

TEMPLATE = Path("audit") / "report.html.j2"
NAMES_SHOWN = 50
_TITLES = {
    "arch": "Arch coverage", "hollow": "Hollow kernels", "symbols": "Symbols and search paths",
    "python": "Python distributions", "toolchain": "Toolchain",
}  # fmt: skip


def page(root: Path, report: Report) -> str:
    """Return the page."""
    best = sorted({target for counts in report.distributions().values() for target in counts})
    values = {"report": report, "checks": CHECKS, "titles": _TITLES, "best": best, "limit": NAMES_SHOWN}
    values["rows_alike"] = alike.rows(report.rows)
    return render(root, TEMPLATE, values, {"readable": demangle, "alike": alike.findings, "label": alike.label})
