"""`inv bump`: write other pins of a stack, lock it again, and tell what becomes of each patch.

All of it happens in a copy of the pins and locks: a version that does not resolve, or an interrupt, changes nothing.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from packaging.version import InvalidVersion, Version

from kiln import fetch, names, patches, patchlocks, patchqueue, resolve, versions, whole, yamlfile
from kiln.errors import CheckFailed, Problem, Problems, UserError, raise_all
from kiln.gitapply import Outcome
from kiln.intent import Stack
from kiln.resolve import Change
from kiln.settings import Settings
from kiln.store import Store

FILE = "versions.yaml"
_READ = ("images", "patches", "presets", "templates", "tests")


@dataclass(frozen=True)
class Pin:
    """A component's version before and after."""

    component: str
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.component} {self.old} -> {self.new}"


@dataclass(frozen=True)
class Bumped:
    """The pins of a stack that change, what the locks change by, and each patch's outcome on the new source."""

    stack: str
    pins: tuple[Pin, ...]
    changes: tuple[Change, ...]
    outcomes: tuple[Outcome, ...]

    def next_step(self, outcome: Outcome) -> str:
        """Return what to do about a patch; empty for one that simply goes on."""
        new = next(pin.new for pin in self.pins if pin.component == outcome.patch.component)
        if outcome.state == "applied" and not outcome.patch.covers(new):
            return f"widen its Applies-To ({outcome.patch.applies_to}) to hold {new}"
        return outcome.hint

    def as_dict(self) -> dict[str, object]:
        """Return it for machines."""
        told = [
            {"patch": one.patch.label, "status": one.patch.status, "outcome": one.state, "detail": one.detail,
             "next": self.next_step(one)}
            for one in self.outcomes
        ]  # fmt: skip
        pins = {pin.component: {"old": pin.old, "new": pin.new} for pin in self.pins}
        return {"stack": self.stack, "pins": pins, "changes": [str(change) for change in self.changes], "patches": told}


def bump(settings: Settings, wanted: Mapping[str, str], stack: str = "", *, dry: bool = False) -> Bumped:
    """Write versions.yaml and the stack's locks for other versions of some components, unless `dry`.

    Fetches the components' own sources to try the patches on. Raises Problems with every name that is not known and
    every version that is not exact, UserError for versions that do not resolve together; then nothing is written.
    """
    loaded = versions.load(settings.root / FILE)
    chosen = loaded.stack(stack or loaded.defaults.stack)
    raise_all(problem for pair in wanted.items() for problem in _problems(chosen, *pair))
    pins = tuple(Pin(name, chosen.components[name], new) for name, new in wanted.items())
    with _copy(settings) as place:
        for pin in pins:
            _write_pin(place.root, chosen.name, pin)
        changes = _lock(place, chosen.name)
        outcomes = [outcome for pin in pins for outcome in _outcomes(place, chosen.name, pin)]
        if not dry:
            _take(place.root, settings.root, chosen.name)
    return Bumped(chosen.name, pins, changes, tuple(outcomes))


def pairs(component: str, version: str, also: Iterable[str]) -> dict[str, str]:
    """Return components and their versions; `also` holds more of them as NAME=VERSION. Raises UserError."""
    found = {component: version}
    for text in also:
        name, equals, other = text.partition("=")
        if not (name and equals and other) or name in found:
            hint = "each component once: --also flashinfer=0.7.1"
            raise UserError(f"--also: {text!r} is not another COMPONENT=VERSION", hint=hint)
        found[name] = other
    return found


def require_patches(found: Bumped) -> None:
    """Raise CheckFailed if a default patch does not apply to the new version that it is written for."""
    bad = [one for one in found.outcomes if one.patch.status == "default" and one.state == "failed"]
    if bad:
        labels = ", ".join(one.patch.label for one in bad)
        raise CheckFailed(f"stack {found.stack}: {len(bad)} default patches do not apply: {labels}")


def _problems(stack: Stack, component: str, version: str) -> Iterator[Problem]:
    if component not in stack.components:
        yield names.unknown("component", component, stack.components, "", f"stack {stack.name}")
        return
    try:
        Version(version)
    except InvalidVersion:
        hint = f"one version as the index lists it: inv bump {component} 1.2.3"
        yield Problem("", f"{version!r} is not an exact version", hint)
    if stack.components[component] == version:
        yield Problem("", f"{component} of stack {stack.name} is at {version} already", "name another version")


@contextmanager
def _copy(settings: Settings) -> Iterator[Settings]:
    with tempfile.TemporaryDirectory(prefix="kiln-bump-") as scratch:
        root = Path(scratch)
        shutil.copy2(settings.root / FILE, root / FILE)
        shutil.copytree(settings.root / "locks", root / "locks")
        for name in _READ:
            (root / name).symlink_to(settings.root / name)
        yield replace(settings, root=root)


def _write_pin(root: Path, stack: str, changed: Pin) -> None:
    """Change the one scalar, and nothing else of the file."""
    path = root / FILE
    number = yamlfile.read(path, root).line(f"stacks.{stack}.components.{changed.component}")
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    pin = re.compile(rf"(\b{re.escape(changed.component)}\s*:\s*)(['\"]){re.escape(changed.old)}\2")
    lines[number - 1], count = pin.subn(rf"\g<1>\g<2>{changed.new}\g<2>", lines[number - 1])
    if count != 1:
        hint = f'write it on one line: {changed.component}: "{changed.old}"'
        raise UserError(f"the pin of {changed.component} is not on this line", hint=hint, source=f"{FILE}:{number}")
    path.write_text("".join(lines), encoding="utf-8")


def _lock(place: Settings, stack: str) -> tuple[Change, ...]:
    try:
        return resolve.lock(place, [stack], ("python", "sources"))
    except UserError as error:
        hint = "components that have to move together: --also COMPONENT=VERSION; nothing was written"
        told = Problem("", f"stack {stack} cannot be locked with these pins", hint)
        raise Problems([*error.problems, told]) from None


def _outcomes(place: Settings, stack: str, pin: Pin) -> list[Outcome]:
    if not any(patch.component == pin.component for patch in patches.load_all(place.root)):
        return []
    components = versions.load(place.root / FILE).stack(stack).components
    source = patchlocks.read_pinned(place.root, stack, components)[pin.component]
    store = Store(place.store)
    fetch.fetch(place, store, [source])
    found = patchqueue.report(place, pin.component, pin.new, store.path(source.sha256))
    return [one for one in found if one.patch.covers(pin.old) or one.patch.covers(pin.new)]


def _take(made: Path, root: Path, stack: str) -> None:
    """Put the new locks and the new pin in place, the pin last: until then the checkout is as it was."""
    for file in [*sorted((made / "locks" / stack).glob("*.toml")), made / FILE]:
        target = root / file.relative_to(made)
        if not target.exists() or target.read_bytes() != file.read_bytes():
            whole.write(target, file.read_bytes())
