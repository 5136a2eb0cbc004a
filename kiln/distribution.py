"""The registry's HTTP interface (OCI distribution 1.1), as far as skopeo has no verb for it: small blobs, referrers."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from kiln import challenge, credentials, oci
from kiln.errors import CheckFailed
from kiln.registry import ASK_TIMEOUT_S, Registry, is_loopback
from kiln.registry_errors import Corrupt, Missing, error_of

if TYPE_CHECKING:
    import requests

LIMIT_BYTES = 64 << 20
REWRITES = 8


@dataclass(frozen=True)
class Reply:
    """One answer. `next_url`: where a list goes on, or ""."""

    status: int
    headers: Mapping[str, str]
    data: bytes
    next_url: str


@dataclass(frozen=True)
class Manifest:
    """A manifest as the registry holds it."""

    data: bytes
    media_type: str

    @property
    def digest(self) -> str:
        return oci.digest_of(self.data)

    def fields(self) -> dict[str, Any]:
        """Return its JSON. Raises CheckFailed if it is none."""
        return parse(self.data, f"manifest {self.digest}")


@dataclass(frozen=True)
class Repository:
    """One repository of a registry. Every request is repeated while the registry is unavailable (`Registry.retried`).

    Raises UserError with the HTTP code when the registry refuses, Missing when it has no such thing.
    """

    registry: Registry
    name: str

    def manifest(self, reference: str) -> Manifest | None:
        """Return the manifest of a tag or digest, None if there is none. Raises Corrupt if it has another digest."""
        accept = ", ".join((*oci.MANIFESTS, *oci.INDEXES))
        try:
            reply = self._ask("GET", f"manifests/{reference}", headers={"Accept": accept})
        except Missing:
            return None
        found = Manifest(reply.data, reply.headers.get("Content-Type", "").partition(";")[0])
        if reference.startswith("sha256:") and found.digest != reference:
            raise Corrupt(f"manifest {reference}: the content has another digest, {found.digest}")
        return found

    def put_manifest(self, reference: str, data: bytes, media_type: str = oci.MANIFEST) -> bool:
        """Store a manifest under a tag or digest; tells whether the registry indexes its subject by itself."""
        reply = self._ask("PUT", f"manifests/{reference}", data=data, headers={"Content-Type": media_type})
        return "OCI-Subject" in reply.headers

    def rewrite(self, tag: str, change: Callable[[Manifest | None], bytes | None], media_type: str) -> None:
        """Store what `change` makes of a tag's manifest until a look afterwards finds it content (None).

        A registry has no compare-and-swap: a second writer's loss is noticed and mended while either still looks.
        """
        for attempt in range(REWRITES):
            time.sleep(0.1 * attempt)
            new = change(self.manifest(tag))
            if new is None:
                return
            self.put_manifest(tag, new, media_type)
        raise CheckFailed(f"{self.shown}: other writers keep replacing the tag {tag}\n  hint: inv push")

    def blob(self, digest: str) -> bytes:
        """Return a blob. Raises Missing, Corrupt."""
        data = self._ask("GET", f"blobs/{digest}").data
        if oci.digest_of(data) != digest:
            raise Corrupt(f"blob {digest}: the content has another digest, {oci.digest_of(data)}")
        return data

    def has_blob(self, digest: str) -> bool:
        """Ask whether the repository holds a blob."""
        try:
            self._ask("HEAD", f"blobs/{digest}")
        except Missing:
            return False
        return True

    def put_blob(self, data: bytes) -> None:
        """Store a blob unless it is there."""
        digest = oci.digest_of(data)
        if not self.has_blob(digest):
            self.registry.retried(f"push {digest} to {self.shown}", lambda: self._upload(digest, data))

    def referrers(self, digest: str) -> list[dict[str, Any]] | None:
        """Return the descriptors of what refers to a digest, by the registry's own list; None if it keeps none."""
        found: list[dict[str, Any]] = []
        url = f"referrers/{digest}"
        while url:
            try:
                reply = self._ask("GET", url, headers={"Accept": oci.INDEX})
            except Missing:
                return None
            if reply.headers.get("Content-Type", "").partition(";")[0] != oci.INDEX:
                return None
            found += parse(reply.data, f"referrers of {digest}").get("manifests") or []
            url = reply.next_url
        return found

    @cached_property
    def _session(self) -> requests.Session:
        return credentials.session(self.registry.address)

    @cached_property
    def _login(self) -> credentials.Login:
        return credentials.find(self.registry.address, self.name)

    @property
    def shown(self) -> str:
        """Return the repository's full name."""
        return self.registry.ref(self.name, "")

    @property
    def _root(self) -> str:
        host, _, prefix = self.registry.address.partition("/")
        scheme = "http" if is_loopback(self.registry.address) else "https"
        return f"{scheme}://{host}/v2/{prefix}{'/' if prefix else ''}{self.name}/"

    def _ask(self, method: str, path: str, **how: Any) -> Reply:
        what = f"{method} {path.partition('?')[0]} of {self.shown}"
        return self.registry.retried(what, lambda: self._send(method, path, **how))

    def _send(self, method: str, path: str, **how: Any) -> Reply:
        """Send one request to an address or a path below the repository. Raises what the answer means."""
        from urllib.parse import urljoin

        url = urljoin(self._root, path)
        reply = self._once(method, url, **how)
        if reply.status == 401:
            asked = reply.headers.get("WWW-Authenticate", "")
            self._session.headers["Authorization"] = challenge.answer(asked, self._login, self._session)
            reply = self._once(method, url, **how)
        if reply.status >= 400:
            raise error_of(f"HTTP status: {reply.status}: {_reasons(reply.data)}")
        return reply

    def _once(self, method: str, url: str, **how: Any) -> Reply:
        import requests

        try:
            with self._session.request(method, url, timeout=ASK_TIMEOUT_S, stream=True, **how) as reply:
                data = b"".join(_limited(reply.iter_content(1 << 20)))
                return Reply(reply.status_code, reply.headers, data, reply.links.get("next", {}).get("url", ""))
        except requests.RequestException as error:
            raise error_of(str(error)) from None

    def _upload(self, digest: str, data: bytes) -> Reply:
        place = self._send("POST", "blobs/uploads/").headers["Location"]
        joined = f"{place}{'&' if '?' in place else '?'}digest={digest}"
        return self._send("PUT", joined, data=data, headers={"Content-Type": "application/octet-stream"})


def _limited(chunks: Iterable[bytes]) -> Iterator[bytes]:
    size = 0
    for chunk in chunks:
        size += len(chunk)
        if size > LIMIT_BYTES:
            raise CheckFailed(
                f"the registry sends more than {LIMIT_BYTES >> 20} MiB where a small document was expected"
            )
        yield chunk


def _reasons(data: bytes) -> str:
    """The error codes and messages of the distribution API's error body, or its start."""
    try:
        return "; ".join(f"{each['code']} {each.get('message', '')}" for each in json.loads(data)["errors"])
    except (ValueError, KeyError, TypeError):
        return data[:120].decode("utf-8", "replace")


def parse(data: bytes, label: str) -> dict[str, Any]:
    """Read a JSON object. Raises CheckFailed with the label."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise CheckFailed(f"{label}: broken JSON: {error}") from None
    if not isinstance(value, dict):
        raise CheckFailed(f"{label}: JSON {type(value).__name__}, not an object")
    return value
