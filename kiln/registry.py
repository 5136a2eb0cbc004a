"""An image registry: push an OCI layout by digest, prove that it arrived, ask what is there. skopeo transfers."""

from __future__ import annotations

import hashlib
import ipaddress
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from kiln import oci, run
from kiln.errors import CheckFailed, UserError
from kiln.registry_errors import Corrupt, Missing, Refused, Unavailable, error_of

Announce = Callable[[str], None]
Answer = TypeVar("Answer")
ATTEMPTS = 6
ASK_TIMEOUT_S = 60
PUSH_TIMEOUT_S = 4 * 3600
# What registries and proxies in front of them commonly take in one piece; an image pulls in parallel by layer, too.
LAYER_LIMIT_BYTES = 4 * 10**9


def _silent(line: str) -> None:
    pass


@dataclass(frozen=True)
class Registry:
    """`address`: host[:port][/prefix]. Credentials are those of `docker login` and `skopeo login`."""

    address: str
    announce: Announce = _silent
    attempts: int = ATTEMPTS
    first_wait_s: float = 1.0

    def push(self, layout: Path, repository: str, tag: str, *, log: Path | None = None) -> str:
        """Push a layout byte for byte under a tag; returns its digest, which the registry then has.

        What the registry holds already is not sent again, so a push that broke off goes on where it was, blob by blob.
        Raises UserError when a layer is above the limit, the registry refuses, or it is down for all attempts (about
        half a minute).
        """
        digest = manifest_digest(layout)
        require_small_layers(layout, digest)
        target = self.ref(repository, f":{tag}")
        self.retried(f"push to {target}", lambda: self._copy(layout, target, log))
        if not self.exists(repository, digest):
            raise CheckFailed(f"{target} was pushed, but the registry does not hold {digest}\n  hint: inv push")
        return digest

    def exists(self, repository: str, digest: str) -> bool:
        """Tell whether the registry holds the very manifest of a digest."""
        name = self.ref(repository, f"@{digest}")
        try:
            raw = self.retried(f"look for {name}", lambda: self._skopeo("inspect", "--raw", f"docker://{name}"))
        except Missing:
            return False
        return f"sha256:{hashlib.sha256(raw.encode()).hexdigest()}" == digest

    def tags(self, repository: str) -> tuple[str, ...]:
        """Return a repository's tags, sorted; none for one that is not there."""
        name = self.ref(repository, "")
        try:
            text = self.retried(f"list {name}", lambda: self._skopeo("list-tags", f"docker://{name}"))
        except Missing:
            return ()
        return tuple(sorted(json.loads(text)["Tags"] or ()))

    def pull(self, repository: str, digest: str, dest: Path) -> None:
        """Copy the image of a digest into an OCI layout at `dest`, byte for byte.

        Raises CheckFailed with the digests if the registry sends other content than was asked for.
        """
        name = self.ref(repository, f"@{digest}")
        argv = ["skopeo", "--insecure-policy", f"--command-timeout={PUSH_TIMEOUT_S}s", "copy", "--preserve-digests",
                *self._tls("--src-tls-verify"), f"docker://{name}", f"oci:{dest}"]  # fmt: skip
        try:
            self.retried(f"pull {name}", lambda: _output(run.run(argv, check=False)))
        except Missing as error:
            raise UserError(f"pull {name}: {error}", source=self.address) from None
        except Corrupt as error:
            raise CheckFailed(f"pull {name}: {error}") from None

    def ref(self, repository: str, suffix: str) -> str:
        """Return `host/prefix/repository` with `:tag` or `@digest`."""
        return f"{self.address}/{repository}{suffix}"

    def _copy(self, layout: Path, target: str, log: Path | None) -> str:
        argv = ["skopeo", "--insecure-policy", f"--command-timeout={PUSH_TIMEOUT_S}s", "copy", "--preserve-digests",
                *self._tls("--dest-tls-verify"), f"oci:{layout}", f"docker://{target}"]  # fmt: skip
        if log is None:
            return _output(run.run(argv, check=False))
        return _output(run.stream(argv, log=log))

    def _skopeo(self, verb: str, *words: str) -> str:
        argv = ["skopeo", "--insecure-policy", f"--command-timeout={ASK_TIMEOUT_S}s", verb]
        return _output(run.run([*argv, *self._tls("--tls-verify"), *words], check=False, timeout_s=ASK_TIMEOUT_S + 10))

    def _tls(self, option: str) -> list[str]:
        return [f"{option}=false"] if is_loopback(self.address) else []

    def retried(self, what: str, step: Callable[[], Answer]) -> Answer:
        """Repeat a step while the registry is unavailable, with growing waits; a refusal is final."""
        from tenacity import RetryCallState, Retrying, retry_if_exception_type, stop_after_attempt, wait_exponential

        def tell(state: RetryCallState) -> None:
            wait_s = state.next_action.sleep if state.next_action else 0
            fault = state.outcome.exception() if state.outcome else None
            self.announce(f"{what}: {fault}; attempt {state.attempt_number + 1} of {self.attempts} in {wait_s:.0f} s")

        retrying = Retrying(
            retry=retry_if_exception_type(Unavailable),
            stop=stop_after_attempt(self.attempts),
            wait=wait_exponential(multiplier=self.first_wait_s, max=30),
            before_sleep=tell,
            reraise=True,
        )
        try:
            return retrying(step)
        except Unavailable as error:
            raise UserError(
                f"{what}: {error} ({self.attempts} attempts)",
                hint="nothing is lost: `inv push` goes on from there once the registry answers",
                source=self.address,
            ) from None
        except Refused as error:
            raise UserError(f"{what}: {error}", hint=error.fault.hint, source=self.address) from None


def _output(done: run.Completed) -> str:
    """Return skopeo's output, or raise what its last words mean."""
    if done.returncode == 0:
        return done.stdout
    raise error_of(done.stderr or done.stdout)


def manifest_digest(layout: Path) -> str:
    """Return the digest of the one manifest that an OCI layout holds."""
    try:
        manifests = json.loads((layout / "index.json").read_text())["manifests"]
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"{layout} is no OCI layout: {error}", hint="inv build") from None
    if len(manifests) != 1:
        raise UserError(f"{layout} holds {len(manifests)} manifests, one was expected", hint="inv build")
    return str(manifests[0]["digest"])


def require_small_layers(layout: Path, digest: str) -> None:
    """Refuse an image with a layer above the limit, before anything is sent. Raises UserError."""
    try:
        manifest = json.loads(oci.blob_path(layout, digest).read_text())
        sizes = {str(layer["digest"]): int(layer["size"]) for layer in manifest["layers"]}
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"{layout} is no OCI layout: {error}", hint="inv build") from None
    large = [f"{name} ({size / 1e9:.1f} GB)" for name, size in sizes.items() if size > LAYER_LIMIT_BYTES]
    if large:
        limit = f"{LAYER_LIMIT_BYTES / 1e9:.0f} GB"
        raise UserError(
            f"layers above {limit}: {', '.join(large)}", hint="split the step that makes it", source=str(layout)
        )


def is_loopback(address: str) -> bool:
    """Tell whether an address is on this host: only there may a registry speak plain HTTP."""
    host = address.partition("/")[0]
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name == "localhost"
