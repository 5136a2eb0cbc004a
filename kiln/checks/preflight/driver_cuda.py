"""The driver is new enough for the image's CUDA."""

from __future__ import annotations

from collections.abc import Iterator

from packaging.version import Version

from kiln.checks.each import nvidia
from kiln.facts import Facts, known
from kiln.topologies import Topology
from kiln.verdict import Finding, failed, not_run, passed, warned


def judge(facts: Facts, topology: Topology) -> Iterator[Finding]:
    """Judge before the pull: most images that fail on a fresh node need a newer driver."""
    if facts.image is None:
        yield not_run("no image was named", required=False)
        return
    wanted = known(facts.image.cuda, "the image's CUDA", "it has no label kiln.cuda")
    driver = nvidia(facts)
    has = known(driver.cuda, "the driver's CUDA")
    said = f"driver {driver.driver or 'of unknown version'} runs CUDA {has}, the image has {wanted}"
    if Version(has) >= Version(wanted):
        yield passed(said)
    elif Version(has).major == Version(wanted).major:
        yield warned(
            said,
            cause="programs run by minor version compatibility, but PTX of the image's compiler is refused",
            cure=f"install a driver that runs CUDA {wanted}",
        )
    else:
        yield failed(
            said,
            cause="the driver is too old for the image: CUDA would end with error 803 or 804",
            cure=f"install a driver that runs CUDA {wanted}, or take an image for CUDA {has}",
        )
