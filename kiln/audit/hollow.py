"""Hollow kernels: they compile, load and launch, and do nothing."""

from __future__ import annotations

from collections.abc import Iterator

from kiln.audit.records import Target
from kiln.audit.rules import Finding

_WHAT = {"empty": "empty", "trap": "only stop the program"}


def check(target: Target) -> Iterator[Finding]:
    """Yield the stubs of each binary, grouped by template; a finding's names are mangled."""
    for record, facts in target.binaries():
        for stubs in facts.stubs:
            message = f"{len(stubs.kernels)} of {stubs.total} kernels for {stubs.target} are {_WHAT[stubs.kind]}"
            yield Finding("hollow", record.short, stubs.template, message.replace("are only", "only"), stubs.kernels)
