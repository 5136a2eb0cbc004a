"""CDI files list all GPUs, for the driver that runs."""

from __future__ import annotations

from collections.abc import Iterator

from kiln.checks.each import node, nvidia
from kiln.facts import Facts, known
from kiln.facts.node import CdiSpec
from kiln.topologies import Topology
from kiln.verdict import Finding, failed, not_run, passed, warned

_WRITE = "nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml"


def judge(facts: Facts, topology: Topology) -> Iterator[Finding]:
    """Judge: newer toolkits and engines start containers by these files (container-toolkit issues 1239 and 1895)."""
    here = node(facts)
    if not here.containers_wanted:
        yield not_run("no container is to be run", required=False)
        return
    engine = known(here.containers, "the container engine", here.why("engine"))
    if not engine.cdi:
        yield _missing(hook=engine.hook or "nvidia" in (engine.runtimes or ()))
        return
    driver = known(nvidia(facts).driver, "the driver's version")
    bad = [one for spec in engine.cdi for one in _of(spec, driver, len(nvidia(facts).gpus))]
    yield from bad or [passed(f"{engine.cdi[0].path}: {engine.cdi[0].gpus} GPUs, driver {driver}")]


def _missing(*, hook: bool) -> Finding:
    if hook:
        cause = "never written; the toolkit's runtime hook does without, newer engines do not"
        return warned("there is no CDI file", cause=cause, cure=_WRITE)
    cause = "never written, and no runtime hook is installed: `--gpus all` finds no GPU"
    return failed("there is no CDI file", cause=cause, cure=_WRITE)


def _of(spec: CdiSpec, driver: str, gpus: int) -> Iterator[Finding]:
    if known(spec.driver, f"the driver in {spec.path}") != driver:
        cause = "the driver was upgraded after the file was written: containers are given files that are gone"
        yield failed(f"driver {spec.driver}, {driver} runs", spec.path, cause=cause, cure=_WRITE)
    if spec.gpus != gpus:
        cause = "the file was written while a GPU was missing, or for another node"
        yield failed(f"{spec.gpus} GPUs, the driver has {gpus}", spec.path, cause=cause, cure=_WRITE)
