"""kiln's commands. Thin: each names what it needs and hands over; nothing is decided here."""

from __future__ import annotations

from invoke import Collection, Context, task

from kiln.cli import emit, reported, words
from kiln.settings import from_env

_GPU = "GPU target, e.g. sm120 (default: versions.yaml)"
_STACK = "stack: current, story or ci (default: versions.yaml)"
_KERNELS = "kernel set: core, moe, glm5, full … (default: the stack's)"
_IMAGE = "last image of the chain (default: versions.yaml)"
_JSON = "print JSON for machines"


@task(name="list", auto_shortflags=False, help={"json": _JSON})
@reported
def list_(c: Context, json: bool = False) -> None:
    """Show images × GPUs × stacks: locked, built, pushed."""
    from kiln import inventory, tables

    found = inventory.collect(from_env())
    emit([row.as_dict() for row in found]) if json else tables.rows(inventory.HEADINGS, [row.cells() for row in found])


@task(auto_shortflags=False)
@reported
def check(c: Context) -> None:
    """Validate versions, images, locks, patches and Dockerfiles: all problems at once."""
    from kiln import check as checks
    from kiln.errors import raise_all

    raise_all(checks.check(from_env()))
    print("all good")


@task(auto_shortflags=False, help={"gpu": _GPU, "stack": _STACK, "kernels": _KERNELS, "image": _IMAGE, "json": _JSON,
                                   "modules": "list the kernel modules, dearest first"})  # fmt: skip
@reported
def show(c: Context, gpu: str = "", stack: str = "", kernels: str = "", image: str = "", json: bool = False,
         modules: bool = False) -> None:  # fmt: skip
    """Show the resolved plan: pins, arch names, patches, kernels and their cost, what is built."""
    from kiln import inventory, tables

    settings = from_env()
    plan = inventory.plan_for(settings, gpu=gpu, stack=stack, kernel_set=kernels, image=image)
    if json:
        emit(plan.describe())
    elif modules:
        tables.modules(plan)
    else:
        tables.plan(plan, inventory.built_images(settings, plan))


@task(auto_shortflags=False, help={"check": "only tell what differs from the committed files; exit 2 if anything does"})
@reported
def render(c: Context, check: bool = False) -> None:
    """Write the Dockerfiles from their templates."""
    from kiln import render as rendering
    from kiln import versions
    from kiln.errors import raise_all

    settings = from_env()
    loaded = versions.load(settings.root / "versions.yaml")
    if check:
        raise_all(rendering.problems(settings.root, loaded))
        print("all Dockerfiles are as rendered")
        return
    for path in rendering.write(settings.root, loaded):
        print(path.relative_to(settings.root))


@task(auto_shortflags=False)
@reported
def lint(c: Context) -> None:
    """Run hadolint and our own rules on the rendered Dockerfiles, and the linters on the code."""
    _pytest("tests/unit/test_linters.py")


@task(auto_shortflags=False, help={
    "stack": "stacks to lock (default: all)", "apt": "lock Debian's packages", "python": "lock wheels",
    "sources": "lock source archives", "tools": "lock the tools (no part named: all four)",
    "upgrade": "package(s) to raise to the newest that the pins allow, or `all`",
    "dry": "resolve and tell, write nothing"})  # fmt: skip
@reported
def lock(c: Context, stack: str = "", apt: bool = False, python: bool = False, sources: bool = False,
         tools: bool = False, upgrade: str = "", dry: bool = False) -> None:  # fmt: skip
    """Resolve versions.yaml to files with hashes: locks/<stack>/*.toml."""
    from kiln import resolve
    from kiln.locks import PARTS

    wanted = {"apt": apt, "python": python, "sources": sources, "tools": tools}
    parts = tuple(name for name, chosen in wanted.items() if chosen) or (*PARTS, "tools")
    changes = resolve.lock(from_env(), words(stack), parts, words(upgrade), dry=dry)
    for change in changes:
        print(change)
    print(f"{len(changes)} changes" + (", nothing written" if dry else ""))


