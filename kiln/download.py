"""One file from one address into the store: resumed, retried, and believed only by its hash."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO
from urllib.parse import unquote, urlsplit

import requests

from kiln.errors import KilnError
from kiln.indexes import TIMEOUT_S, Unavailable
from kiln.locks import Artifact
from kiln.store import CHUNK, Store, changed, sha256_of

ATTEMPTS = 5
_RETRIED = {408, 425, 429, 500, 502, 503, 504}


class Interrupted(KilnError):
    """Another part of the fetch asked this one to stop."""

    exit_code = 130


@dataclass(frozen=True)
class Transfer:
    """What all downloads of one fetch share."""

    store: Store
    session: requests.Session
    advance: Callable[[int], None]
    stop: threading.Event
    pause_s: float


def get(transfer: Transfer, artifact: Artifact, url: str) -> None:
    """Bring one artefact. Raises Unavailable if the address does not give it, UserError if the bytes are others."""
    with transfer.store.partial(artifact.sha256) as part:
        if transfer.store.has(artifact):
            transfer.store.discard(artifact.sha256)
            return
        resumed = part.seek(0, 2) > 0
        found = _fill(transfer, artifact, url, part)
        if resumed and found != (artifact.size, artifact.sha256):  # what an earlier run left may be the bad half
            part.truncate(0)
            found = _fill(transfer, artifact, url, part)
        if found != (artifact.size, artifact.sha256):
            transfer.store.discard(artifact.sha256)
            raise changed(artifact.file, artifact.sha256, artifact.size, found[1], found[0])
        transfer.store.commit(part, artifact.sha256)


def _fill(transfer: Transfer, artifact: Artifact, url: str, part: BinaryIO) -> tuple[int, str]:
    """Complete the unfinished file and return its size and sha256; progress is taken back if they are wrong."""
    if urlsplit(url).scheme in ("", "file"):
        _copy(artifact, Path(unquote(urlsplit(url).path)), part, transfer)
    else:
        _download(transfer, artifact, url, part)
    part.flush()
    size = part.seek(0, 2)
    part.seek(0)
    found = size, sha256_of(part)
    if found != (artifact.size, artifact.sha256):
        transfer.advance(-min(size, artifact.size))
    return found


def _copy(artifact: Artifact, path: Path, part: BinaryIO, transfer: Transfer) -> None:
    part.truncate(0)
    try:
        with path.open("rb") as source:
            shutil.copyfileobj(source, part, CHUNK)
    except OSError as error:
        raise Unavailable(str(error.strerror or error)) from error
    transfer.advance(min(part.tell(), artifact.size))


def _download(transfer: Transfer, artifact: Artifact, url: str, part: BinaryIO) -> None:
    """Append to `part` until it is complete; a broken connection continues where it broke."""
    have = min(part.seek(0, 2), artifact.size)
    transfer.advance(have)
    reason = ""
    for attempt in range(ATTEMPTS):
        if attempt and transfer.stop.wait(transfer.pause_s * 2 ** (attempt - 1)):
            raise Interrupted("interrupted")
        reason = _attempt(transfer, artifact, url, part)
        if not reason:
            return
    raise Unavailable(f"{reason}, {ATTEMPTS} attempts")


def _attempt(transfer: Transfer, artifact: Artifact, url: str, part: BinaryIO) -> str:
    """Ask for what is missing; returns why it is still not complete, or nothing. Raises Unavailable for good."""
    have = part.seek(0, 2)
    if have >= artifact.size:
        return ""
    headers = {"Accept-Encoding": "identity", **({"Range": f"bytes={have}-"} if have else {})}
    try:
        with transfer.session.get(url, headers=headers, stream=True, timeout=TIMEOUT_S) as response:
            if response.status_code in _RETRIED:
                return f"HTTP {response.status_code}"
            if not response.ok and response.status_code != 416:
                raise Unavailable("not there" if response.status_code == 404 else f"HTTP {response.status_code}")
            if response.status_code != 206 and have:
                part.truncate(0)
                transfer.advance(-have)
            if response.status_code == 416:
                return "HTTP 416"
            _receive(transfer, artifact, response, part)
    except requests.RequestException as error:
        return f"no answer ({type(error).__name__})"
    return "" if part.tell() >= artifact.size else "the connection ended early"


def _receive(transfer: Transfer, artifact: Artifact, response: requests.Response, part: BinaryIO) -> None:
    """Append the body; stops at the first byte too many, which the proof then reports."""
    for block in response.iter_content(CHUNK):
        if transfer.stop.is_set():
            raise Interrupted("interrupted")
        room = artifact.size - part.tell()
        part.write(block)
        transfer.advance(min(len(block), max(room, 0)))
        if len(block) > room:
            return
