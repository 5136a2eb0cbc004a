"""The labels of an image against the plan that this checkout makes: which pins, patches or other inputs differ."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from kiln import images, oci, versions
from kiln import plan as planning
from kiln.errors import UserError
from kiln.oci import Layout
from kiln.patches import Choice
from kiln.plan import Plan
from kiln.settings import Settings

_CHOICES = ("kiln.gpu", "kiln.stack", "kiln.kernels")


@dataclass(frozen=True)
class Match:
    """The plan that an image says it was built from, as this checkout makes it; None if it can make none like it."""

    plan: Plan | None
    same: bool
    why: str


def read(layout: Layout) -> dict[str, str]:
    """Return the labels of an image."""
    return of_config(oci.blob_path(layout.path, layout.config_digest).read_bytes())


def of_config(data: bytes) -> dict[str, str]:
    """Return the labels in the bytes of an image's config."""
    with oci.well_formed("image config"):
        found = (json.loads(data).get("config") or {}).get("Labels") or {}
        return {str(key): str(value) for key, value in found.items()}


def match(settings: Settings, labels: Mapping[str, str]) -> Match:
    """Make the plan that the labels name and compare every label of it."""
    missing = [name for name in (*_CHOICES, "kiln.plan") if not labels.get(name)]
    if missing:
        return Match(None, False, f"the image lacks the labels {', '.join(missing)}: not built by kiln")
    try:
        plan = _plan(settings, labels)
    except UserError as error:
        return Match(None, False, f"this checkout cannot plan it: {error}")
    differences = list(_differences(labels, plan.labels()))
    if not differences:
        return Match(plan, True, f"plan {plan.id[:12]}: {len(plan.labels())} labels as the locks give them")
    return Match(plan, False, "; ".join(differences))


def _plan(settings: Settings, labels: Mapping[str, str]) -> Plan:
    """Plan the image of the tree that has the labelled id; the default one if none has."""
    loaded = versions.load(settings.root / "versions.yaml")
    gpu, stack, kernels = (labels[name] for name in _CHOICES)
    added, left_out = (tuple(labels.get(f"kiln.patches.{name}", "").split()) for name in ("with", "without"))
    choice = Choice(added, left_out, i_know=True)
    known = sorted(images.load_all(settings.root), key=lambda name: name != loaded.defaults.image)
    plans = (
        planning.make(settings, loaded, gpu=gpu, stack=stack, kernel_set=kernels, image=name, choice=choice)
        for name in known
    )
    default = next(plans)
    return next((plan for plan in (default, *plans) if plan.id == labels["kiln.plan"]), default)


def _differences(labels: Mapping[str, str], planned: Mapping[str, str]) -> Iterator[str]:
    keys = [key for key in sorted(labels.keys() | planned.keys()) if labels.get(key) != planned.get(key)]
    for key in keys:
        if key not in planning.LABELS_OF_ID:
            yield f"{key}: the image says {labels.get(key, 'nothing')!r}, the locks {planned.get(key, 'nothing')!r}"
    if "kiln.plan" in keys:
        same = "" if len(keys) > 2 else ": a wheel, package, Dockerfile, source or tool that no label names"
        yield f"plan: the image says {labels['kiln.plan'][:12]}, the locks {planned['kiln.plan'][:12]}{same}"
