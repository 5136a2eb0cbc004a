"""kiln's commands. Thin: each names what it needs and hands over; nothing is decided here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from invoke import Collection, Context, task

from kiln.cli import emit, reported, words
from kiln.settings import from_env

if TYPE_CHECKING:
    from kiln.patches import Choice

_GPU = "GPU target, e.g. sm120 (default: versions.yaml)"
_STACK = "stack: current, story or ci (default: versions.yaml)"
_KERNELS = "kernel set: core, moe, glm5, full … (default: the stack's)"
_IMAGE = "last image of the chain (default: versions.yaml)"
_COMPRESSION = "zstd, or gzip: also a variant with the tag …-gz, which Docker before 23 can pull (default: zstd)"
_KEY = "private key to sign with (default: KILN_SIGNING_KEY; none: not signed)"
_JSON = "print JSON for machines"
_QUEUE = {
    "with_": "patches to add to the default ones: an opt-in's name, a slug or COMPONENT/NNNN-slug",
    "without": "default patches to leave out",
    "i_know": "let --with take a rejected patch: it was tried, and its numbers say why not",
}


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
                                   "modules": "list the kernel modules, dearest first", **_QUEUE})  # fmt: skip
@reported
def show(c: Context, gpu: str = "", stack: str = "", kernels: str = "", image: str = "", json: bool = False,
         modules: bool = False, with_: str = "", without: str = "", i_know: bool = False) -> None:  # fmt: skip
    """Show the resolved plan: pins, arch names, patches, kernels and their cost, what is built."""
    from kiln import inventory, tables

    settings = from_env()
    choice = _choice(with_, without, i_know)
    plan = inventory.plan_for(settings, gpu=gpu, stack=stack, kernel_set=kernels, image=image, choice=choice)
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
    "args": "write down the arguments of each SGLang, out of its wheel in the store, for presets",
    "upgrade": "package(s) to raise to the newest that the pins allow, or `all`",
    "dry": "resolve and tell, write nothing"})  # fmt: skip
@reported
def lock(c: Context, stack: str = "", apt: bool = False, python: bool = False, sources: bool = False,
         tools: bool = False, args: bool = False, upgrade: str = "", dry: bool = False) -> None:  # fmt: skip
    """Resolve versions.yaml to files with hashes: locks/<stack>/*.toml."""
    from kiln import argslock, resolve
    from kiln.locks import PARTS

    if args:
        for path in argslock.write(from_env()):
            print(f"wrote {path.name}")
        return
    wanted = {"apt": apt, "python": python, "sources": sources, "tools": tools}
    parts = tuple(name for name, chosen in wanted.items() if chosen) or (*PARTS, "tools")
    changes = resolve.lock(from_env(), words(stack), parts, words(upgrade), dry=dry)
    for change in changes:
        print(change)
    print(f"{len(changes)} changes" + (", nothing written" if dry else ""))


@task(auto_shortflags=False, help={
    "component": "component of the stack, e.g. flashinfer", "version": "one version, as the index lists it",
    "also": "components that have to move with it: flashinfer=0.7.1,torch=2.14.0",
    "stack": _STACK, "dry": "resolve and tell, write nothing", "json": _JSON})  # fmt: skip
@reported
def bump(c: Context, component: str, version: str, also: str = "", stack: str = "", dry: bool = False,
         json: bool = False) -> None:  # fmt: skip
    """Write another pin, lock its stack again, and tell for each patch whether it still applies."""
    from kiln import bump as bumping
    from kiln import tables

    found = bumping.bump(from_env(), bumping.pairs(component, version, words(also)), stack, dry=dry)
    emit(found.as_dict()) if json else tables.bumped(found, dry=dry)
    bumping.require_patches(found)


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
    "engine": "auto, docker, buildah or classic: which one changes no digest (default: auto)",
    "compression": _COMPRESSION,
    "jobs": "compile jobs (default: by CPUs and memory, 8 GiB a job)", "no_test": "skip the image tests",
    "key": _KEY,
    "no_push": "leave the image in .kiln/ and the engine", "no_cache": "build every image again",
    **_QUEUE})  # fmt: skip
@reported
def build(c: Context, gpu: str = "", stack: str = "", kernels: str = "", image: str = "", engine: str = "auto",
          compression: str = "zstd", jobs: int = 0, no_test: bool = False, no_push: bool = False,
          no_cache: bool = False, key: str = "", json: bool = False, with_: str = "", without: str = "",
          i_know: bool = False) -> None:  # fmt: skip
    """Build the chain for a GPU, test it, push it: prints digest, layers, sizes and times."""
    from dataclasses import asdict

    from kiln import building, tables
    from kiln.build import Options
    from kiln.compression import named

    options = Options(jobs=jobs, test=not no_test, push=not no_push, no_cache=no_cache, compression=named(compression))
    found = building.build(
        from_env().signed_by(key), gpu=gpu, stack=stack, kernel_set=kernels, image=image, options=options, quiet=json,
        engine_name=engine, choice=_choice(with_, without, i_know),
    )  # fmt: skip
    emit(asdict(found)) if json else tables.built(found)


@task(auto_shortflags=False, help={
    "target": "OCI layout, wheel, folder, shared object or plan id (default: the plan's layout)",
    "gpu": _GPU, "stack": _STACK, "kernels": _KERNELS, "json": _JSON, "html": "also write the report to this file",
    "accept": "make what is covered now the baseline of the stack and GPU"})  # fmt: skip
@reported
def audit(c: Context, target: str = "", gpu: str = "", stack: str = "", kernels: str = "", json: bool = False,
          html: str = "", accept: bool = False) -> None:  # fmt: skip
    """Audit arch coverage, hollow kernels, symbols, Python and the toolchain of an image, wheel or folder; no GPU."""
    from kiln import tables
    from kiln.audit import auditing
    from kiln.cli import announce

    settings = from_env()
    about = auditing.subject(settings, target, gpu=gpu, stack=stack, kernel_set=kernels)
    report = auditing.audit(settings, about, announce)
    emit(report.as_dict()) if json else tables.audit(report)
    for file in auditing.write(settings, report, html=html, accept=accept):
        announce(f"wrote {file}")
    auditing.require_passed(report)


@task(auto_shortflags=False, help={"gpu": _GPU, "stack": _STACK, "kernels": _KERNELS, "image": _IMAGE,
                                   "compression": _COMPRESSION, "key": _KEY, **_QUEUE})  # fmt: skip
@reported
def push(c: Context, gpu: str = "", stack: str = "", kernels: str = "", image: str = "",
         compression: str = "zstd", key: str = "", with_: str = "", without: str = "",
         i_know: bool = False) -> None:  # fmt: skip
    """Push a built image by digest, attach SBOM and provenance, sign all three if there is a key."""
    from kiln import building
    from kiln.compression import named

    for name in building.push(
        from_env().signed_by(key), gpu=gpu, stack=stack, kernel_set=kernels, image=image,
        compression=named(compression), choice=_choice(with_, without, i_know),
    ):  # fmt: skip
        print(name)


@task(auto_shortflags=False, help={
    "gpu": _GPU, "stack": _STACK, "kernels": _KERNELS, "image": _IMAGE, "json": _JSON,
    "engine": "engine of the rebuild: docker, buildah or classic (default: another one than before)",
    "jobs": "cores that the rebuild gets, and its compile jobs (default: one core)",
    "keep": "keep the rebuild's folder even if nothing differs", **_QUEUE})  # fmt: skip
@reported
def reproduce(c: Context, gpu: str = "", stack: str = "", kernels: str = "", image: str = "", engine: str = "",
              jobs: int = 0, keep: bool = False, json: bool = False, with_: str = "", without: str = "",
              i_know: bool = False) -> None:  # fmt: skip
    """Build a finished image again elsewhere, without network or cache, and compare every byte."""
    from kiln import inventory, reports
    from kiln import reproduce as reproducing
    from kiln.cli import announce
    from kiln.errors import CheckFailed

    settings, choice = from_env(), _choice(with_, without, i_know)
    plan = inventory.plan_for(settings, gpu=gpu, stack=stack, kernel_set=kernels, image=image, choice=choice)
    options = reproducing.Options(engine=engine, jobs=jobs, keep=keep, quiet=json)
    found = reproducing.reproduce(settings, plan, options, announce)
    emit(found.as_dict()) if json else reports.reproduced(found)
    if not found.same:
        raise CheckFailed(f"the rebuild is not the same image: {found.comparison.level}; it is kept in {found.kept}")


@task(auto_shortflags=False, help={"ref": "HOST[:PORT]/REPOSITORY:TAG or …@DIGEST, or a layout's folder", "json": _JSON,
                                   "key": "public key that must have signed it"})  # fmt: skip
@reported
def verify(c: Context, ref: str, key: str = "", json: bool = False) -> None:
    """Check an image: its bytes, that it is canonical, this checkout's locks, SBOM, provenance and signature."""
    from pathlib import Path

    from kiln import reports
    from kiln import verify as verifying
    from kiln.cli import announce
    from kiln.errors import CheckFailed

    found = verifying.verify(from_env(), ref, key=Path(key) if key else None, say=announce)
    emit(found.as_dict()) if json else reports.verified(found)
    if found.failed:
        raise CheckFailed(f"{ref}: {', '.join(found.failed)}")


@task(auto_shortflags=False, help={
    "ref": "HOST[:PORT]/REPOSITORY@sha256:…, the line `pushed` of inv build",
    "tag": "tags to give (default: the one it was built under, without the plan's id)",
    "dry": "judge the receipts and the tags, write nothing", "json": _JSON})  # fmt: skip
@reported
def promote(c: Context, ref: str, tag: str = "", dry: bool = False, json: bool = False) -> None:
    """Tag a digest in its registry, if its receipts satisfy the policy in versions.yaml."""
    import datetime

    from kiln import promote as promoting
    from kiln.cli import announce
    from kiln.report import terminal

    now = datetime.datetime.now(datetime.UTC)
    found = promoting.promote(from_env(), ref, words(tag), now=now, say=announce, dry=dry)
    emit(found.as_dict()) if json else terminal.show_promoted(found)


@task(auto_shortflags=False, help={
    "receipts": "files, folders, digests or ids (default: all of receipts/smoke/)",
    "html": "also write one page that needs nothing but itself to this file", "json": _JSON})  # fmt: skip
@reported
def report(c: Context, receipts: str = "", html: str = "", json: bool = False) -> None:
    """Show the fleet: each node by its newest receipt, with causes and cures; as a page with curves and history."""
    from pathlib import Path

    from kiln import receipts as stored
    from kiln.cli import announce
    from kiln.report import fleet, terminal

    settings = from_env()
    found = fleet.gather(settings, stored.select(settings, words(receipts)))
    emit(found.as_dict()) if json else terminal.show(found)
    if html:
        from kiln.report.html import page

        Path(html).write_text(page(settings.root, found), encoding="utf-8")
        announce(f"wrote {html}")


@task(name="list", auto_shortflags=False, help={"receipts": "files, folders, digests or ids (default: all)",
                                                "json": _JSON})  # fmt: skip
@reported
def receipts_list(c: Context, receipts: str = "", json: bool = False) -> None:
    """Show the receipts of inv smoke: when, which node, which image, what came of it."""
    from kiln import receipts as stored
    from kiln import tables

    found = [stored.row(one) for one in stored.select(from_env(), words(receipts))]
    if json:
        emit([dict(zip(stored.HEADINGS, row, strict=True)) for row in found])
    else:
        tables.rows(stored.HEADINGS, found)


@task(name="show", auto_shortflags=False, help={"receipt": "a file, or an id or its beginning", "json": _JSON})
@reported
def receipts_show(c: Context, receipt: str, json: bool = False) -> None:
    """Show one receipt: conditions, every check with its numbers, phases, the server."""
    from kiln import receipts as stored
    from kiln.report import fleet, terminal

    settings = from_env()
    found = stored.find(settings, receipt)
    emit(found.as_dict()) if json else terminal.show_receipt(found, fleet.compared(settings, found))


@task(name="diff", auto_shortflags=False, help={
    "old": "a file, or an id or its beginning", "new": "another one", "json": _JSON,
    "above": "leave out numbers that changed by less, in percent (default: 1)"})  # fmt: skip
@reported
def receipts_diff(c: Context, old: str, new: str, above: float = 1.0, json: bool = False) -> None:
    """Compare two receipts: conditions, verdicts that changed, numbers with percent, the worst first."""
    from kiln import receipts as stored
    from kiln.receiptdiff import diff
    from kiln.report import terminal

    settings = from_env()
    found = diff(stored.find(settings, old), stored.find(settings, new))
    emit(found.as_dict()) if json else terminal.show_diff(found, above)


@task(name="baseline", auto_shortflags=False, help={"receipt": "a file, or an id or its beginning",
                                                    "dry": "only tell which file it would be"})  # fmt: skip
@reported
def receipts_baseline(c: Context, receipt: str, dry: bool = False) -> None:
    """Make a good run's numbers the baseline of its node: later runs warn at -5 %, fail at -10 %."""
    from kiln import baseline
    from kiln import receipts as stored

    settings = from_env()
    print(baseline.record(settings, stored.find(settings, receipt), dry=dry).relative_to(settings.root))


@task(name="schema", auto_shortflags=False)
@reported
def receipts_schema(c: Context) -> None:
    """Write docs/receipt.schema.json from the model of a receipt."""
    from kiln import receipts as stored

    settings = from_env()
    print(stored.write_schema(settings).relative_to(settings.root))


@task(auto_shortflags=False, help={"stack": _STACK, "gpu": "GPU targets (default: all of the stack)"})
@reported
def expect(c: Context, stack: str = "", gpu: str = "") -> None:
    """Record the digests that were built here as those that every engine must give: receipts/expected.yaml."""
    from kiln import digests

    changes = digests.expect(from_env(), stack=stack, gpus=words(gpu))
    for change in changes or ["nothing changed"]:
        print(change)


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


@task(auto_shortflags=False, help={
    "hosts": "nodes by ssh: [USER@]HOST[:PORT] or aliases of ~/.ssh/config (default: this machine)",
    "image": "image under test, by digest: REF@sha256:…", "preset": "preset to serve with (default: a tiny model)",
    "topology": "thresholds: a name of topologies/ (default: by the node's GPUs)",
    "weights": "folder on the node with the preset's model (default: dummy weights)",
    "phases": "container, fabric, numerics, server (default: all); preflight and after always",
    "python": "run the GPU probes with this Python on the node, without a container",
    "deadline": "seconds for each node's checks (default: 1800)",
    "dry": "only tell what would be run", "json": _JSON})  # fmt: skip
@reported
def smoke(c: Context, hosts: str = "", preset: str = "", image: str = "", topology: str = "", weights: str = "",
          phases: str = "", python: str = "", deadline: int = 0, json: bool = False,
          dry: bool = False) -> None:  # fmt: skip
    """Check nodes before they serve: node, image, fabric, kernels, server; a verdict and a receipt for each."""
    from kiln.smoke import results, runner
    from kiln.smoke.options import Options

    settings = from_env()
    options = Options(words(hosts), image, preset, topology, weights, python, words(phases), deadline)
    jobs = runner.plan(settings, options)
    if dry:
        emit([job.model_dump(mode="json") for job in jobs]) if json else results.show_jobs(jobs)
        return
    found = runner.smoke(settings, jobs, quiet=json)
    emit(results.data(found)) if json else results.show(found)
    results.require_good(found)


@task(auto_shortflags=False, help={"all": "also the images in the engine and the layouts of every plan"})
@reported
def gc(c: Context, all: bool = False) -> None:
    """Remove leftovers: contexts of interrupted builds, layers that no layout uses; `--all`: all but the store."""
    from kiln import cleanup

    for line in cleanup.clean(from_env(), everything=all):
        print(line)


@task(name="new", auto_shortflags=False, help={"folder": "where to write kiln.key and kiln.pub"})
@reported
def key_new(c: Context, folder: str) -> None:
    """Make a key pair to sign images with; the private half is encrypted with KILN_KEY_PASSWORD."""
    from pathlib import Path

    from kiln import signing

    settings = from_env()
    files = signing.make_key(Path(folder), settings.key_password)
    lock = "encrypted" if settings.key_password else "NOT encrypted: KILN_KEY_PASSWORD is not set"
    print(f"private  {files.private} ({lock}): for KILN_SIGNING_KEY, or --key of inv build and inv push")
    print(f"public   {files.public}: give it to all who verify (inv verify IMAGE --key, cosign verify --key)")


@task(name="list", auto_shortflags=False, help={"stack": "stacks to look at (default: all)", "json": _JSON})
@reported
def patches_list(c: Context, stack: str = "", json: bool = False) -> None:
    """Show every patch: status, targets, and what becomes of it on the pinned source."""
    from kiln import patchqueue, tables

    found = patchqueue.rows(from_env(), words(stack))
    emit([row.as_dict() for row in found]) if json else tables.rows(patchqueue.HEADINGS, [row.cells() for row in found])


@task(name="check", auto_shortflags=False, help={"stack": "stacks to look at (default: all)"})
@reported
def patches_check(c: Context, stack: str = "") -> None:
    """Apply every patch to its pinned source and compare what comes out with the locks."""
    from kiln import patchqueue

    print(f"{len(patchqueue.check(from_env(), words(stack)))} patches apply")


@task(name="new", auto_shortflags=False, help={
    "component": "component to patch, e.g. flashinfer", "tree": "edited tree; unpacked there if it does not exist",
    "stack": _STACK, "slug": "name: words joined by dashes", "subject": "one line: what it does",
    "checked_by": "test that fails without it: tests/unit/test_x.py::test_name",
    "evidence": "numbers, setup, source; or `none: ` and why", "drop_when": "`COMPONENT RANGE`, or what has to happen",
    "status": "default, `opt-in: NAME` or rejected (default: opt-in under its slug)",
    "applies_to": "PEP 440 range (default: the pinned version alone)", "targets": "GPUs (default: all)"})  # fmt: skip
@reported
def patches_new(c: Context, component: str, tree: str, stack: str = "", slug: str = "", subject: str = "",
                checked_by: str = "", evidence: str = "", drop_when: str = "", status: str = "", applies_to: str = "",
                targets: str = "all") -> None:  # fmt: skip
    """Unpack a pinned source to edit; or write what was edited there as the next patch."""
    from kiln import patchedit

    header = patchedit.Header(slug, subject, checked_by, evidence, drop_when, status, applies_to=applies_to,
                              targets=targets)  # fmt: skip
    for line in patchedit.start_or_write(from_env(), component, stack, tree, header):
        print(line)


@task(name="refresh", auto_shortflags=False, help={
    "name": "patch (default: all)",
    "tree": "edited tree to take the patch from; unpacked there if it does not exist"})  # fmt: skip
@reported
def patches_refresh(c: Context, name: str = "", tree: str = "") -> None:
    """Anchor patches anew on the pinned sources and write locks/patches."""
    from kiln import patchedit

    for line in patchedit.refresh_all(from_env(), name, tree):
        print(line)


@task(name="drop", auto_shortflags=False, help={"name": "patch: COMPONENT/NNNN-slug or slug",
                                                "dry": "only tell what would go"})  # fmt: skip
@reported
def patches_drop(c: Context, name: str, dry: bool = False) -> None:
    """Delete a patch and what the locks say of it."""
    from kiln import patchqueue

    for line in patchqueue.drop(from_env(), name, dry=dry):
        print(line)


def _choice(added: str, left_out: str, i_know: bool) -> Choice:
    from kiln.patches import Choice

    return Choice(words(added), words(left_out), i_know)


def _pytest(*paths: str) -> None:
    from kiln.errors import CheckFailed
    from kiln.testing import run_pytest

    if run_pytest(paths) != 0:
        raise CheckFailed("the linters found something")


namespace = Collection(
    list_, check, show, render, lint, lock, bump, fetch, build, audit, push, smoke, promote, report, test, reproduce,
    verify, gc,
)  # fmt: skip
_engine = Collection("engine")
_engine.add_task(engine_up)
_engine.add_task(engine_down)
namespace.add_collection(_engine)
_patches = Collection("patches")
for _task in (patches_list, patches_check, patches_new, patches_refresh, patches_drop):
    _patches.add_task(_task)
namespace.add_collection(_patches)
_key = Collection("key")
_key.add_task(key_new)
namespace.add_collection(_key)
_receipts = Collection("receipts")
for _task in (receipts_list, receipts_show, receipts_diff, receipts_baseline, receipts_schema, expect):
    _receipts.add_task(_task)
namespace.add_collection(_receipts)
