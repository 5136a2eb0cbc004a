"""Names of images in registries: HOST[:PORT]/REPOSITORY:TAG, or …@DIGEST."""

from __future__ import annotations

import re
from dataclasses import dataclass

TAG = re.compile(r"\w[\w.-]{0,127}", re.ASCII)
_REFERENCE = re.compile(
    r"(?P<address>[\w.-]+(:\d+)?|\[[0-9a-f:]+\](:\d+)?)/(?P<repository>[a-z0-9._/-]+)"
    r"(:(?P<tag>[\w][\w.-]{0,127}))?(@(?P<digest>sha256:[0-9a-f]{64}))?"
)


@dataclass(frozen=True)
class Reference:
    """An image in a registry, by tag or by digest or by both; what is not given is empty."""

    address: str
    repository: str
    tag: str
    digest: str


def read(text: str) -> Reference | None:
    """Read a name that has a tag or a digest; None for anything else."""
    found = _REFERENCE.fullmatch(text)
    if not found or not (found["tag"] or found["digest"]):
        return None
    return Reference(found["address"], found["repository"], found["tag"] or "", found["digest"] or "")
