"""The story, replayed for real without a GPU: FlashInfer 0.6.3 on SM120 with its own gate and with the gate opened.

torch is that of stack `ci`, installed from the store; no engine takes part, but it takes a minute and 1 GB. What the
opened gate lets through is compiled in the image of stack `story`, where the engine has it: without it, NOT_RUN.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from kiln import locks, patches, patchlocks, sources, tables
from kiln.audit import auditing
from kiln.audit.report import Report
from kiln.run import Completed, run
from kiln.settings import ROOT, from_env
from kiln.store import Store
from tests import storedimages

pytestmark = [pytest.mark.engine, pytest.mark.slow]
UV = Path(sys.executable).parent / "uv"
ASK = """
from flashinfer.jit.comm import gen_trtllm_comm_module
spec = gen_trtllm_comm_module()
print(spec.name, len(spec.sources), " ".join(spec.extra_cuda_cflags))
"""
GATE = "allreduce-fusion-on-sm120"
BUILD = """
from flashinfer.jit.comm import gen_trtllm_comm_module
spec = gen_trtllm_comm_module()
spec.build(verbose=False)
print(spec.jit_library_path)
"""
PACKAGE = "/opt/kiln/lib/python3.11/site-packages"
COMPILING_S = 3600
LAMPORT = "flashinfer::trtllm_allreduce::reduce_fusion::lamport_style_one_shot_all_reduce_norm_kernel"


@pytest.fixture(scope="module")
def store() -> Store:
    found = Store(from_env().store)
    sdist = patchlocks.read_pinned(ROOT, "story", ["flashinfer"])["flashinfer"]
    if found.missing([*locks.load(ROOT, "ci").wheels, sdist]):
        pytest.skip("NOT_RUN: inv fetch --stack ci,story")
    return found


@pytest.fixture(scope="module")
def site(store: Store, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install what FlashInfer imports."""
    folder = tmp_path_factory.mktemp("site")
    wheels = [one for one in locks.load(ROOT, "ci").wheels if one.image in ("torch", "flashinfer")]
    files = [store.place(one, folder / "wheels") for one in wheels]
    run([UV, "pip", "install", "--quiet", "--offline", "--no-deps", "--no-cache", "--python", sys.executable,
         "--target", folder / "site", *files])  # fmt: skip
    return folder / "site"


def patched(store: Store, folder: Path, *names: str) -> Path:
    """Unpack the pinned source and apply some patches."""
    sdist = patchlocks.read_pinned(ROOT, "story", ["flashinfer"])["flashinfer"]
    tree = sources.unpack(store.path(sdist.sha256), folder)
    known = [one for one in patches.load_all(ROOT) if one.component == "flashinfer" and one.covers(sdist.version)]
    found = sources.apply([one for one in known if one.slug in names], tree)
    assert [one.state for one in found] == ["applied" for _ in names]
    return tree


def ask(store: Store, site: Path, folder: Path, *names: str) -> Completed:
    """Generate trtllm_comm's specification from the pinned source with some patches."""
    tree = patched(store, folder, *names)
    env = {"PYTHONPATH": f"{tree}:{site}", "FLASHINFER_CUDA_ARCH_LIST": "12.0a", "HOME": str(folder),
           "FLASHINFER_WORKSPACE_BASE": str(folder), "FLASHINFER_DISABLE_VERSION_CHECK": "1"}  # fmt: skip
    return run([sys.executable, "-c", ASK], env=env, cwd=folder, check=False, timeout_s=300)


def test_the_pinned_source_fails_as_in_the_story(store: Store, site: Path, tmp_path: Path) -> None:
    done = ask(store, site, tmp_path)
    assert done.returncode == 1
    assert "RuntimeError: No supported CUDA architectures found for major versions [9, 10]." in done.stderr


def test_the_rejected_patch_opens_the_gate(store: Store, site: Path, tmp_path: Path) -> None:
    done = ask(store, site, tmp_path, GATE)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith("trtllm_comm 3 ")
    assert "-gencode=arch=compute_120a,code=sm_120a" in done.stdout


def test_the_patches_of_the_stack_leave_the_gate_shut(store: Store, site: Path, tmp_path: Path) -> None:
    default = ("pdl-in-the-sm120-fused-moe", "sort-the-generated-fused-moe-units")
    assert "for major versions [9, 10]" in ask(store, site, tmp_path, *default).stderr


@pytest.fixture
def image() -> str:
    """The image of stack `story` in the engine."""
    return storedimages.ref_of("story")


def compiled(store: Store, image: str, folder: Path) -> Path:
    """Compile trtllm_comm in the image, with its own nvcc, behind the opened gate; returns the library."""
    tree = patched(store, folder, GATE)
    out = folder / "out"
    out.mkdir(mode=0o777)
    out.chmod(0o777)
    changed = "flashinfer/jit/comm.py"
    done = run(["docker", "run", "--rm", "--network=none", f"--volume={tree / changed}:{PACKAGE}/{changed}:ro",
                f"--volume={out}:/out", "--env=FLASHINFER_WORKSPACE_BASE=/out", "--env=FLASHINFER_CUDA_ARCH_LIST=12.0a",
                "--env=MAX_JOBS=2", "--entrypoint=python", image, "-c", BUILD], timeout_s=COMPILING_S)  # fmt: skip
    return out / Path(done.stdout.splitlines()[-1]).relative_to("/out")


def audited(library: Path) -> Report:
    settings = from_env()
    about = auditing.subject(settings, str(library), gpu="sm120", stack="story", kernel_set="")
    return auditing.audit(settings, about, print)


def test_the_audit_fails_what_the_opened_gate_compiles_to(store: Store, image: str, tmp_path: Path) -> None:
    report = audited(compiled(store, image, tmp_path))
    assert [row.best for row in report.rows] == ["sm_120a"]
    tables.audit(report)
    (found,) = report.failed
    assert (found.check, found.subject) == ("hollow", LAMPORT)
    assert found.message == "480 of 480 kernels for sm_120a are empty"
    assert len(found.names) == 480
