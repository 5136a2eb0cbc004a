"""Every kernel module of the set is there, holds code for the GPU, and loads with the JIT off and no nvcc on PATH."""

from __future__ import annotations

from typing import Any

import pytest
from testinfra.host import Host

from tests.image.conftest import SITE, TOOLS

AOT = f"{SITE}/flashinfer/data/aot"

# A stand-in for the driver's library, which only a GPU node has: the toolkit's stub under the name the loader asks for.
_LOAD = f"""
import json, os, shutil, ctypes, pathlib
ctypes.CDLL("/usr/local/cuda/lib64/stubs/libcuda.so", mode=ctypes.RTLD_GLOBAL)
import torch, tvm_ffi
failed = {{}}
for path in sorted(pathlib.Path("{AOT}").glob("*/*.so")):
    try:
        tvm_ffi.load_module(str(path))
    except Exception as error:
        failed[path.stem] = str(error)[:300]
print(json.dumps([shutil.which("nvcc"), failed]))
"""
_SPEC = """
import json, flashinfer.page
module = flashinfer.page.get_page_module()
print(json.dumps(str(type(module))))
"""


@pytest.fixture(scope="module")
def shared_objects(host: Host) -> list[str]:
    return sorted(host.check_output(f"find {AOT} -name '*.so'").split())


def test_the_set_is_complete_and_nothing_else_is_there(shared_objects: list[str], plan: dict[str, Any]) -> None:
    assert shared_objects == sorted(f"{AOT}/{name}/{name}.so" for name in plan["modules"])


def test_every_module_loads_with_jit_off_and_no_nvcc(python: Any) -> None:
    assert python(_LOAD) == [None, {}]


def test_flashinfer_s_own_loader_takes_a_module_from_the_image(python: Any) -> None:
    assert "Module" in python(_SPEC)


def test_every_module_with_device_code_holds_it_for_the_gpu_alone(
    host: Host, shared_objects: list[str], plan: dict[str, Any]
) -> None:
    listing = f'for so in {" ".join(shared_objects)}; do echo "== $so"; {TOOLS}/cuobjdump $so; done'
    done = host.run(f"({listing}) | grep -E '^(==|arch =)'")
    targets: dict[str, set[str]] = {}
    for line in done.stdout.splitlines():
        if line.startswith("== /"):
            targets[line[3:]] = set()
        elif line.startswith("arch = "):
            targets[next(reversed(targets))].add(line.removeprefix("arch = sm_"))
    allowed = {plan["arch"]["flashinfer"].replace(".", ""), plan["arch"]["cmake"]}
    assert {so: found for so, found in targets.items() if found - allowed} == {}
    assert [so for so, found in targets.items() if not found] == [], "no device code at all"
