"""What a registry's answer or skopeo's last words mean: try again, there is no such thing, a refusal and its cure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from kiln.errors import CheckFailed, KilnError

Kind = Literal["unavailable", "missing", "refused", "corrupt"]


@dataclass(frozen=True)
class Fault:
    """A failed request: its kind, its cause in words, and for a refusal the next step."""

    kind: Kind
    text: str
    hint: str = ""


class Unavailable(KilnError):
    """The registry cannot be reached or is unwell: worth another attempt."""


class Missing(KilnError):
    """The registry answers, and has no such thing."""


class Refused(KilnError):
    """The registry's answer is no, and will stay no."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.text)
        self.fault = fault


class Corrupt(CheckFailed):
    """What was sent or stored has another digest than the one it goes by."""


# Searched in this order. Texts of Go's net package, containers/image 5.23 (skopeo 1.9.3) and 5.35 (1.18),
# and of urllib3 2.
_RULES: tuple[tuple[str, Kind, str, str], ...] = (
    (r"blob upload (unknown|invalid)", "unavailable", "HTTP 404, the registry lost the upload", ""),
    (r"(manifest|name) unknown|name not known|HTTP status: 404|blob unknown to registry",
     "missing", "HTTP 404, no such image", ""),
    (r"toomanyrequests|HTTP status: 429|too many requests", "unavailable", "HTTP 429, too many requests", ""),
    (r"connection refused", "unavailable", "connection refused", ""),
    # Go words a break by the side that saw it first: any failed read or write of a connection is one.
    (r"connection reset|broken pipe|unexpected EOF|: EOF|server closed idle connection|closed network connection|"
     r"remote end closed connection|IncompleteRead|"
     r"\b(read|readfrom|write) tcp \S+->\S+: (?!i/o timeout)", "unavailable", "the connection broke", ""),
    (r"i/o timeout|TLS handshake timeout|deadline exceeded|Client\.Timeout|(read|connect) timed out", "unavailable",
     "no answer in time", ""),
    (r"no route to host|network is unreachable|server misbehaving|Temporary failure", "unavailable",
     "the network does not reach it", ""),
    (r"HTTP status: (?P<code>5\d\d[\w ]*)", "unavailable", "HTTP {code}", ""),
    (r"no such host|Name or service not known", "refused", "there is no host of that name", "check KILN_REGISTRY"),
    (r"unauthorized|authentication required|HTTP status: 401", "refused", "HTTP 401, it wants a login",
     "skopeo login, or docker login"),
    (r"access to the resource is denied|HTTP status: 403|\bdenied\b", "refused", "HTTP 403, this login may not do that",
     "check KILN_REGISTRY's path, or log in as another user"),
    (r"HTTP status: 413", "refused", "HTTP 413, a layer is larger than it or its proxy takes", "raise the limit there"),
    (r"digest did not match|does not match (provided manifest digest|expected)|digest invalid", "corrupt",
     "the content has another digest", ""),
    (r"manifest (blob unknown|invalid|unverified)|HTTP status: 400", "refused",
     "HTTP 400, it takes the manifest or a blob for malformed", ""),
    (r"\bunsupported\b|HTTP status: 405", "refused", "HTTP 405, it allows no push or no such request",
     "check KILN_REGISTRY: is it a read-only mirror?"),
    (r"server gave HTTP response to HTTPS client|WRONG_VERSION_NUMBER", "refused",
     "it speaks plain HTTP, which only loopback may", "give it a certificate"),
    (r"HTTP status: (?P<code>4\d\d[\w ]*)", "refused", "HTTP {code}", ""),
    (r"x509: |certificate", "refused", "its certificate is not trusted here",
     "put its CA into /etc/containers/certs.d/HOST/ca.crt"),
    (r"invalid reference format|repository name must be lowercase", "refused", "the name or tag is not well-formed",
     "check KILN_REGISTRY"),
)  # fmt: skip
_OTHER_WORDS = re.compile(r"StatusCode:|status code from registry:?")
_LEVEL = re.compile(r'.*level=fatal msg="(?P<text>.*)"', re.DOTALL)


def classify(words: str) -> Fault:
    """Judge the error output of a skopeo that failed. What no rule knows is a refusal, told as it came."""
    last = _OTHER_WORDS.sub("HTTP status:", _last_words(words))
    for pattern, kind, text, hint in _RULES:
        if found := re.search(pattern, last, re.IGNORECASE):
            return Fault(kind, f"{text.format(**found.groupdict())} [{_brief(last)}]", hint)
    return Fault("refused", _brief(last))


def error_of(words: str) -> KilnError:
    """Return the exception for the words of a request that failed: Unavailable, Missing, Corrupt or Refused."""
    fault = classify(words)
    kinds: dict[Kind, type[KilnError]] = {"unavailable": Unavailable, "missing": Missing, "corrupt": Corrupt}
    return Refused(fault) if fault.kind == "refused" else kinds[fault.kind](fault.text)


def _last_words(words: str) -> str:
    found = _LEVEL.match(words)
    return (found["text"] if found else words.strip()).replace('\\"', '"')


def _brief(text: str) -> str:
    """The innermost causes: Go puts them last."""
    return text if len(text) <= 240 else "… " + text[-240:]
