"""Scrubbing: take what identifies a node, a card or an account out of text that is kept and committed."""

from __future__ import annotations

import hashlib
import ipaddress
import re
from collections.abc import Iterable

_HASH_DIGITS = 12
# A count ("#token: 123456") is none, so a letter has to be in it.
_SECRET = r"""(?i)((?:api[_-]?key|token|password|secret)['"]?\s*[=:]\s*['"]?)(?!None\b)(?=\S*[a-z])[^\s'",)]{6,}"""
_PATTERNS = (
    (re.compile(r"\b(?:hf|sk|ghp)[_-][A-Za-z0-9_-]{16,}"), "SECRET"),
    (re.compile(_SECRET), r"\1SECRET"),
    (re.compile(r"(?i)\b((?:GPU|MIG)-)?[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b"), r"\1UUID"),
    (re.compile(r"(?i)(\bserial(?:[ _-]?(?:number|no))?\.?['\"]?\s*[=:]\s*['\"]?)[\w-]+"), r"\1SERIAL"),
    (re.compile(r"(?i)(?<![0-9a-f:])(?:[0-9a-f]{2}:){5}[0-9a-f]{2}(?![0-9a-f:])"), "MAC"),
    (re.compile(r"\bip-\d{1,3}(?:-\d{1,3}){3}(?:\.[a-z0-9.-]+)?"), "HOST"),
    (re.compile(r"(?<=://)(?![\d\[])(?!localhost\b)[\w.-]+"), "HOST"),
    (re.compile(r"(?<=[\w.-]@)(?!sha256:)(?![\d\[])[\w-]+(?:\.[\w-]+)*"), "HOST"),
    (re.compile(r"(/home/)[^/\s'\"]+"), r"\1USER"),
)  # fmt: skip
# Four numbers with dots may be a version too; behind `==` or in a file's name they are.
_V4 = re.compile(r"(?<![\w.])(?<!==)\d{1,3}(?:\.\d{1,3}){3}(?![\w.]*\d)")
_V6 = re.compile(r"(?<![\w:.])[0-9A-Fa-f]{0,4}(?::[0-9A-Fa-f]{0,4}){2,7}(?:%\w+)?(?![\w:])")


def hash_name(name: str) -> str:
    """Return the first 12 hex digits of the sha256 of a host name in lower case, without a final dot.

    Nothing is mixed in, so that the same node has the same hash whoever smokes it; who knows a name can recognise it.
    """
    return hashlib.sha256(name.strip().rstrip(".").lower().encode()).hexdigest()[:_HASH_DIGITS]


def scrub(text: str, names: Iterable[str] = ()) -> str:
    """Replace secrets, UUIDs, serials, addresses (not loopback), hosts of URLs and accounts, and the given names."""
    for pattern, word in _PATTERNS:
        text = pattern.sub(word, text)
    text = _V6.sub(_address, _V4.sub(_address, text))
    for name in sorted(spellings(names), key=len, reverse=True):
        text = re.sub(rf"(?<![\w-]){re.escape(name)}(?![\w-])", "HOST", text)
    return text


def spellings(names: Iterable[str]) -> set[str]:
    """Return names as they may stand in a text: as given and in lower case, whole and up to the first dot."""
    given = {name.strip().rstrip(".") for name in names} - {"localhost"}
    whole = given | {name.lower() for name in given}
    short = {name.partition(".")[0] for name in whole if not name.replace(".", "").isdigit()}
    return (whole | short) - {"", "localhost"}


def _address(found: re.Match[str]) -> str:
    try:
        address = ipaddress.ip_address(found[0].partition("%")[0])
    except ValueError:
        return found[0]
    return found[0] if address.is_loopback or address.is_unspecified else "ADDRESS"
