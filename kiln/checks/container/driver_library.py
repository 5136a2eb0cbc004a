"""The libcuda that programs map is the running driver's own."""

from __future__ import annotations

from collections.abc import Iterator

from kiln.facts import Facts, known
from kiln.topologies import Topology
from kiln.verdict import Finding, failed, passed


def judge(facts: Facts, topology: Topology) -> Iterator[Finding]:
    """Judge file and version: a compat library in the image is older or newer than the kernel module (case D22)."""
    here = known(facts.container, "the container")
    library = known(here.libcuda, "libcuda.so.1", here.fault("libraries") or "no program can load it")
    driver = known(here.driver, "the version of the kernel module")
    path = known(library.path, "the file of libcuda")
    if "compat" in path:
        yield failed(
            f"programs map {path}",
            cause="the image brings a libcuda of its own, which hides the driver's",
            cure="remove the compat folder from the image, or from LD_LIBRARY_PATH and /etc/ld.so.conf.d",
        )
    elif known(library.version, "the version of libcuda") != driver:
        yield failed(
            f"libcuda is {library.version}, the kernel module {driver}",
            cause="the driver was upgraded and its module not loaded anew, or a CDI file names an old library",
            cure="reboot the node; write the CDI file again: nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml",
        )
    else:
        yield passed(f"libcuda {library.version}, CUDA {library.cuda or 'not known'}, of the running driver")
