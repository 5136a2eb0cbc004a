"""Will it fit: disk needed by a build, told before anything is downloaded or compiled."""

from __future__ import annotations

from pathlib import Path

from kiln import host
from kiln.engines import Engine
from kiln.errors import UserError
from kiln.plan import ImagePlan, Plan
from kiln.settings import Settings
from kiln.store import Store

# Measured on the `current` stack: wheels unpack to 2.6 times their size; Debian's packages to 4.
_UNPACK = 2.6
_DEB_UNPACK = 4.0
# The engine's own copy of the image while it saves or loads one, our raw copy of it, the compressed layers.
_LAYOUT = 2.6
_RESERVE_BYTES = 2 * 10**9


def raw_bytes(plan: Plan, image: ImagePlan) -> int:
    """Size of an image's own layers, uncompressed."""
    debs = sum(deb.size for deb in plan.lock.debs) if "debs" in image.inputs else 0
    return int(sum(wheel.size for wheel in image.wheels) * _UNPACK + debs * _DEB_UNPACK)


def work_bytes(plan: Plan, image: ImagePlan) -> int:
    """Disk that one image needs only while it is built: its inputs in the engine, and what it unpacks or compiles."""
    debs = sum(deb.size for deb in plan.lock.debs) if "debs" in image.inputs else 0
    sources = 2 * 10**9 if "sources" in image.inputs else 0
    return sum(wheel.size for wheel in image.wheels) + debs + sources


def need_bytes(plan: Plan, engine: Engine, store: Store) -> dict[str, int]:
    """Disk that a build from here on needs: downloads, images in the engine, and the largest of the passing needs.

    Those follow each other: the inputs of one image, and the layout with its raw copy.
    """
    missing = sum(one.size for one in store.missing(plan.artefacts()))
    todo = [image for image in plan.chain if not engine.image_id(image.ref)]
    images = sum(raw_bytes(plan, image) for image in todo)
    layout = int(sum(raw_bytes(plan, image) for image in plan.chain) * _LAYOUT)
    inputs = max((work_bytes(plan, image) for image in todo), default=0)
    passing = {"layout and test": layout} if layout > inputs else {"inputs of a step": inputs}
    return {"downloads": missing, "images": images, **passing}


def require_disk(settings: Settings, plan: Plan, engine: Engine, store: Store) -> None:
    """Raise UserError if the build will not fit, with what is needed and where."""
    need = need_bytes(plan, engine, store)
    total = sum(need.values()) + _RESERVE_BYTES
    places = {settings.home, engine.data_root() or settings.home}
    free = min(host.disk_free(_existing(place)) for place in places)
    if free < total:
        parts = ", ".join(f"{name} {size / 1e9:.1f} GB" for name, size in need.items())
        raise UserError(
            f"the build needs {total / 1e9:.1f} GB of disk ({parts}), {free / 1e9:.1f} GB are free",
            hint="free some space, `inv gc`, or set KILN_HOME to a folder on another disk",
            source=str(settings.home),
        )


def _existing(path: Path) -> Path:
    while not path.exists():
        path = path.parent
    return path
