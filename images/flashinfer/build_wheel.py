#!/usr/bin/env python3
"""Build a FlashInfer wheel that carries compiled kernels in flashinfer/data/aot.

Runs inside the image without network and without a GPU, with what FlashInfer's build and import need in the environment
(torch, apache-tvm-ffi, ninja, setuptools, packaging, requests, tqdm, tabulate, click, einops, nvidia-ml-py).
The wheel is a function of the arguments and the toolchain: fixed absolute paths, seeded compiler, stripped libraries,
sorted and dated archive. Lines for the caller start with KILN:

    KILN kernels total=<modules> units=<translation units>
    KILN unit <k> <n>
    KILN cost {"output": <object file>, "core_s": …, "wall_s": …, "peak_mb": …, "status": …}
    KILN module <k> <n> <name> <seconds, summed over its units>
    KILN ccache hits=<k> misses=<k>
    KILN pack
    KILN wheel <file name> <size> <sha256>
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pack_wheel

HERE = Path(__file__).resolve().parent
GIB = 1 << 30
# One heavy CUTLASS unit peaks at 7.6 GiB; 4 GiB stay for the rest of the machine.
UNIT_BYTES = 8 * GIB
RESERVE_BYTES = 4 * GIB
DATA_LINKS = ("csrc", "include", "3rdparty/cutlass", "3rdparty/spdlog", "3rdparty/cccl")
KILLED = re.compile(r"died due to signal 9|\bKilled\b|\[code=137\]|Killed signal terminated program")
COUNTER = re.compile(r"\b(?:bad|could|unsupported|internal|no|missing|disabled|preprocessor|multiple)_\w+")
LINKED = re.compile(r"-o \S*/cached_ops/(?P<name>[^/ ]+)/(?P=name)\.so$")


class BuildError(Exception):
    """The wheel cannot be built; the message says what to do."""


@dataclass(frozen=True)
class Module:
    """One kernel library: its ninja file, the .so that comes out, and how many sources go in."""

    name: str
    ninja: Path
    library: Path
    units: int


@dataclass(frozen=True)
class Paths:
    """The fixed places of one build, all below `work`."""

    work: Path

    @property
    def source(self) -> Path:
        return self.work / "flashinfer"

    @property
    def workspace(self) -> Path:
        return self.work / "workspace"

    @property
    def build(self) -> Path:
        return self.work / "build"


def unpack(source: Path, paths: Paths) -> None:
    """Put the source at its fixed place, which is emptied first."""
    shutil.rmtree(paths.work, ignore_errors=True)
    for folder in (paths.workspace, paths.build):
        folder.mkdir(parents=True)
    if source.is_dir():
        shutil.copytree(source, paths.build / "source", symlinks=True)
    else:
        with tarfile.open(source) as archive:
            archive.extractall(paths.build / "source")
    tops = [backend.parent for backend in sorted(paths.build.glob("source/**/build_backend.py"))[:1]]
    if not tops or not (tops[0] / "flashinfer" / "aot.py").is_file():
        raise BuildError(f"{source.name} is not a FlashInfer source: no build_backend.py beside flashinfer/aot.py")
    tops[0].rename(paths.source)


def set_local_version(local: str, paths: Paths) -> str:
    """Write `local` into the source's version and return the whole version."""
    meta = paths.source / "flashinfer" / "_build_meta.py"
    text = meta.read_text(encoding="utf-8")
    match = re.search(r'^__version__ = "([^"+]+)"$', text, flags=re.MULTILINE)
    if match is None:
        raise BuildError(f"{meta}: no plain __version__")
    version = f"{match[1]}+{local}"
    meta.write_text(text.replace(match[0], f'__version__ = "{version}"'), encoding="utf-8")
    return version


def link_data(paths: Paths) -> None:
    """Give the source tree the folders that an installed package has below flashinfer/data."""
    data = paths.source / "flashinfer" / "data"
    data.mkdir(exist_ok=True)
    for target in DATA_LINKS:
        if (paths.source / target).is_dir():
            (data / Path(target).name).symlink_to(Path("../..") / target)


