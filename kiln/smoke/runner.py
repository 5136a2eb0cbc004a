"""Run the nodes: one pytest process each, side by side, every one with a deadline that it cannot miss."""

from __future__ import annotations

import secrets
import sys
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from kiln import receipts, run
from kiln.errors import KilnError
from kiln.provenance import observe
from kiln.receipt import Receipt
from kiln.settings import ROOT, Settings
from kiln.smoke import image, session, ssh
from kiln.smoke.broken import broken
from kiln.smoke.connection import Target, connect
from kiln.smoke.job import Job
from kiln.smoke.node import sweep
from kiln.smoke.options import Options, require_fit, require_good
from kiln.verdict import GOOD
from kiln.view import View

# What a node's process may take after its deadline: `after` and the teardown; then it is told to stop.
EXTRA_S = session.AFTER_S + 120
# And once it was told: the teardown alone.
GRACE_S = 60.0
_LOOK_EVERY_S = 0.25
_WORDS = ("-q", "--assert=plain", "-p", "no:cacheprovider", "-p", "pytest_timeout", "--timeout=0",
          "--override-ini=junit_family=xunit1")  # fmt: skip
# Plugins that no test of a node uses take seconds to load.
_LEAN = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}


@dataclass(frozen=True)
class Ran:
    """A node that was smoked: its receipt, where that lies, and the reports of its process."""

    job: Job
    receipt: Receipt
    path: Path


def plan(settings: Settings, options: Options) -> list[Job]:
    """Check the options, ask the registry for the image, and make a job for each node. Raises Problems."""
    require_good(settings, options)
    chosen = options.chosen()
    described = image.describe(chosen.image) if chosen.image else image.Described()
    require_fit(settings, options, described.labels)
    return [*_jobs(settings, chosen, described)]


def _jobs(settings: Settings, options: Options, described: image.Described) -> Iterator[Job]:
    now = datetime.now(UTC)
    found = observe(settings.root, "", None, now)
    commit = found.commit[:12] + ("-dirty" if found.dirty else "")
    for host in options.hosts or ("",):
        run_id = secrets.token_hex(8)
        folder = settings.home / "smoke" / f"{now:%Y%m%dT%H%M%S}-{run_id}"
        yield Job(
            id=run_id, root=settings.root, folder=folder, host=host, kiln=commit,
            image=options.image, digest=options.image.rpartition("@")[2], labels=described.labels,
            size_bytes=described.size_bytes, image_fault=described.fault, preset=options.preset,
            topology=options.topology, weights=options.weights, python=options.python, phases=options.phases,
            seconds=options.deadline,
        )  # fmt: skip


def smoke(settings: Settings, wanted: Iterable[Job], *, quiet: bool = False) -> list[Ran]:
    """Run all jobs side by side and return what came of each, in their order.

    On an interrupt every node is told to stop and tidies up; then KeyboardInterrupt goes on.
    """
    stop = threading.Event()
    with ssh.configured() as config:
        todo = [job.model_copy(update={"ssh_config": config if job.host else None}) for job in wanted]
        with View(tuple(job.node for job in todo), quiet=quiet) as view, ThreadPoolExecutor(len(todo)) as pool:
            futures = [pool.submit(_run, settings, job, stop) for job in todo]
            with _stopping(stop):
                _watch(view, todo, futures)
            return [future.result() for future in futures]


@contextmanager
def _stopping(stop: threading.Event) -> Iterator[None]:
    try:
        yield
    except BaseException:
        stop.set()
        raise


def _watch(view: View, todo: list[Job], futures: list[Future[Ran]]) -> None:
    """Show what each node does until all are done."""
    for job in todo:
        view.start(job.node)
    running = dict(zip(futures, todo, strict=True))
    while running:
        done, _ = wait(running, timeout=_LOOK_EVERY_S, return_when=FIRST_COMPLETED)
        for future in done:
            _show_end(view, running.pop(future), future)
        for job in running.values():
            with suppress(OSError):
                view.update(job.node, job.now.read_text().strip())


def _show_end(view: View, job: Job, future: Future[Ran]) -> None:
    verdict = future.result().receipt.verdict
    view.finish(job.node, "done" if verdict in GOOD else "failed", verdict)


def _run(settings: Settings, job: Job, stop: threading.Event) -> Ran:
    """Run one node's process to its end, and see that there is a receipt whatever became of it."""
    why, said = _process(job, stop)
    job.log.write_text(said)
    if job.receipt.exists():
        path = Path(job.receipt.read_text().strip())
        return Ran(job, receipts.load(path), path)
    with suppress(KilnError):
        sweep(connect(Target(job.host, job.ssh_config)), job.id)
    receipt = broken(job, why, said)
    return Ran(job, receipt, receipts.save(settings, receipt, private=(job.host,)))


def _process(job: Job, stop: threading.Event) -> tuple[str, str]:
    """Run pytest for one node; returns how it ended and what it said."""
    argv = [sys.executable, "-m", "pytest", str(ROOT / "tests" / "node"), *_WORDS, f"--kiln-job={job.write()}",
            f"--junit-xml={job.junit}"]  # fmt: skip
    try:
        done = run.bounded(argv, timeout_s=job.seconds + EXTRA_S, grace_s=GRACE_S, stop=stop, cwd=ROOT, env=_LEAN)
    except run.CutOff as error:
        return str(error), error.done.stdout + error.done.stderr
    return f"its process ended with {done.returncode}", done.stdout + done.stderr
