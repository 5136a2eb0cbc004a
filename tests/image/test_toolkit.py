"""One toolkit: linked, complete, and able to compile as any user."""

from __future__ import annotations

from typing import Any

import pytest
from testinfra.host import Host


def find(host: Host, expression: str) -> list[str]:
    """Regular files of the image that match, without the kernel's own trees."""
    done = host.run(
        f"find / \\( -path /proc -o -path /sys -o -path /dev -o -path /run \\) -prune -o -type f {expression} -print"
    )
    return sorted(done.stdout.split())


def test_there_is_one_nvcc_and_it_is_the_stack_s(host: Host, plan: dict[str, Any]) -> None:
    assert len(find(host, "-name nvcc")) == 1
    assert f"release {plan.get('toolkit', plan['cuda'])}," in host.check_output("nvcc --version")


def test_usr_local_cuda_is_the_environment_s_own_tree(host: Host) -> None:
    assert host.check_output("readlink -f /usr/local/cuda").startswith("/opt/kiln/lib/python3.11/site-packages/nvidia/")


@pytest.mark.parametrize("header", ["cuda.h", "cuda_runtime.h", "cccl/cub/cub.cuh", "cccl/cuda/std/type_traits"])
def test_headers_are_complete(host: Host, header: str) -> None:
    plain = header.removeprefix("cccl/")
    assert any(host.file(f"/usr/local/cuda/include/{name}").exists for name in (header, plain))


def test_any_user_can_compile_for_the_gpu(host: Host, plan: dict[str, Any]) -> None:
    sm = plan["arch"]["cmake"]
    source = "__global__ void twice(float* x) { x[threadIdx.x] *= 2; }"
    folder = "mkdir -p /cache/tmp && cd /cache/tmp"
    compile_it = f"TMPDIR=/cache/tmp timeout 120 nvcc -cubin -arch=sm_{sm} t.cu"
    done = host.run(f"{folder} && printf %s > t.cu && {compile_it}", source)
    assert done.rc == 0, done.stderr


def test_libcuda_s_stub_is_for_the_linker_alone(host: Host) -> None:
    assert host.file("/usr/local/cuda/lib64/stubs/libcuda.so").exists
    assert "libcuda.so.1" not in host.check_output("/sbin/ldconfig -p")


def test_there_is_exactly_one_nccl(host: Host, plan: dict[str, Any]) -> None:
    has_cuda_torch = not plan["pins"]["torch"].endswith("+cpu")
    assert len(find(host, "-name 'libnccl.so*'")) == (1 if has_cuda_torch else 0)
