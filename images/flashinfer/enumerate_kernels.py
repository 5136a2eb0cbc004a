#!/usr/bin/env python3
"""Write locks/kernels/flashinfer-VERSION-GPU.toml: every module that FlashInfer makes for a GPU, and what it costs.

Runs where build_wheel.py runs: with torch and what FlashInfer imports, beside a complete CUDA toolkit.

    python images/flashinfer/enumerate_kernels.py --source flashinfer_python-0.7.2.tar.gz --gpu sm120 --arch 12.0f \\
        --cuda /usr/local/cuda --measured build.log --out locks/kernels

Costs come from the `KILN cost` lines of a cold build's log, else from the table as it was, else from a rule below.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import build_wheel

# CPU seconds and peak MB of one unit, by module name; the first match counts. Measured on single units of each family
# with nvcc 13.0 on two otherwise idle cores, August to November 2026; heavy load about doubles them.
RULES: tuple[tuple[str, float, int], ...] = (
    (r"fused_moe_.*", 110, 7700),
    (r"gemm_sm90|fp8_blockscale.*|alphamoe.*", 90, 5600),
    (r"(fp4|mxfp8|nvfp4)_gemm_cutlass.*", 85, 6300),
    (r"gemm_sm120|cute_sm12x_gemm|gemm", 60, 3000),
    (r"batch_prefill_.*_head_dim_qk_(192|256)_.*", 30, 700),
    (r"batch_prefill_.*", 18, 500),
    (r"batch_(decode|attention|mla)_.*", 8, 530),
    (r"xqa.*", 7, 400),
    (r"trtllm_comm", 220, 2200),
    (r"sampling|cake_sampling.*", 44, 950),
    (r"topk", 600, 5600),
    (r".*sparse_mla.*", 60, 2000),
    (r"monomoe|bgmv_moe.*|cake_bgmv_moe.*|selective_state_update.*|mhc", 40, 1500),
    (r"norm|rope", 25, 950),
    (r"page|quantization", 18, 850),
    (r"(fp4|mxfp8)_quantization_.*", 18, 1200),
    (r"\w+_and_mul|fp4_kv.*|dsv3_fused_routing", 8, 600),
    (r".*", 12, 600),
)
# ccache alone stays below this, a compiler does not.
HIT_MB = 64


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    name: str
    units: int
    core_s: float
    peak_mb: int
    measured: bool

    def __str__(self) -> str:
        known = ", measured = true" if self.measured else ""
        cost = f"core_s = {self.core_s:.0f}, peak_mb = {self.peak_mb}{known}"
        return f'    {{name = "{self.name}", units = {self.units}, {cost}}},'


def read_measured(files: Iterable[Path]) -> dict[str, dict[str, tuple[float, int]]]:
    """Return CPU seconds and peak MB by module and object file, of its dearest run; cache hits do not count."""
    found: dict[str, dict[str, tuple[float, int]]] = {}
    for line in (line for file in files for line in file.read_text(encoding="utf-8").splitlines()):
        _, _, cost = line.partition("KILN cost ")
        if not cost:
            continue
        unit = json.loads(cost)
        output = Path(unit["output"])
        if unit["status"] == 0 and output.suffix == ".o" and unit["peak_mb"] >= HIT_MB:
            objects = found.setdefault(output.parent.name, {})
            objects[output.name] = max(objects.get(output.name, (0.0, 0)), (unit["core_s"], unit["peak_mb"]))
    return found


def read_table(file: Path) -> dict[str, Row]:
    """Return the measured rows of a table that exists."""
    if not file.is_file():
        return {}
    rows = tomllib.loads(file.read_text(encoding="utf-8"))["modules"]
    return {row["name"]: Row(**row) for row in rows if row.get("measured")}


def row(name: str, units: int, objects: Mapping[str, tuple[float, int]], before: Row | None) -> Row:
    """Return a module's line: measured now, measured before, or by rule."""
    if len(objects) == units:
        return Row(
            name, units, sum(cost[0] for cost in objects.values()), max(cost[1] for cost in objects.values()), True
        )
    if before is not None and before.units == units:
        return before
    core_s, peak_mb = next((core_s, peak_mb) for pattern, core_s, peak_mb in RULES if re.fullmatch(pattern, name))
    return Row(name, units, units * core_s, peak_mb, False)


def enumerate_modules(args: argparse.Namespace) -> dict[str, int]:
    """Return every module's number of units, as FlashInfer itself lists them."""
    paths = build_wheel.Paths(args.work)
    build_wheel.unpack(args.source, paths)
    build_wheel.link_data(paths)
    out = paths.build / "modules.json"
    command = [sys.executable, str(build_wheel.HERE / "write_ninja.py"), "--out", str(out)]
    subprocess.run(command, env=build_wheel.compile_environment(args, paths), check=True)
    return {entry["name"]: len(entry["sources"]) for entry in json.loads(out.read_text(encoding="utf-8"))}


def source_version(args: argparse.Namespace) -> str:
    text = (build_wheel.Paths(args.work).source / "flashinfer" / "_build_meta.py").read_text(encoding="utf-8")
    return re.findall(r'^__version__ = "([^"]+)"', text, flags=re.MULTILINE)[0]


def write(args: argparse.Namespace) -> Path:
    """Write the table and return its path."""
    modules = enumerate_modules(args)
    version = source_version(args)
    file: Path = args.out / f"flashinfer-{version}-{args.gpu}.toml"
    measured, before = read_measured(args.measured), read_table(file)
    rows = [row(name, units, measured.get(name, {}), before.get(name)) for name, units in sorted(modules.items())]
    head = [
        "# Written by images/flashinfer/enumerate_kernels.py. core_s: CPU seconds of all units; peak_mb: of one unit.",
        f'flashinfer = "{version}"',
        f'gpu = "{args.gpu}"',
        f'arch = "{args.arch}"',
        "modules = [",
    ]
    file.write_text("\n".join([*head, *map(str, rows), "]", ""]), encoding="utf-8")
    return file


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--gpu", required=True)
    parser.add_argument("--arch", required=True)
    parser.add_argument("--measured", type=Path, action="append", default=[])
    parser.add_argument("--cuda", type=Path, default=Path("/usr/local/cuda"))
    parser.add_argument("--work", type=Path, default=Path("/run/kiln/work"))
    parser.add_argument("--out", type=Path, required=True, help="folder of the tables")
    print(write(parser.parse_args(namespace=argparse.Namespace(ccache=None))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
