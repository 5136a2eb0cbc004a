"""A registry in memory for what Debian's lacks: the referrers API in pages, Bearer tokens, a failure on demand."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

INDEX = "application/vnd.oci.image.index.v1+json"


@dataclass
class MemoryRegistry:
    """What is stored and was asked.

    `failures`: statuses to answer with first; `users`: who gets tokens, nobody for an open registry.
    """

    referrers_api: bool = True
    users: dict[str, str] = field(default_factory=dict)
    failures: list[int] = field(default_factory=list)
    blobs: dict[str, bytes] = field(default_factory=dict)
    manifests: dict[str, tuple[bytes, str]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    scopes: list[str] = field(default_factory=list)
    address: str = ""

    @contextmanager
    def serve(self) -> Iterator[str]:
        """Answer on loopback; gives the address."""
        state = self

        class Bound(_Handler):
            registry = state

        with ThreadingHTTPServer(("127.0.0.1", 0), Bound) as server:
            self.address = f"127.0.0.1:{server.server_address[1]}"
            threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
            yield self.address
            server.shutdown()

    def put_manifest(self, reference: str, data: bytes, media_type: str) -> bool:
        """Store one; tells whether it has a subject that this registry indexes."""
        for name in (reference, f"sha256:{hashlib.sha256(data).hexdigest()}"):
            self.manifests[name] = (data, media_type)
        return self.referrers_api and "subject" in json.loads(data)

    def referrers(self, digest: str) -> list[dict[str, Any]]:
        """Describe the manifests whose subject is a digest."""
        found = []
        for name, (data, media_type) in sorted(self.manifests.items()):
            fields = json.loads(data)
            if name.startswith("sha256:") and fields.get("subject", {}).get("digest") == digest:
                entry = {"mediaType": media_type, "digest": name, "size": len(data)}
                found.append({**entry, "artifactType": fields.get("artifactType")})
        return found


class _Handler(BaseHTTPRequestHandler):
    registry: MemoryRegistry
    protocol_version = "HTTP/1.1"
    wbufsize = 1 << 16  # head and body in one packet: else each answer waits for a delayed acknowledgement

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        if url.path == "/token":
            self._token(parse_qs(url.query))
        elif self._admitted("pull"):
            self._read(url.path, parse_qs(url.query))

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_POST(self) -> None:
        if self._admitted("pull,push"):
            self._answer(202, headers={"Location": f"{urlsplit(self.path).path}1?state=x"})

    def do_PUT(self) -> None:
        data = self.rfile.read(int(self.headers["Content-Length"]))
        if not self._admitted("pull,push"):
            return
        url = urlsplit(self.path)
        headers = {}
        if "/manifests/" in url.path:
            if self.registry.put_manifest(url.path.rpartition("/")[2], data, self.headers["Content-Type"]):
                headers = {"OCI-Subject": json.loads(data)["subject"]["digest"]}
        else:
            self.registry.blobs[parse_qs(url.query)["digest"][0]] = data
        self._answer(201, headers=headers)

    def _read(self, path: str, query: dict[str, list[str]]) -> None:
        kind, _, name = path.rpartition("/")
        if kind.endswith("/blobs") and name in self.registry.blobs:
            self._answer(200, self.registry.blobs[name])
        elif kind.endswith("/manifests") and name in self.registry.manifests:
            data, media_type = self.registry.manifests[name]
            self._answer(200, data, {"Content-Type": media_type})
        elif kind.endswith("/referrers") and self.registry.referrers_api:
            self._page(path, self.registry.referrers(name), int(query.get("after", ["0"])[0]))
        else:
            self._answer(404, b'{"errors": [{"code": "NAME_UNKNOWN", "message": "no such thing"}]}')

    def _page(self, path: str, entries: list[dict[str, Any]], start: int) -> None:
        """One entry a page."""
        data = json.dumps({"schemaVersion": 2, "mediaType": INDEX, "manifests": entries[start : start + 1]}).encode()
        headers = {"Content-Type": INDEX}
        if start + 1 < len(entries):
            headers["Link"] = f'<{path}?after={start + 1}>; rel="next"'
        self._answer(200, data, headers)

    def _admitted(self, actions: str) -> bool:
        self.registry.asked.append(f"{self.command} {self.path}")
        if self.registry.failures:
            self._answer(self.registry.failures.pop(0), b"oops")
            return False
        if not self.registry.users or self.headers.get("Authorization") == f"Bearer {actions}":
            return True
        repository = re.findall("/v2/(.*)/(?:blobs|manifests|referrers)", self.path)[0]
        realm = f'realm="http://{self.registry.address}/token",service="memory"'
        challenge = f'Bearer {realm},scope="repository:{repository}:{actions}"'
        self._answer(401, b"{}", {"WWW-Authenticate": challenge})
        return False

    def _token(self, query: dict[str, list[str]]) -> None:
        scheme, _, encoded = self.headers.get("Authorization", "").partition(" ")
        user, _, password = base64.b64decode(encoded).decode().partition(":")
        if scheme != "Basic" or self.registry.users.get(user) != password:
            self._answer(401, b"{}")
            return
        self.registry.scopes += query["scope"]
        self._answer(200, json.dumps({"token": query["scope"][0].rpartition(":")[2]}).encode())

    def _answer(self, status: int, data: bytes = b"", headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        pass
