"""Checks of what programs get in the container, over made facts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kiln import checks, topologies
from kiln.facts import Facts
from kiln.settings import ROOT
from kiln.verdict import Finding, Verdict
from tests import gpufacts

pytestmark = pytest.mark.unit

TOPOLOGY = topologies.load_all(ROOT)["rtx-pro-6000-8x-direct"]
CHECKS = [check for check in checks.load_all() if check.phase == "container"]


def judge(name: str, change: Callable[[dict[str, Any]], object] = lambda made: None) -> list[Finding]:
    made = gpufacts.container()
    change(made)
    check = next(one for one in CHECKS if one.name == f"container/{name}")
    return list(check.run(gpufacts.facts(container=made), TOPOLOGY))


def only(findings: list[Finding]) -> Finding:
    assert len(findings) == 1, findings
    return findings[0]


def fault(source: str, error: str) -> Callable[[dict[str, Any]], object]:
    return lambda made: made.update(faults=[{"source": source, "error": error}])


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_a_good_container_passes(check: checks.Check) -> None:
    found = check.run(gpufacts.facts(), TOPOLOGY)
    assert {one.verdict for one in found} == {Verdict.PASS}, found


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_without_a_container_nothing_passes(check: checks.Check) -> None:
    assert [one.verdict for one in check.run(Facts(), TOPOLOGY)] == [Verdict.NOT_RUN]


@pytest.mark.parametrize(
    ("error", "cause", "cure"),
    [
        ("cuInit: error 804: forward compatibility was attempted on non supported HW", "libcuda is not of", "reboot"),
        ("cuInit: error 802: system not yet initialized", "the NVLink switches are not set up", "start nvidia-fabric"),
        ("cuInit: error 100: no CUDA-capable device is detected", "the container was given no GPU", "start it with"),
        ("cuInit: error 999: unknown error", "driver, toolkit and image do not fit", "read the node's kernel log"),
    ],
)
def test_a_driver_that_does_not_start_fails_with_its_cause(error: str, cause: str, cure: str) -> None:
    found = only(judge("gpus", fault("CUDA driver", error)))
    assert (found.verdict, found.message) == (Verdict.FAIL, f"CUDA does not start: {error}")
    assert found.cause.startswith(cause)
    assert found.cure.startswith(cure)


def test_a_hidden_gpu_fails() -> None:
    found = judge("gpus", lambda made: [made["gpus"].pop(), made["torch"]["gpus"].pop()])
    assert only(found).message == "programs see 7 GPUs, 8 are wanted"


def test_a_torch_of_another_kind_fails() -> None:
    found = judge("gpus", lambda made: made["torch"].update(gpus=[]))
    assert found[0].message == "the driver shows 8 GPUs, torch 2.14.1 sees 0"


def test_a_gpu_of_another_capability_fails() -> None:
    found = judge("gpus", lambda made: made["gpus"][2].update(compute_capability="9.0", name="NVIDIA H200"))
    assert (found[0].subject, found[0].message) == (
        "GPU 2", "NVIDIA H200 has compute capability 9.0, the topology has 12.0",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"path": "/opt/cuda/compat/libcuda.so.580.95.05"}, "programs map /opt/cuda/compat/libcuda.so.580.95.05"),
        ({"version": "570.86.10"}, "libcuda is 570.86.10, the kernel module 580.159.04"),
    ],
)  # fmt: skip
def test_a_libcuda_that_is_not_the_drivers_fails(change: dict[str, str], message: str) -> None:
    found = only(judge("driver-library", lambda made: made["libcuda"].update(change)))
    assert (found.verdict, found.message) == (Verdict.FAIL, message)


@pytest.mark.parametrize(
    ("archs", "verdict"),
    [
        (["sm_90", "sm_120"], "PASS"),
        (["sm_120a"], "PASS"),
        (["sm_120f"], "PASS"),
        (["compute_90"], "PASS"),
        (["sm_90", "compute_90a"], "FAIL"),
        (["sm_121"], "FAIL"),
        (["sm_121a"], "FAIL"),
        ([], "FAIL"),
    ],
)
def test_torch_needs_kernels_that_run_on_the_gpu(archs: list[str], verdict: str) -> None:
    assert only(judge("torch-kernels", lambda made: made["torch"].update(archs=archs))).verdict == verdict


def test_two_mapped_nccl_fail() -> None:
    other = {"path": "/usr/lib/libnccl.so.2.28.3", "version": "2.28.3"}
    found = only(judge("nccl", lambda made: made["nccl"].append(other)))
    assert found.verdict is Verdict.FAIL
    assert found.message == "2 NCCL libraries: 2.30.7 /opt/kiln/lib/libnccl.so.2, 2.28.3 /usr/lib/libnccl.so.2.28.3"


def test_no_nccl_is_not_run() -> None:
    assert only(judge("nccl", lambda made: made.update(nccl=[]))).verdict is Verdict.NOT_RUN


def test_flashinfer_packages_of_different_versions_fail() -> None:
    found = only(judge("flashinfer", lambda made: made["packages"].update({"flashinfer-cubin": "0.7.1"})))
    assert found.message == "versions differ: flashinfer-python 0.7.2+kiln, flashinfer-cubin 0.7.1"


def test_flashinfer_that_compiles_for_another_gpu_fails() -> None:
    found = only(judge("flashinfer", lambda made: made["flashinfer"].update(archs=["9.0a"])))
    assert found.message == "FlashInfer 0.7.2+kiln compiles for 9.0a, the GPUs are 12.0"


def test_flashinfer_that_has_to_guess_warns() -> None:
    assert only(judge("flashinfer", lambda made: made.update(environment={}))).verdict is Verdict.WARN


def test_flashinfer_that_cannot_be_imported_fails_with_its_words() -> None:
    def change(made: dict[str, Any]) -> None:
        made.update(flashinfer=None, faults=[{"source": "libraries", "error": "No module named 'tvm_ffi'"}])

    found = only(judge("flashinfer", change))
    assert found.verdict is Verdict.FAIL
    assert found.message == "FlashInfer 0.7.2+kiln cannot be imported: No module named 'tvm_ffi'"


def test_a_python_without_flashinfer_is_not_run_and_not_needed() -> None:
    found = only(judge("flashinfer", lambda made: made.update(flashinfer=None, packages={})))
    assert (found.verdict, found.required) == (Verdict.NOT_RUN, False)


def test_the_shm_that_an_engine_gives_by_itself_fails() -> None:
    found = only(judge("shm", lambda made: made["shm"].update(total_mib=64.0, free_mib=64.0)))
    assert (found.verdict, found.message) == (Verdict.FAIL, "0.06 GiB free in /dev/shm, 16 are wanted")
    assert found.cure == "start the container with --ipc host, or with --shm-size 32g"


def test_low_limits_warn() -> None:
    found = judge("process-limits", lambda made: made["limits"].update(memlock_bytes=67108864, nofile=1024))
    assert [one.message for one in found] == [
        "64 MiB of locked memory at most", "1024 open files at most, 65536 are wanted",
    ]  # fmt: skip
    assert {one.verdict for one in found} == {Verdict.WARN}


def test_a_cache_that_cannot_be_written_fails_and_one_on_a_network_warns() -> None:
    closed = judge("cache", lambda made: made["cache"].update(writable=False, error="[Errno 13] Permission denied"))
    shared = judge("cache", lambda made: made["cache"].update(kind="nfs4"))
    assert (only(closed).verdict, only(shared).verdict) == (Verdict.FAIL, Verdict.WARN)
    assert only(closed).message == "no file can be made in /root/.cache/flashinfer: [Errno 13] Permission denied"


def test_a_ptxas_that_does_not_know_the_gpu_fails() -> None:
    old = {"path": "/opt/triton/bin/ptxas", "version": "12.4.99", "archs": ["sm_90", "sm_90a"]}
    found = only(judge("compilers", lambda made: made["compilers"].append(old)))
    assert (found.subject, found.message) == ("/opt/triton/bin/ptxas", "ptxas 12.4.99 does not know sm_120")
    assert found.cure == "set TRITON_PTXAS_PATH to the ptxas of CUDA 13"
    assert found.required is False


def test_two_toolkits_warn() -> None:
    other = {"path": "/usr/bin/nvcc", "version": "12.9.86", "archs": ["sm_120"]}
    assert only(judge("compilers", lambda made: made["compilers"].append(other))).verdict is Verdict.WARN


def test_an_image_without_compilers_is_not_run() -> None:
    assert only(judge("compilers", lambda made: made.update(compilers=[]))).verdict is Verdict.NOT_RUN
