"""There is room for the image where the engine keeps images."""

from __future__ import annotations

from collections.abc import Iterator

from kiln.checks.each import node
from kiln.facts import Facts, known
from kiln.topologies import Topology
from kiln.verdict import Finding, failed, not_run, passed


def judge(facts: Facts, topology: Topology) -> Iterator[Finding]:
    """Judge before the pull: it needs the compressed layers, the unpacked ones, and room for the one in hand."""
    here = node(facts)
    named = facts.image.size_bytes if facts.image else None
    size = named or here.image_size_bytes
    if not here.containers_wanted or (size is None and facts.image is None):
        yield not_run("no image is to be pulled", required=False)
        return
    wanted = known(size, "the image's size") * topology.disk_min_images
    disk = next((one for one in known(here.disks, "the disks", here.why("engine")) if one.purpose == "images"), None)
    place = known(disk, "where images are kept")
    free = known(place.free_bytes, f"the free space of {place.path}", f"it is {place.kind}")
    said = f"{free / 1e9:.0f} GB free at {place.mount}, {wanted / 1e9:.0f} GB are wanted"
    if free >= wanted:
        yield passed(said, free_gb=round(free / 1e9, 1))
    else:
        yield failed(
            said,
            cause=f"the image and its unpacked layers need {topology.disk_min_images:.0f} times its size",
            cure="remove images that are not used (docker image prune), or move Docker's data-root to a larger disk",
            free_gb=round(free / 1e9, 1),
        )
