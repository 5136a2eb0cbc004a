"""Many downloads at once: each artefact's places are tried in order, and all are told if none has it."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace

import requests
from requests.adapters import HTTPAdapter

from kiln import aptmirror, indexes
from kiln.download import Transfer, get
from kiln.errors import Problem, UserError, raise_all
from kiln.finder import Candidate, Finder
from kiln.indexes import Unavailable
from kiln.locks import Artifact, Deb
from kiln.progress import Progress
from kiln.settings import Settings
from kiln.store import Store

THREADS = 6
_PYTHON_HINT = (
    "set PIP_EXTRA_INDEX_URL to an index that carries it or PIP_FIND_LINKS to a directory with it, "
    "or bring it by hand: inv fetch --import FILE"
)
_DEB_HINT = (
    "set KILN_SNAPSHOT_MIRROR to a snapshot archive, or bring it from a machine that has it "
    "(inv fetch --export there, inv fetch --import here), or take what the mirror has now: inv lock --apt"
)
_CHANGED_HINT = "do not use that place; if the new bytes are meant, lock them: inv lock"


def bring(settings: Settings, store: Store, missing: list[Artifact], shown: Progress, pause_s: float) -> None:
    """Download all of `missing`. Raises Problems naming every artefact that was found nowhere."""
    suites = {one.suite for one in missing if isinstance(one, Deb)}
    proxies = aptmirror.proxies() if suites else {}
    with _session({}) as session, _session(proxies) as apt_session:
        mirrors = {suite: aptmirror.mirrors(settings, suite) for suite in sorted(suites)}
        finder = Finder(settings, indexes.places(settings), mirrors, session, apt_session)
        _fetch_all(Transfer(store, session, shown.advance, threading.Event(), pause_s), finder, missing, shown)


def _fetch_all(transfer: Transfer, finder: Finder, missing: list[Artifact], shown: Progress) -> None:
    """Run all downloads, the largest first; an interrupt stops them and keeps what they have for the next run."""
    pool = ThreadPoolExecutor(THREADS)
    ordered = sorted(missing, key=lambda one: (-one.size, one.file))
    jobs = {pool.submit(_fetch_one, transfer, finder, one): one for one in ordered}
    problems: list[Problem] = []
    try:
        for job in as_completed(jobs):
            problem = job.result()
            if problem:
                problems.append(problem)
            else:
                shown.file_done()
    except BaseException:
        transfer.stop.set()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
    raise_all(problems)


def _fetch_one(transfer: Transfer, finder: Finder, artifact: Artifact) -> Problem | None:
    """Try one place after the other; a place that breaks is only one more line in the report."""
    if isinstance(artifact, Deb):
        transfer = replace(transfer, session=finder.apt_session)
    looked = [Candidate("the store", why="not there")]
    for candidate in finder.candidates(artifact):
        try:
            if candidate.url:
                get(transfer, artifact, candidate.url)
                return None
        except (Unavailable, UserError) as error:
            candidate = replace(candidate, why=str(error))
        looked.append(candidate)
    return _nowhere(artifact, looked)


def _nowhere(artifact: Artifact, looked: list[Candidate]) -> Problem:
    lines = "".join(f"\n    {candidate.place}: {candidate.why}" for candidate in looked)
    altered = any("the bytes changed" in candidate.why for candidate in looked)
    hint = _CHANGED_HINT if altered else _DEB_HINT if isinstance(artifact, Deb) else _PYTHON_HINT
    return Problem("", f"{artifact.file} (sha256 {artifact.sha256[:12]}…) is nowhere; looked in{lines}", hint)


def _session(proxies: Mapping[str, str]) -> requests.Session:
    """Return a session that keeps one connection a thread; the environment's proxies go before the given ones."""
    session = requests.Session()
    session.proxies.update(proxies)
    adapter = HTTPAdapter(pool_connections=THREADS, pool_maxsize=THREADS * 2, max_retries=2)
    session.mount("http://", adapter)
    session.mount("https://", adapter)
    return session
