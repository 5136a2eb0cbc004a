"""What an audit found."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass

from kiln.audit.arch import Row, by_distribution
from kiln.audit.demangle import demangle
from kiln.audit.rules import CHECKS, Finding


@dataclass(frozen=True)
class Report:
    """One audit; findings with a reason are allowed. `stack` is empty for a target of no stack."""

    target: str
    gpu: str
    stack: str
    files: int
    size_bytes: int
    rows: tuple[Row, ...]
    findings: tuple[Finding, ...]
    seconds: float

    @property
    def failed(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if not finding.reason)

    def of(self, check: str) -> tuple[Finding, ...]:
        """Return one check's findings: those that fail first."""
        return tuple(sorted((one for one in self.findings if one.check == check), key=_order))

    def counts(self) -> dict[str, tuple[int, int]]:
        """Return, for each check, how many findings fail and how many are allowed."""
        return {check: _split(self.of(check)) for check in CHECKS}

    def distributions(self) -> dict[str, Counter[str]]:
        """Count binaries by distribution and the target that the GPU would take."""
        return by_distribution(self.rows)

    def as_dict(self) -> dict[str, object]:
        """Return plain data: kernels with their readable names."""
        return {
            "target": self.target, "gpu": self.gpu, "stack": self.stack, "passed": not self.failed,
            "files": self.files, "size_bytes": self.size_bytes, "seconds": round(self.seconds, 1),
            "binaries": [{**asdict(row), "best": row.best} for row in self.rows],
            "findings": [{**asdict(one), "names": [demangle(name) for name in one.names]} for one in self.findings],
        }  # fmt: skip


def _split(findings: tuple[Finding, ...]) -> tuple[int, int]:
    allowed = sum(bool(one.reason) for one in findings)
    return len(findings) - allowed, allowed


def _order(finding: Finding) -> tuple[bool, str, str, str]:
    return bool(finding.reason), finding.file, finding.subject, finding.message