def memory_limit() -> int:
    """Return the memory this process may use, in bytes: the smallest of the machine's and its cgroups' limits."""
    files = cgroup_limit_files(Path("/proc/self/cgroup").read_text(encoding="utf-8"))
    texts = [file.read_text(encoding="utf-8").strip() for file in files if file.is_file()]
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([machine, *(int(text) for text in texts if text.isdigit())])


def cgroup_limit_files(membership: str, root: Path = Path("/sys/fs/cgroup")) -> Iterator[Path]:
    """Yield the files that may hold a memory limit (cgroup v1 and v2), from our own group up to the root."""
    for line in membership.splitlines():
        _, controllers, group = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        base, name = (root / "memory", "memory.limit_in_bytes") if controllers else (root, "memory.max")
        path = base / group.lstrip("/")
        for folder in (path, *path.parents):
            yield folder / name
            if folder == base:
                break


def default_jobs() -> int:
    """Return how many units fit beside each other, by processors and by memory."""
    by_memory = (memory_limit() - RESERVE_BYTES) // UNIT_BYTES
    return max(1, min(len(os.sched_getaffinity(0)), int(by_memory)))


def toolchain_id(cuda: Path) -> str:
    """Return a digest of the compilers, for ccache: nvcc alone does not change with cicc or ptxas."""
    digest = hashlib.sha256()
    for name in ("bin/nvcc", "bin/cudafe++", "bin/ptxas", "bin/fatbinary", "nvvm/bin/cicc"):
        digest.update((cuda / name).read_bytes())
    digest.update(subprocess.run(["c++", "-v"], capture_output=True, check=True).stderr)
    return digest.hexdigest()


def compile_environment(args: argparse.Namespace, paths: Paths) -> dict[str, str]:
    """Return the environment of spec generation and compilation."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("FLASHINFER_")}
    env.pop("CC", None), env.pop("CXX", None)
    env.update(
        CUDA_HOME=str(args.cuda),
        PATH=f"{Path(sys.executable).parent}:{args.cuda}/bin:{env.get('PATH', '/usr/bin:/bin')}",
        PYTHONPATH=str(paths.source),
        PYTHONHASHSEED="0",
        PYTHONDONTWRITEBYTECODE="1",
        HOME=str(paths.work),
        LC_ALL="C.UTF-8",
        FLASHINFER_CUDA_ARCH_LIST=args.arch,
        FLASHINFER_WORKSPACE_BASE=str(paths.workspace),
        FLASHINFER_NVCC_THREADS="1",
        FLASHINFER_EXTRA_CUDAFLAGS="--frandom-seed=0",
        FLASHINFER_EXTRA_CFLAGS="-frandom-seed=0",
        FLASHINFER_EXTRA_LDFLAGS="-Wl,--build-id=none -s",
    )
    # FLASHINFER_NVCC and CXX, not the newer launcher variables: FlashInfer 0.6.3 knows these too.
    # Depend mode saves nvcc's second preprocessing. Not for c++, whose -MMD leaves out all headers of -isystem.
    env.update(
        FLASHINFER_NVCC=f"{launcher(args, 'depend_mode=true')}{args.cuda}/bin/nvcc",
        CXX=f"{launcher(args, 'depend_mode=false')}c++",
    )
    if args.ccache:
        env.update(ccache_environment(args, paths))
    return env


def launcher(args: argparse.Namespace, mode: str) -> str:
    """Return what stands before a compiler's name."""
    words = [sys.executable, "-S", "-E", str(HERE / "measure_unit.py"), str(cost_log(Paths(args.work)))]
    if args.ccache:
        words += [str(args.ccache), mode]
    return "".join(f"{word} " for word in words)


