"""The patches and which of them a build applies: each file says so in its own DEP-3 header."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from packaging.specifiers import SpecifierSet

from kiln import dep3, names
from kiln.errors import Problem, UserError, raise_all
from kiln.versions import Gpu, Stack

FILE = re.compile(r"(\d{4})-([a-z0-9]+(?:-[a-z0-9]+)*)\.patch")
DIFF = re.compile(r"^(?:diff --git |--- \S)", re.MULTILINE)
_NAMES = re.compile(r"^diff --git a/(\S+) b/(\S+)$", re.MULTILINE)


@dataclass(frozen=True)
class Patch:
    """One patch file. `status` is "default", "opt-in: NAME" or "rejected"; `targets` are GPU names or "all".

    `sha256` is that of the diff alone, so that a word in the header rebuilds nothing.
    """

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
    evidence: str = ""
    drop_when: str = ""
    files: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """Return `component/NNNN-slug`."""
        return f"{self.component}/{self.number:04d}-{self.slug}"

    @property
    def names(self) -> tuple[str, ...]:
        """Return what `--with` and `--without` call it: label, slug, and the name of an opt-in."""
        opt_in = self.status.partition(":")[2].strip()
        return (self.label, self.slug, *([opt_in] if opt_in else []))

    def covers(self, version: str) -> bool:
        """Say whether the patch is meant for this version of its component."""
        return SpecifierSet(self.applies_to).contains(version, prereleases=True)

    def applies(self, gpu: str, version: str) -> bool:
        """Say whether the patch is meant for this GPU and this version of its component."""
        return self.covers(version) and ("all" in self.targets or gpu in self.targets)


@dataclass(frozen=True)
class Choice:
    """What a person changes of the default queue: names to add and to leave out; `i_know` lets rejected ones in."""

    added: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    i_know: bool = False

    @property
    def suffix(self) -> str:
        """Return what a tag says of it, nothing for the default queue."""
        words = [f"with-{name}" for name in self.added] + [f"without-{name}" for name in self.left_out]
        return "".join(f"-{word}" for word in words).replace("/", "-")[:64]

    def labels(self) -> dict[str, str]:
        """Return the OCI labels that tell it, none for the default queue."""
        said = {"kiln.patches.with": " ".join(self.added), "kiln.patches.without": " ".join(self.left_out)}
        return {label: names for label, names in said.items() if names}


DEFAULT = Choice()


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
    head, diff = split(path.read_bytes().decode("utf-8", "replace"), name)
    fields = dep3.read(head)
    raise_all(dep3.problems(name, head, fields, root))
    return Patch(
        component=path.parent.name,
        number=int(match[1]),
        slug=match[2],
        path=path,
        sha256=hashlib.sha256(diff.encode()).hexdigest(),
        subject=fields["Subject"],
        origin=fields["Origin"],
        forwarded=fields["Forwarded"],
        applies_to=fields["Applies-To"],
        targets=tuple(fields["Targets"].replace(",", " ").split()),
        status=fields["Status"],
        checked_by=fields["Checked-By"],
        evidence=fields.get("Evidence", ""),
        drop_when=fields.get("Drop-When", ""),
        files=tuple(dict.fromkeys(file for pair in _NAMES.findall(diff) for file in pair)),
    )


def split(text: str, name: str) -> tuple[str, str]:
    """Split a patch file into its header, up to the first line of the diff, and the rest. Raises UserError."""
    diff = DIFF.search(text)
    if diff is None:
        raise UserError("holds no diff", hint="write it with git format-patch", source=name)
    return text[: diff.start()], text[diff.start() :]


def patches_for(root: Path, stack: Stack, gpu: Gpu, component: str = "", choice: Choice = DEFAULT) -> tuple[Patch, ...]:
    """Return the patches for the stack's versions and the GPU, in the order to apply them: those with status
    `default`, changed as `choice` says. All components of the stack, or the one that is named.

    Raises Problems for a name that no patch for this stack and GPU bears, and for a rejected one without `i_know`.
    """
    wanted = {component: stack.components[component]} if component else stack.components
    meant = [
        patch
        for patch in load_all(root)
        if patch.component in wanted and patch.applies(gpu.name, wanted[patch.component])
    ]
    raise_all(_choice_problems(meant, choice, f"stack {stack.name} on {gpu.name}"))
    return tuple(patch for patch in meant if _chosen(patch, choice))


def find(patches: Iterable[Patch], name: str) -> tuple[Patch, ...]:
    """Return the patches that a label, slug or opt-in's name means. Raises UserError if there is none."""
    known = tuple(patches)
    found = tuple(patch for patch in known if name in patch.names)
    if not found:
        problem = names.unknown("patch", name, {name for patch in known for name in patch.names})
        raise UserError(problem.message, hint=problem.hint)
    return found


def _chosen(patch: Patch, choice: Choice) -> bool:
    if any(name in choice.left_out for name in patch.names):
        return False
    return patch.status == "default" or any(name in choice.added for name in patch.names)


def _choice_problems(meant: Iterable[Patch], choice: Choice, where: str) -> Iterator[Problem]:
    patches = tuple(meant)
    known = {name for patch in patches for name in patch.names}
    for option, chosen in (("--with", choice.added), ("--without", choice.left_out)):
        for name in (name for name in chosen if name not in known):
            yield names.unknown("patch", name, known, "", f"{option}: {where}")
    for patch in patches:
        if patch.status == "rejected" and not choice.i_know and any(name in choice.added for name in patch.names):
            hint = "to repeat the experiment all the same, add --i-know"
            yield Problem(f"patches/{patch.label}.patch", f"was tried and rejected: {patch.evidence}", hint)


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
            yield names.unknown("GPU", target, gpus, dep3.at(name, head, "Targets"), "Targets")
