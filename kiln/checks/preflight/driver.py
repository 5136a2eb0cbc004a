"""The driver answers, and its parts are of one version."""

from __future__ import annotations

from collections.abc import Iterator

from kiln.checks.each import node
from kiln.facts import Facts, known
from kiln.topologies import Topology
from kiln.verdict import Finding, failed, passed


def judge(facts: Facts, topology: Topology) -> Iterator[Finding]:
    """Judge: kernel module, NVML and libcuda of two versions make every CUDA program fail with error 803 or 804."""
    here = node(facts)
    if here.nvidia is None:
        yield _silent(here.why("nvml", "nvidia-smi"), loaded=here.module is not None)
        return
    module = here.module.version if here.module else None
    found = {"libcuda": here.nvidia.libcuda, "NVML": here.nvidia.driver, "the kernel module": module}
    versions = {
        name: known(version, f"the version of {name}", here.why("libcuda", "driver/nvidia"))
        for name, version in found.items()
    }
    if len({*versions.values()}) == 1:
        yield passed(f"driver {here.nvidia.driver}, CUDA {here.nvidia.cuda or 'not known'}")
        return
    yield failed(
        "; ".join(f"{name} is {version}" for name, version in sorted(versions.items())),
        cause="the driver was upgraded and the old module is still loaded, or libcuda comes from another package",
        cure="reboot the node; if it stays, remove the second package that brings libcuda",
    )


def _silent(why: str, *, loaded: bool) -> Finding:
    if loaded:
        cause, cure = "the kernel module is loaded, its libraries do not answer", "reinstall the driver, reboot"
    else:
        cause, cure = "no driver is loaded", "install NVIDIA's driver with the open kernel module, reboot"
    return failed("the driver does not answer", cause=f"{cause} ({why})" if why else cause, cure=cure)
