"""The patches and which of them a build applies: each file says so in its own DEP-3 header."""

from __future__ import annotations

import email
import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from kiln import names
from kiln.errors import Problem, UserError, raise_all
from kiln.versions import Gpu, Stack

FILE = re.compile(r"(\d{4})-([a-z0-9]+(?:-[a-z0-9]+)*)\.patch")
DIFF = re.compile(r"^(?:diff --git |--- \S)", re.MULTILINE)
STATUS = re.compile(r"default|rejected|opt-in: ?[a-z0-9][a-z0-9-]*")
FIELDS = {
    "Subject": "say in one line what it does",
    "Origin": "upstream, backport, vendor or other, and from where",
    "Forwarded": "yes and where to, no, or not-needed",
    "Applies-To": "a PEP 440 range of the component: >=0.7,<0.8",
    "Targets": "all, or names of GPUs of versions.yaml",
    "Status": "default, opt-in: <name> or rejected",
    "Checked-By": "the test that fails without the patch: tests/image/test_x.py::test_name",
}


@dataclass(frozen=True)
class Patch:
    """One patch file. `status` is "default", "opt-in: NAME" or "rejected"; `targets` are GPU names or "all"."""

    component: str
    number: int
    slug: str
    path: Path
    sha256: str
    subject: str
    origin: str
    forwarded: str
    applies_to: str
    targets: tuple[str, ...]
    status: str
    checked_by: str

    @property
    def label(self) -> str:
        """Return `component/NNNN-slug`."""
        return f"{self.component}/{self.number:04d}-{self.slug}"

    def applies(self, gpu: str, version: str) -> bool:
        """Say whether the patch is meant for this GPU and this version of its component."""
        fits = SpecifierSet(self.applies_to).contains(version, prereleases=True)
        return fits and ("all" in self.targets or gpu in self.targets)


def load_all(root: Path) -> tuple[Patch, ...]:
    """Load every patch, in order of component and number. Raises Problems with all that is wrong."""
    found: dict[tuple[str, int], Patch] = {}
    problems: list[Problem] = []
    for path in sorted((root / "patches").glob("*/*.patch")):
        try:
            patch = load(path, root)
        except UserError as error:
            problems += error.problems
            continue
        first = found.setdefault((patch.component, patch.number), patch)
        if first is not patch:
            message = f"number {patch.number:04d} is taken by {first.path.name}"
            problems.append(Problem(str(path.relative_to(root)), message, "give it the next free number"))
    raise_all(problems)
    return tuple(found.values())


def load(path: Path, root: Path) -> Patch:
    """Load one patch. Raises Problems."""
    name = str(path.relative_to(root))
    match = FILE.fullmatch(path.name)
    if match is None:
        raise UserError(
            "is not called NNNN-slug.patch", hint="git mv it to such as 0001-what-it-does.patch", source=name
        )
    data = path.read_bytes()
    text = data.decode("utf-8", "replace")
    diff = DIFF.search(text)
    if diff is None:
        raise UserError("holds no diff", hint="write it with git format-patch", source=name)
    head = text[: diff.start()]
    fields = read_header(head)
    raise_all(_header_problems(name, head, fields, root))
    return Patch(
        component=path.parent.name,
        number=int(match[1]),
        slug=match[2],
        path=path,
        sha256=hashlib.sha256(data).hexdigest(),
        subject=fields["Subject"],
        origin=fields["Origin"],
        forwarded=fields["Forwarded"],
        applies_to=fields["Applies-To"],
        targets=tuple(fields["Targets"].replace(",", " ").split()),
        status=fields["Status"],
        checked_by=fields["Checked-By"],
    )


def patches_for(root: Path, stack: Stack, gpu: Gpu, component: str = "") -> tuple[Patch, ...]:
    """Return the patches with status `default` for the stack's versions and the GPU, in the order to apply them.

    All components of the stack, or the one that is named.
    """
    wanted = {component: stack.components[component]} if component else stack.components
    return tuple(
        patch
        for patch in load_all(root)
        if patch.status == "default" and patch.component in wanted and patch.applies(gpu.name, wanted[patch.component])
    )


def read_header(head: str) -> dict[str, str]:
    """Return the fields of the mail header and of the block of fields at the start of its body, or of DEP-3 alone."""
    mail = email.message_from_string(re.sub(r"\AFrom \S+ .*\n", "", head))
    body = mail.get_payload()
    inner = email.message_from_string(body if isinstance(body, str) else "")
    fields = {key.title(): " ".join(str(value).split()) for message in (mail, inner) for key, value in message.items()}
    subject = fields.get("Subject") or fields.get("Description", "")
    return {**fields, "Subject": re.sub(r"^\[PATCH[^\]]*\] ?", "", subject)}


def _header_problems(name: str, head: str, fields: Mapping[str, str], root: Path) -> Iterator[Problem]:
    for field, meaning in FIELDS.items():
        if not fields.get(field):
            close = names.hint(field, set(fields) - set(FIELDS)).partition("? ")[0]
            typo = f"; {close}?" if close.startswith("did you mean") else ""
            yield Problem(f"{name}:1", f"header has no {field}", f"{field}: {meaning}{typo}")
    status, applies_to = fields.get("Status"), fields.get("Applies-To")
    if status and not STATUS.fullmatch(status):
        yield _bad_field(name, head, "Status", status)
    if applies_to and not _is_specifier(applies_to):
        yield _bad_field(name, head, "Applies-To", applies_to)
    checked_by = fields.get("Checked-By")
    if checked_by and not _is_test(root, checked_by):
        yield Problem(_at(name, head, "Checked-By"), f"Checked-By: {checked_by!r} is not a test", FIELDS["Checked-By"])


def _bad_field(name: str, head: str, field: str, value: str) -> Problem:
    return Problem(_at(name, head, field), f"{field}: {value!r} cannot be read", f"{field}: {FIELDS[field]}")


def _at(name: str, head: str, field: str) -> str:
    lines = head.splitlines()
    found = (number for number, line in enumerate(lines, 1) if line.lower().startswith(f"{field.lower()}:"))
    return f"{name}:{next(found, 1)}"


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


def reference_problems(
    root: Path, patches: tuple[Patch, ...], components: set[str], gpus: set[str]
) -> Iterator[Problem]:
    """Yield each component or GPU that a patch names and versions.yaml does not."""
    for patch in patches:
        name = str(patch.path.relative_to(root))
        if patch.component not in components:
            yield names.unknown("component", patch.component, components, name)
        head = patch.path.read_text(encoding="utf-8", errors="replace")
        for target in set(patch.targets) - {"all", *gpus}:
            yield names.unknown("GPU", target, gpus, _at(name, head, "Targets"), "Targets")
