"""An audit as one page that needs nothing but itself."""

from __future__ import annotations

from pathlib import Path

from kiln.audit.demangle import demangle
from kiln.audit.report import Report
from kiln.audit.rules import CHECKS

TEMPLATE = "report.html.j2"
NAMES_SHOWN = 50
_TITLES = {
    "arch": "Arch coverage", "hollow": "Hollow kernels", "symbols": "Symbols and search paths",
    "python": "Python distributions", "toolchain": "Toolchain",
}  # fmt: skip


def page(root: Path, report: Report) -> str:
    """Return the page."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(root / "audit"), undefined=jinja2.StrictUndefined, autoescape=True
    )
    environment.filters["readable"] = demangle
    best = sorted({target for counts in report.distributions().values() for target in counts})
    return environment.get_template(TEMPLATE).render(
        report=report, checks=CHECKS, titles=_TITLES, best=best, limit=NAMES_SHOWN
    )