def ccache_environment(args: argparse.Namespace, paths: Paths) -> dict[str, str]:
    """Return ccache's settings: own statistics for this run, and a compiler check that sees every part of nvcc."""
    return {
        "CCACHE_STATSLOG": str(statistics_log(paths)),
        "CCACHE_COMPILERCHECK": f"string:{toolchain_id(args.cuda)}",
        "CCACHE_SLOPPINESS": "include_file_mtime,include_file_ctime",
        "CCACHE_NOHASHDIR": "1",
    }


def statistics_log(paths: Paths) -> Path:
    return paths.build / "ccache.log"


def cost_log(paths: Paths) -> Path:
    return paths.build / "units.jsonl"


class CostLog:
    """What measure_unit.py wrote of each command: CPU seconds and peak memory, told as they come."""

    def __init__(self, file: Path) -> None:
        file.touch()
        self._lines = file.open(encoding="utf-8")

    def tell(self) -> None:
        """Print the lines that are new. One line is written in one piece."""
        for line in self._lines:
            print(f"KILN cost {line.rstrip()}", flush=True)


def read_names(file: Path) -> list[str]:
    """Return the module names of a file, each once and in its order: one a line, # starts a comment."""
    lines = (line.partition("#")[0].strip() for line in file.read_text(encoding="utf-8").splitlines())
    return [*dict.fromkeys(line for line in lines if line)]


def write_ninja(names: Sequence[str], paths: Paths, env: Mapping[str, str]) -> list[Module]:
    """Let FlashInfer write its ninja files for the modules."""
    wanted, out = paths.build / "modules.txt", paths.build / "modules.json"
    wanted.write_text("\n".join(names) + "\n", encoding="utf-8")
    command = [sys.executable, str(HERE / "write_ninja.py"), "--modules", str(wanted), "--out", str(out)]
    done = subprocess.run(command, env=env, stdin=subprocess.DEVNULL, check=False)
    if done.returncode != 0:
        raise BuildError("FlashInfer could not describe the modules (see above)")
    return [
        Module(entry["name"], Path(entry["ninja"]), Path(entry["library"]), len(entry["sources"]))
        for entry in json.loads(out.read_text(encoding="utf-8"))
    ]


def compile_modules(modules: Sequence[Module], jobs: int, paths: Paths, env: Mapping[str, str]) -> None:
    """Compile all modules in one ninja run, in their order: no processor waits for the last unit of a module."""
    top = paths.build / "kernels.ninja"
    lines = ["ninja_required_version = 1.3", *(f"subninja {module.ninja}" for module in modules)]
    top.write_text("\n".join(lines) + "\n", encoding="utf-8")
    command = ["ninja", "-C", str(paths.build), "-f", str(top), "-j", str(jobs)]
    print(f"KILN kernels total={len(modules)} units={sum(module.units for module in modules)}", flush=True)
    proc = subprocess.Popen(
        command, env={**env, "NINJA_STATUS": "@@ "}, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
    )  # fmt: skip
    assert proc.stdout is not None
    failure = follow(proc.stdout, modules, paths)
    if proc.wait() != 0:
        raise BuildError(explain(failure, jobs))


def follow(lines: Iterable[str], modules: Sequence[Module], paths: Paths) -> list[str]:
    """Turn ninja's lines into KILN lines; return what it said that is not about a finished command."""
    units, total = 0, sum(module.units for module in modules)
    finished, other = 0, []
    costs = CostLog(cost_log(paths))
    for line in (raw.rstrip() for raw in lines):
        costs.tell()
        linked = LINKED.search(line)
        if line.startswith("@@ ") and linked:
            finished += 1
            name = linked["name"]
            print(f"KILN module {finished} {len(modules)} {name} {module_seconds(name, paths):.1f}", flush=True)
        elif line.startswith("@@ "):
            units += 1
            print(f"KILN unit {units} {total}", flush=True)
        else:
            other.append(line)
            print(line, flush=True)
    return other


