"""Headers of patches: git's mail with DEP-3 fields and ours, each fault with its line."""

from __future__ import annotations

import email
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from kiln import names
from kiln.errors import Problem

STATUS = re.compile(r"default|rejected|opt-in: ?[a-z0-9][a-z0-9-]*")
FIELDS = {
    "Subject": "say in one line what it does",
    "Origin": "upstream, backport, vendor or other, and from where",
    "Forwarded": "yes and where to, no, or not-needed",
    "Applies-To": "a PEP 440 range of the component: >=0.7,<0.8",
    "Targets": "all, or names of GPUs of versions.yaml",
    "Status": "default, opt-in: <name> or rejected",
    "Checked-By": "the test that fails without the patch: tests/image/test_x.py::test_name",
    "Evidence": "numbers, their setup and source; `none` and why, if it touches no performance",
    "Drop-When": "<component> <range>, such as flashinfer >=0.8; or what has to happen",
}
_RANGE = re.compile(r"(?P<component>[a-z][a-z0-9-]*) (?P<range>[<>=!~]=?[^;]*)")


def read(head: str) -> dict[str, str]:
    """Return the fields of the mail header and of the block of fields at the start of its body, or of DEP-3 alone."""
    mail = email.message_from_string(re.sub(r"\AFrom \S+ .*\n", "", head))
    body = mail.get_payload()
    inner = email.message_from_string(body if isinstance(body, str) else "")
    fields = {key.title(): " ".join(str(value).split()) for message in (mail, inner) for key, value in message.items()}
    subject = fields.get("Subject") or fields.get("Description", "")
    return {**fields, "Subject": re.sub(r"^\[PATCH[^\]]*\] ?", "", subject)}


def problems(name: str, head: str, fields: Mapping[str, str], root: Path) -> Iterator[Problem]:
    """Yield every field that is missing or cannot be read."""
    for field in (field for field in FIELDS if not fields.get(field)):
        close = names.hint(field, set(fields) - set(FIELDS)).partition("? ")[0]
        typo = f"; {close}?" if close.startswith("did you mean") else ""
        yield Problem(f"{name}:1", f"header has no {field}", f"{field}: {FIELDS[field]}{typo}")
    for field in (field for field in FIELDS if fields.get(field)):
        if not _readable(field, fields[field]):
            hint = f"{field}: {FIELDS[field]}"
            yield Problem(at(name, head, field), f"{field}: {fields[field]!r} cannot be read", hint)
    yield from _evidence_problems(name, head, fields)
    checked_by = fields.get("Checked-By")
    if checked_by and not _is_test(root, checked_by):
        yield Problem(at(name, head, "Checked-By"), f"Checked-By: {checked_by!r} is not a test", FIELDS["Checked-By"])


def at(name: str, head: str, field: str) -> str:
    """Return `file:line` of a field, line 1 if it is not there."""
    lines = head.splitlines()
    found = (number for number, line in enumerate(lines, 1) if line.lower().startswith(f"{field.lower()}:"))
    return f"{name}:{next(found, 1)}"


def fits(text: str, component: str, version: str) -> bool:
    """Say whether a `Drop-When` that is a range holds for this version of the component; prose never does."""
    match = _RANGE.match(text)
    if match is None or match["component"] != component:
        return False
    return SpecifierSet(match["range"]).contains(version, prereleases=True)


def _readable(field: str, value: str) -> bool:
    if field == "Status":
        return STATUS.fullmatch(value) is not None
    if field == "Applies-To":
        return _is_specifier(value)
    match = _RANGE.match(value) if field == "Drop-When" else None
    return match is None or _is_specifier(match["range"])


def _evidence_problems(name: str, head: str, fields: Mapping[str, str]) -> Iterator[Problem]:
    evidence, status = fields.get("Evidence", ""), fields.get("Status", "")
    if status == "rejected" and evidence and not re.search(r"\d", evidence):
        hint = "a rejected patch is kept for its numbers: say what was measured, with what setup"
        yield Problem(at(name, head, "Evidence"), "Evidence: holds no number", hint)


def _is_specifier(text: str) -> bool:
    try:
        SpecifierSet(text)
    except InvalidSpecifier:
        return False
    return True


def _is_test(root: Path, checked_by: str) -> bool:
    file, _, test = checked_by.partition("::")
    path = root / file
    return path.is_file() and (not test or f"def {test}(" in path.read_text(encoding="utf-8"))
