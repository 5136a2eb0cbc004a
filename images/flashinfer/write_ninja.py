#!/usr/bin/env python3
"""Write FlashInfer's own build.ninja for chosen modules; print what there is to build as JSON.

Runs with an unpacked FlashInfer source on PYTHONPATH and its FLASHINFER_* variables set. Needs no GPU and no network.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

# gen_all_modules takes its arguments by position. Its defaults cover the head sizes and types that SGLang asks for.
ORDER = (
    "f16_dtype", "f8_dtype", "fa2_head_dim", "fa3_head_dim", "use_sliding_window", "use_logits_soft_cap",
    "sm_capabilities", "add_comm", "add_gemma", "add_oai_oss", "add_moe", "add_act", "add_misc", "add_xqa",
)  # fmt: skip
# Modules that SGLang calls on every GPU, and FlashInfer's enumeration leaves out or makes for SM100 only.
EXTRA_GENERATORS = (
    ("flashinfer.jit.fp8_quantization", "gen_mxfp8_quantization_sm100_module"),
    ("flashinfer.jit.dsv3_optimizations", "gen_dsv3_fused_routing_module"),
)


class Unavailable:
    """Stands for the modules of a generator that failed: a build that does not want them need not care."""

    def __init__(self, generator: str, reason: str) -> None:
        self.name = f"!{generator}"
        self.reason = reason

    def __iter__(self) -> Iterator[Unavailable]:
        yield self


def tolerant(name: str, generate: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a generator so that its failure becomes an `Unavailable`."""

    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return generate(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - generators fail in many ways: a missing header, tool or package
            return Unavailable(name, f"{type(error).__name__}: {error}".splitlines()[0])

    return call


def guard_generators(*modules: Any) -> None:
    """Guard every generator that these modules use; FlashInfer's enumeration itself stays as it is."""
    for module in modules:
        for name, value in sorted(vars(module).items()):
            if name.startswith("gen_") and "_module" in name and name != "gen_all_modules":
                setattr(module, name, tolerant(name, value))


def prepare_torch() -> None:
    """Tell a CPU build of torch where CUDA is: its cpp_extension looks only if torch itself has CUDA."""
    import torch.utils.cpp_extension as extension

    if extension.CUDA_HOME is None:
        extension.CUDA_HOME = os.environ["CUDA_HOME"]


def enumerate_specs() -> list[Any]:
    """Return FlashInfer's own list for the arch in FLASHINFER_CUDA_ARCH_LIST."""
    prepare_torch()
    import flashinfer.jit.comm
    from flashinfer import aot

    guard_generators(aot, flashinfer.jit.comm)
    config = {"sm_capabilities": aot.detect_sm_capabilities(), **aot.get_default_config()}
    extra = [getattr(importlib.import_module(module), name)() for module, name in EXTRA_GENERATORS]
    return [*aot.gen_all_modules(*(config[key] for key in ORDER)), *extra]


def chosen(specs: list[Any], wanted: list[str] | None) -> list[Any]:
    """Return the wanted specs in their order, or all by name; name what cannot be made and why."""
    failed = [spec for spec in specs if isinstance(spec, Unavailable)]
    made = {spec.name: spec for spec in specs if not isinstance(spec, Unavailable)}
    names = sorted(made) if wanted is None else list(dict.fromkeys(wanted))
    missing = [name for name in names if name not in made]
    if missing or (wanted is None and failed):
        reasons = "".join(f"\n  {spec.name[1:]}: {spec.reason}" for spec in failed)
        raise SystemExit(
            f"write_ninja: this FlashInfer cannot make {', '.join(missing) or 'every module'} for "
            f"{os.environ['FLASHINFER_CUDA_ARCH_LIST']}" + (f"; generators that failed:{reasons}" if failed else "")
        )
    return [made[name] for name in names]


def unsorted_units(sources: list[Path]) -> list[str]:
    """Return the generated sources that are out of order: a folder's order would become the link's."""
    generated = [str(source) for source in sources if source.name.endswith(".generated.cu")]
    return [left for left, right in itertools.pairwise(generated) if left > right]


def describe(spec: Any, write: bool) -> dict[str, Any]:
    """Write the module's build.ninja and say what it compiles."""
    if write and unsorted_units(spec.sources):
        raise SystemExit(
            f"write_ninja: {spec.name} takes its generated units as the folder lists them; sort them (a patch)"
        )
    if write:
        spec.write_ninja()
    sources = sorted(str(source) for source in spec.sources)
    return {"name": spec.name, "ninja": str(spec.ninja_path), "library": str(spec.jit_library_path), "sources": sources}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--modules", type=Path, help="file of module names; without it only list all modules")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    wanted = None if args.modules is None else args.modules.read_text(encoding="utf-8").split()
    specs = chosen(enumerate_specs(), wanted)
    described = [describe(spec, wanted is not None) for spec in specs]
    args.out.write_text(json.dumps(described, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
