"""Fetching against a real HTTP index on loopback: ranges, faults, changed bytes, several processes."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from kiln import settings
from kiln.errors import Problems, UserError
from kiln.fetch import Summary, fetch
from kiln.locks import Artifact, Deb
from kiln.progress import Counter, Plain
from kiln.store import Store

pytestmark = pytest.mark.unit


@dataclass
class Index:
    """What the server holds and how it misbehaves; `requests` are (path, Range) as they came."""

    url: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    listed: dict[str, str] = field(default_factory=dict)
    cut_after: dict[str, int] = field(default_factory=dict)
    fail: dict[str, list[int]] = field(default_factory=dict)
    ranges: bool = True
    requests: list[tuple[str, str]] = field(default_factory=list)

    def add(self, project: str, file: str, data: bytes) -> Artifact:
        self.files[f"/files/{file}"] = data
        sha256 = hashlib.sha256(data).hexdigest()
        self.listed[project] = self.listed.get(project, "") + f'<a href="/files/{file}#sha256={sha256}">{file}</a>\n'
        return Artifact(project, "1.0", file, len(data), sha256)

    def bodies(self, file: str) -> list[str]:
        return [span for path, span in self.requests if path == f"/files/{file}"]


class _Handler(BaseHTTPRequestHandler):
    index: ClassVar[Index]
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        span = self.headers.get("Range", "")
        self.index.requests.append((self.path, span))
        if self.index.fail.get(self.path):
            self._answer(self.index.fail[self.path].pop(0), b"")
        elif self.path.startswith("/simple/"):
            page = self.index.listed.get(self.path.split("/")[2])
            self._answer(200 if page else 404, (page or "").encode())
        elif self.path in self.index.files:
            self._file(self.index.files[self.path], span)
        else:
            self._answer(404, b"")

    def _file(self, data: bytes, span: str) -> None:
        start = int(span.removeprefix("bytes=").rstrip("-")) if span and self.index.ranges else 0
        cut = self.index.cut_after.pop(self.path, None)
        self._answer(206 if start else 200, data[start:], cut)

    def _answer(self, status: int, body: bytes, cut: int | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "text/html" if "simple" in self.path else "application/octet-stream")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[:cut])
        self.close_connection = self.close_connection or cut is not None

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    """A server that is the only index the client is configured with."""
    served = Index()
    handler = type("Handler", (_Handler,), {"index": served})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    served.url = f"http://127.0.0.1:{server.server_port}"
    for name in [name for name in os.environ if name.startswith(("PIP_", "UV_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", f"{served.url}/simple")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield served
    server.shutdown()
    server.server_close()
    thread.join()


def _fetch(home: Path, *artifacts: Artifact, progress: Counter | None = None, **env: str) -> Summary:
    chosen = settings.from_env({"KILN_HOME": str(home), **env})
    return fetch(chosen, Store(chosen.store), artifacts, progress, pause_s=0.01)


BIG = bytes(range(256)) * (3 << 12)


def test_what_is_missing_comes_and_a_second_fetch_asks_nothing(index: Index, tmp_path: Path) -> None:
    wheels = [index.add(f"p{n}", f"p{n}-1.0-py3-none-any.whl", BIG + bytes([n])) for n in range(12)]
    progress = Counter()
    assert _fetch(tmp_path, *wheels, progress=progress) == Summary(12, 12 * len(BIG) + 12, 0, 0)
    assert (progress.done_files, progress.done_bytes) == (12, 12 * len(BIG) + 12)
    asked = len(index.requests)
    assert _fetch(tmp_path, *wheels).present_files == 12
    assert len(index.requests) == asked
    assert all(Store(tmp_path / "store").verify(wheel) for wheel in wheels)


def test_a_connection_that_breaks_continues_where_it_broke(index: Index, tmp_path: Path) -> None:
    wheel = index.add("p", "p-1.0-py3-none-any.whl", BIG)
    index.cut_after["/files/" + wheel.file] = 2_000_000
    progress = Counter()
    _fetch(tmp_path, wheel, progress=progress)
    spans = index.bodies(wheel.file)
    assert spans[0] == ""
    assert 0 < int(spans[1].removeprefix("bytes=").rstrip("-")) <= 2_000_000
    assert progress.done_bytes == wheel.size
    assert Store(tmp_path / "store").verify(wheel)


def test_what_an_earlier_run_left_is_continued(index: Index, tmp_path: Path) -> None:
    wheel = index.add("p", "p-1.0-py3-none-any.whl", BIG)
    (tmp_path / "store/partial").mkdir(parents=True)
    (tmp_path / "store/partial" / wheel.sha256).write_bytes(BIG[:1_000_000])
    _fetch(tmp_path, wheel)
    assert index.bodies(wheel.file) == ["bytes=1000000-"]


@pytest.mark.parametrize("left", [b"garbage" * 1000, BIG + b"too long", b"x" * len(BIG)])
def test_a_bad_remainder_of_an_earlier_run_is_dropped_and_fetched_anew(
    index: Index, tmp_path: Path, left: bytes
) -> None:
    wheel = index.add("p", "p-1.0-py3-none-any.whl", BIG)
    (tmp_path / "store/partial").mkdir(parents=True)
    (tmp_path / "store/partial" / wheel.sha256).write_bytes(left)
    progress = Counter()
    _fetch(tmp_path, wheel, progress=progress)
    assert Store(tmp_path / "store").verify(wheel)
    assert progress.done_bytes == wheel.size


def test_a_server_without_ranges_starts_again(index: Index, tmp_path: Path) -> None:
    wheel = index.add("p", "p-1.0-py3-none-any.whl", BIG)
    index.ranges = False
    index.cut_after["/files/" + wheel.file] = 1_500_000
    progress = Counter()
    _fetch(tmp_path, wheel, progress=progress)
    assert Store(tmp_path / "store").verify(wheel)
    assert progress.done_bytes == wheel.size


@pytest.mark.parametrize("status", [429, 500, 502, 503])
def test_a_server_that_recovers_is_asked_again(index: Index, tmp_path: Path, status: int) -> None:
    wheel = index.add("p", "p-1.0-py3-none-any.whl", b"data")
    index.fail["/files/" + wheel.file] = [status, status]
    _fetch(tmp_path, wheel)
    assert len(index.bodies(wheel.file)) == 3


@pytest.mark.parametrize(("status", "why"), [(503, "HTTP 503, 5 attempts"), (403, "HTTP 403"), (404, "not there")])
def test_a_server_that_does_not_recover_is_named_with_its_answer(
    index: Index, tmp_path: Path, status: int, why: str
) -> None:
    wheel = index.add("p", "p-1.0-py3-none-any.whl", b"data")
    index.fail["/files/" + wheel.file] = [status] * 9
    with pytest.raises(Problems) as caught:
        _fetch(tmp_path, wheel)
    assert f"{index.url}/simple: {why}" in str(caught.value)


def test_a_wheel_that_is_nowhere_lists_the_places_and_what_to_set(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "http://me:secret@127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    wheel = Artifact("torch", "2.13.0+cpu", "torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl", 5, "ab" * 32)
    other = Artifact("gone", "1", "gone-1-py3-none-any.whl", 5, "cd" * 32)
    with pytest.raises(Problems) as caught:
        _fetch(tmp_path, wheel, other)
    text = str(caught.value)
    assert f"{wheel.file} (sha256 abababababab…) is nowhere; looked in" in text
    assert "the store: not there" in text
    assert f"{tmp_path / 'wheels'}: not there" in text
    assert f"{index.url}/simple: not there" in text
    assert "http://127.0.0.1:9/simple: no answer (ConnectionError)" in text
    assert "secret" not in text
    assert "PIP_EXTRA_INDEX_URL" in text
    assert "PIP_FIND_LINKS" in text
    assert "inv fetch --import FILE" in text
    assert other.file in text


def test_one_that_is_nowhere_does_not_stop_the_others(index: Index, tmp_path: Path) -> None:
    wheel = index.add("p", "p-1.0-py3-none-any.whl", BIG)
    with pytest.raises(Problems):
        _fetch(tmp_path, wheel, Artifact("gone", "1", "gone-1-py3-none-any.whl", 5, "cd" * 32))
    assert Store(tmp_path / "store").has(wheel)


def test_a_directory_of_find_links_goes_before_the_index(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = index.add("p", "p-1.0+cpu-py3-none-any.whl", BIG)
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels" / wheel.file).write_bytes(BIG)
    monkeypatch.setenv("UV_FIND_LINKS", f"{tmp_path / 'nowhere'},{tmp_path / 'wheels'}")
    _fetch(tmp_path, wheel)
    assert Store(tmp_path / "store").verify(wheel)
    assert index.requests == []


def test_a_changed_file_beside_a_good_index_is_passed_over(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = index.add("p", "p-1.0-py3-none-any.whl", BIG)
    (tmp_path / wheel.file).write_bytes(b"other")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    _fetch(tmp_path, wheel)
    assert Store(tmp_path / "store").verify(wheel)


def test_a_digest_that_the_index_tells_and_that_differs_is_not_downloaded(index: Index, tmp_path: Path) -> None:
    now = index.add("p", "p-1.0-py3-none-any.whl", b"now")
    with pytest.raises(Problems) as caught:
        _fetch(tmp_path, Artifact("p", "1.0", now.file, 3, "ab" * 32))
    assert f"the bytes changed: locked sha256 {'ab' * 32}, found {now.sha256}" in str(caught.value)
    assert "hint: do not use that place" in str(caught.value)
    assert index.bodies(now.file) == []


@pytest.mark.parametrize("served", [b"now", b"nowhere", b"no"])
def test_bytes_that_differ_from_the_index_own_digest_are_refused(index: Index, tmp_path: Path, served: bytes) -> None:
    wheel = index.add("p", "p-1.0-py3-none-any.whl", b"old")
    index.files["/files/" + wheel.file] = served
    with pytest.raises(Problems) as caught:
        _fetch(tmp_path, wheel)
    assert ("the bytes changed" in str(caught.value)) == (len(served) >= 3)
    assert not Store(tmp_path / "store").has(wheel)


def _deb(data: bytes, path: str = "pool/main/t/tini/tini_0.19+b3_amd64.deb") -> Deb:
    name = path.rpartition("/")[2]
    return Deb("tini", "0.19+b3", name, len(data), hashlib.sha256(data).hexdigest(), "amd64", path, "bookworm", 86400)


def test_a_deb_comes_from_the_configured_mirror(index: Index, tmp_path: Path) -> None:
    deb, fix = _deb(b"deb"), _deb(b"fix", "pool/updates/main/t/tini/tini_1_amd64.deb")
    index.files["/debian/pool/main/t/tini/tini_0.19%2Bb3_amd64.deb"] = b"deb"
    index.files["/debian-security/" + fix.path] = b"fix"
    _fetch(tmp_path, deb, fix, KILN_APT_MIRROR=f"{index.url}/debian/")
    assert Store(tmp_path / "store").missing([deb, fix]) == []


def test_a_deb_that_has_left_the_mirror_comes_from_the_snapshot_of_the_lock_s_time(
    index: Index, tmp_path: Path
) -> None:
    deb = _deb(b"deb")
    index.files["/archive/debian/19700103T000000Z/pool/main/t/tini/tini_0.19%2Bb3_amd64.deb"] = b"deb"
    _fetch(tmp_path, deb, KILN_APT_MIRROR=f"{index.url}/debian", KILN_SNAPSHOT_MIRROR=index.url)
    assert Store(tmp_path / "store").has(deb)


def test_a_deb_that_is_nowhere_names_the_snapshot_setting_and_the_lock_command(index: Index, tmp_path: Path) -> None:
    with pytest.raises(Problems) as caught:
        _fetch(tmp_path, _deb(b"deb"), KILN_APT_MIRROR=f"{index.url}/debian")
    text = str(caught.value)
    assert f"{index.url}/debian: not there" in text
    assert "a snapshot mirror: none is configured" in text
    assert "KILN_SNAPSHOT_MIRROR" in text
    assert "inv lock --apt" in text


def test_a_full_disk_is_told_before_the_first_byte(index: Index, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"1000000\.0 GB are to be fetched, .* GB are free"):
        _fetch(tmp_path, Artifact("p", "1", "p-1-py3-none-any.whl", 10**15, "ab" * 32))
    assert index.requests == []


def test_an_interrupt_stops_and_the_next_fetch_continues(index: Index, tmp_path: Path) -> None:
    wheel = index.add("p", "p-1.0-py3-none-any.whl", BIG * 4)

    class Stopping(Counter):
        def advance(self, size_bytes: int) -> None:
            super().advance(size_bytes)
            if self.done_bytes > len(BIG):
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        _fetch(tmp_path, wheel, progress=Stopping())
    assert not Store(tmp_path / "store").has(wheel)
    assert (tmp_path / "store/partial" / wheel.sha256).stat().st_size >= len(BIG)
    _fetch(tmp_path, wheel)
    assert index.bodies(wheel.file)[-1].startswith("bytes=")


def _child(home: Path, artifacts: list[Artifact]) -> None:
    _fetch(home, *artifacts)


def test_two_processes_that_fetch_the_same_share_the_work(index: Index, tmp_path: Path) -> None:
    wheels = [index.add(f"p{n}", f"p{n}-1.0-py3-none-any.whl", BIG + bytes([n])) for n in range(6)]
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_child, args=(tmp_path, wheels)) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert [worker.exitcode for worker in workers] == [0, 0]
    assert [len(index.bodies(wheel.file)) for wheel in wheels] == [1] * 6
    assert list((tmp_path / "store/partial").iterdir()) == []
    assert all(Store(tmp_path / "store").verify(wheel) for wheel in wheels)


def test_without_a_terminal_the_end_is_one_line(index: Index, tmp_path: Path) -> None:
    import io

    wheel = index.add("p", "p-1.0-py3-none-any.whl", BIG)
    out = io.StringIO()
    _fetch(tmp_path, wheel, progress=Plain(out=out))
    assert out.getvalue() == "fetch: 1/1 files, 0.00 of 0.00 GB\n"
