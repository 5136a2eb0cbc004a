"""What a person decided about findings: audit/allow.yaml, each entry with its reason."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from kiln import schema, yamlfile
from kiln.errors import raise_all

FILE = "audit/allow.yaml"
Check = Literal["arch", "hollow", "symbols", "python", "toolchain"]
CHECKS: tuple[Check, ...] = ("arch", "hollow", "symbols", "python", "toolchain")
_REASON_LENGTH = 20


@dataclass(frozen=True)
class Finding:
    """Something wrong with `subject` (a template, a library, a distribution) of `file`; `reason`: why it is allowed.

    `names` has what was found in full: the kernels, the symbols, the files.
    """

    check: Check
    file: str
    subject: str
    message: str
    names: tuple[str, ...] = ()
    reason: str = ""


class Allowed(BaseModel):
    """One entry: globs over a finding's file and subject; no `gpus` or `stacks` means all.

    `names` is a glob that everything a finding lists has to match: kernels mangled, as they lie in the file. An entry
    for the kernels of one template argument then says nothing about the template's others.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    file: Annotated[str, Field(min_length=1)]
    subject: str = "*"
    names: str = "*"
    gpus: tuple[str, ...] = ()
    stacks: tuple[str, ...] = ()
    reason: str

    @field_validator("reason")
    @classmethod
    def _says_why(cls, value: str) -> str:
        if len(value) < _REASON_LENGTH:
            raise ValueError(f"{value!r} is no reason: say why this is right for the image")
        return value

    def matches(self, finding: Finding, gpu: str, stack: str) -> bool:
        """Say whether the entry is about this finding. A target of no stack is every stack's."""
        fits = (not self.gpus or gpu in self.gpus) and (not self.stacks or not stack or stack in self.stacks)
        named = fnmatch.fnmatchcase(finding.file, self.file) and fnmatch.fnmatchcase(finding.subject, self.subject)
        return fits and named and all(fnmatch.fnmatchcase(name, self.names) for name in finding.names or ("",))


class Rules(BaseModel):
    """The allow-list of each check."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    arch: tuple[Allowed, ...] = ()
    hollow: tuple[Allowed, ...] = ()
    symbols: tuple[Allowed, ...] = ()
    python: tuple[Allowed, ...] = ()
    toolchain: tuple[Allowed, ...] = ()

    def judge(self, findings: Iterable[Finding], gpu: str, stack: str) -> tuple[Finding, ...]:
        """Give each finding the reason of the first entry about it."""
        return tuple(self._judged(finding, gpu, stack) for finding in findings)

    def _judged(self, finding: Finding, gpu: str, stack: str) -> Finding:
        entries: tuple[Allowed, ...] = getattr(self, finding.check)
        found = next((entry for entry in entries if entry.matches(finding, gpu, stack)), None)
        return replace(finding, reason=found.reason) if found else finding


def load(root: Path) -> Rules:
    """Read the allow-list. Raises Problems, each with its line."""
    rules, problems = schema.validate(yamlfile.read(root / FILE, root), Rules)
    raise_all(problems)
    assert rules is not None
    return rules