@task(auto_shortflags=False, help={"stack": "stacks to fetch (default: versions.yaml's)",
                                   "export": "also write all of it to this archive",
                                   "import_": "first take files from this archive, wheel, .deb or sdist"})  # fmt: skip
@reported
def fetch(c: Context, stack: str = "", export: str = "", import_: str = "") -> None:
    """Fill the content store with everything the locks name; the only step that uses the network."""
    from kiln import fetching

    for line in fetching.fetch_stacks(from_env(), words(stack), export=export, import_=import_):
        print(line)


@task(auto_shortflags=False, help={
    "gpu": _GPU, "stack": _STACK, "kernels": _KERNELS, "image": _IMAGE, "json": _JSON,
    "jobs": "compile jobs (default: by CPUs and memory, 8 GiB a job)", "no_test": "skip the image tests",
    "no_push": "leave the image in .kiln/ and the engine", "no_cache": "build every image again"})  # fmt: skip
@reported
def build(c: Context, gpu: str = "", stack: str = "", kernels: str = "", image: str = "", jobs: int = 0,
          no_test: bool = False, no_push: bool = False, no_cache: bool = False,
          json: bool = False) -> None:  # fmt: skip
    """Build the chain for a GPU, test it, push it: prints digest, layers, sizes and times."""
    from dataclasses import asdict

    from kiln import building, tables
    from kiln.build import Options

    options = Options(jobs=jobs, test=not no_test, push=not no_push, no_cache=no_cache)
    found = building.build(
        from_env(), gpu=gpu, stack=stack, kernel_set=kernels, image=image, options=options, quiet=json
    )
    emit(asdict(found)) if json else tables.built(found)


@task(auto_shortflags=False, help={"gpu": _GPU, "stack": _STACK, "kernels": _KERNELS, "image": _IMAGE})
@reported
def push(c: Context, gpu: str = "", stack: str = "", kernels: str = "", image: str = "") -> None:
    """Push a built image by digest; what the registry has is not sent again."""
    from kiln import building

    print(building.push(from_env(), gpu=gpu, stack=stack, kernel_set=kernels, image=image))


@task(auto_shortflags=False, help={
    "unit": "only the tests without an engine", "engine": "only those with an engine and a registry",
    "image": "only the image tests: build stack ci for every GPU and test it",
    "all": "unit, engine and image (the default)"})  # fmt: skip
@reported
def test(c: Context, unit: bool = False, engine: bool = False, image: bool = False, all: bool = False) -> None:
    """Run the project's tests."""
    from kiln import testing

    chosen = {name for name, wanted in (("unit", unit), ("engine", engine), ("image", image)) if wanted}
    testing.test(from_env(), chosen if chosen and not all else {"unit", "engine", "image"})


@task(name="up", auto_shortflags=False)
@reported
def engine_up(c: Context) -> None:
    """Start an engine and a registry on loopback, unless some answer."""
    from kiln import services
    from kiln.cli import announce

    for service in services.up(from_env(), announce):
        print(service.describe())


@task(name="down", auto_shortflags=False)
@reported
def engine_down(c: Context) -> None:
    """Stop the engine and the registry that kiln started."""
    from kiln import services

    for name in services.down(from_env()):
        print(f"stopped {name}")


@task(auto_shortflags=False, help={"all": "also the images in the engine and the layouts of every plan"})
@reported
def gc(c: Context, all: bool = False) -> None:
    """Remove leftovers: contexts of interrupted builds, layers that no layout uses; `--all`: all but the store."""
    from kiln import cleanup

    for line in cleanup.clean(from_env(), everything=all):
        print(line)


def _pytest(*paths: str) -> None:
    from kiln.errors import CheckFailed
    from kiln.testing import run_pytest

    if run_pytest(paths) != 0:
        raise CheckFailed("the linters found something")


namespace = Collection(list_, check, show, render, lint, lock, fetch, build, push, test, gc)
_engine = Collection("engine")
_engine.add_task(engine_up)
_engine.add_task(engine_down)
namespace.add_collection(_engine)
