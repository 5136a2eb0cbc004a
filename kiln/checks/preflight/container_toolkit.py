"""Docker runs, and NVIDIA's container toolkit is there."""

from __future__ import annotations

from collections.abc import Iterator

from kiln.checks.each import node
from kiln.facts import Facts, known
from kiln.topologies import Topology
from kiln.verdict import Finding, failed, not_run, passed


def judge(facts: Facts, topology: Topology) -> Iterator[Finding]:
    """Judge: without the toolkit `docker run --gpus all` fails after the image was pulled."""
    here = node(facts)
    if not here.containers_wanted:
        yield not_run("no container is to be run", required=False)
        return
    engine = known(here.containers, "the container engine", here.why("engine"))
    if engine.docker is None:
        yield failed(
            "Docker does not answer",
            cause=here.why("docker") or "it is not installed",
            cure="install Docker and start it; the user of this run needs the right to use it",
        )
    if engine.toolkit is None and not engine.hook:
        yield failed(
            "NVIDIA's container toolkit is not there",
            cause=here.why("nvidia-ctk") or "it is not installed",
            cure="install nvidia-container-toolkit, then nvidia-ctk runtime configure --runtime=docker; restart Docker",
        )
    elif engine.docker is not None:
        yield passed(f"Docker {engine.docker}, container toolkit {engine.toolkit or 'of unknown version'}")