def module_seconds(name: str, paths: Paths) -> float:
    """Return the summed run time of a module's commands, from ninja's own log."""
    total = 0
    for line in (paths.build / ".ninja_log").read_text(encoding="utf-8").splitlines():
        fields = line.split("\t")
        if len(fields) >= 4 and f"/cached_ops/{name}/" in fields[3]:
            total += int(fields[1]) - int(fields[0])
    return total / 1000


def explain(failure: Sequence[str], jobs: int) -> str:
    """Say why ninja failed; a compiler killed for memory gets its own words."""
    unit = next((line for line in failure if line.startswith("FAILED:")), "a unit")
    if any(KILLED.search(line) for line in failure):
        return (
            f"a compiler was killed, most likely for memory, with --jobs {jobs}: {unit}\n"
            f"  hint: build again with a smaller --jobs (a heavy unit needs 8 GiB); finished units come from ccache"
        )
    return f"a kernel does not compile: {unit} (output above)"


def check_ccache(units: int, paths: Paths) -> None:
    """Fail if ccache did not handle every unit: a launcher that silently caches nothing is a known trap."""
    log = statistics_log(paths)
    counters = log.read_text(encoding="utf-8").split() if log.exists() else []
    hits = counters.count("direct_cache_hit") + counters.count("preprocessed_cache_hit")
    misses = counters.count("cache_miss")
    print(f"KILN ccache hits={hits} misses={misses}", flush=True)
    if hits + misses < units:
        reasons = ", ".join(sorted(set(COUNTER.findall(" ".join(counters))))) or "no counter tells why"
        raise BuildError(f"ccache handled {hits + misses} of {units} units ({reasons})")


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--source", type=Path, required=True, help="patched source: a folder or a tar archive of one")
    parser.add_argument("--arch", required=True, help="what FLASHINFER_CUDA_ARCH_LIST gets, such as 12.0f")
    parser.add_argument("--modules", type=Path, required=True, help="exact module names, one a line")
    parser.add_argument("--local-version", required=True, help="such as kiln.0123abcd")
    parser.add_argument("--jobs", type=int, help="units at a time; default by processors and memory")
    parser.add_argument("--jobs-file", type=Path, help="a file that holds the number of jobs, and wins if it exists")
    parser.add_argument("--ccache", type=Path, help="ccache >= 4.14; its folder is CCACHE_DIR")
    parser.add_argument("--cuda", type=Path, default=Path("/usr/local/cuda"))
    parser.add_argument("--work", type=Path, default=Path("/run/kiln/work"), help="emptied first, removed at the end")
    parser.add_argument("--out", type=Path, required=True, help="where the wheel goes")
    return parser.parse_args(argv)


def jobs_of(args: argparse.Namespace) -> int:
    if args.jobs_file and args.jobs_file.is_file():
        return int(args.jobs_file.read_text(encoding="utf-8"))
    return args.jobs or default_jobs()


def build(args: argparse.Namespace) -> None:
    """Do the whole build; see the module's text for what it prints."""
    paths, epoch = Paths(args.work), int(os.environ["SOURCE_DATE_EPOCH"])
    names = read_names(args.modules)
    unpack(args.source, paths)
    link_data(paths)
    env = compile_environment(args, paths)
    modules = write_ninja(names, paths, env)
    compile_modules(modules, jobs_of(args), paths, env)
    if args.ccache:
        check_ccache(sum(module.units for module in modules), paths)
    # Only now: the version is part of the workspace's path, which enters the objects, and sets would share none.
    print(f"KILN version {set_local_version(args.local_version, paths)}", flush=True)
    print("KILN pack", flush=True)
    kernels = {module.name: module.library for module in modules}
    wheel = pack_wheel.pack(paths.source, kernels, paths.build, args.out, epoch)
    with wheel.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    print(f"KILN wheel {wheel.name} {wheel.stat().st_size} {digest}", flush=True)
    shutil.rmtree(paths.work)


def main() -> int:
    args = parse()
    try:
        build(args)
    except (BuildError, pack_wheel.PackError) as error:
        print(f"build_wheel: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
