"""Pages that need nothing but themselves: one style, no script, nothing loaded from anywhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

FOLDER = "pages"


def render(
    root: Path, template: Path, values: Mapping[str, object], filters: Mapping[str, Callable[..., object]]
) -> str:
    """Return the page that a template below the root makes of values."""
    import jinja2

    loader = jinja2.FileSystemLoader([root / template.parent, root / FOLDER])
    environment = jinja2.Environment(loader=loader, undefined=jinja2.StrictUndefined, autoescape=True)
    environment.filters.update(filters)
    return environment.get_template(template.name).render(values)
