"""rules/log.yaml: what lines of logs mean. A rule explains a verdict, and never makes one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from kiln import schema, yamlfile
from kiln.errors import Problem, UserError, raise_all
from kiln.intent import Model, Text
from kiln.yamlfile import Document

FILE = "rules/log.yaml"
Blame = Literal["host", "image", "preset", "numbers", "hang", "warm-up", "speed", "death", "nothing"]
_LONGEST = 300
# Of a line that repeats for every rank and every tactic, one is enough; what kills comes late.
_ORDER = ("death", "host", "image", "preset", "numbers", "hang", "warm-up", "speed", "nothing")


class Rule(Model):
    """One kind of line. `pattern` is searched in it, `sample` is such a line."""

    name: Text
    pattern: Text
    blames: Blame
    means: Text
    cure: Text
    sample: Text

    def finds(self, line: str) -> bool:
        """Say whether a line is of this kind."""
        return re.search(self.pattern, line) is not None


@dataclass(frozen=True)
class Explained:
    """A rule that lines of a log met: the first of them, cut, and how many there were."""

    rule: Rule
    line: str
    count: int


def load(root: Path) -> tuple[Rule, ...]:
    """Load the rules. Raises Problems with everything that is wrong."""
    document = yamlfile.read(root / FILE, root)
    rules, faults = _parse(document)
    raise_all(faults or _problems(document, rules))
    return rules


def problems(root: Path) -> list[Problem]:
    """Return everything that is wrong with the rules."""
    try:
        load(root)
    except UserError as error:
        return [*error.problems]
    return []


def explain(rules: Iterable[Rule], text: str) -> tuple[Explained, ...]:
    """Return the rules that a log's lines meet: what kills first, what looks bad and is not last."""
    known, found = tuple(rules), dict[str, Explained]()
    for line in text.splitlines():
        for rule in known:
            if rule.finds(line):
                first = found.get(rule.name) or Explained(rule, line.strip()[:_LONGEST], 0)
                found[rule.name] = replace(first, count=first.count + 1)
    return tuple(sorted(found.values(), key=lambda one: _ORDER.index(one.rule.blames)))


def _parse(document: Document) -> tuple[tuple[Rule, ...], list[Problem]]:
    rules, faults = list[Rule](), list[Problem]()
    for name, value in document.value.items():
        if not isinstance(value, Mapping):
            faults.append(Problem(document.at(name), f"{name}: must be a mapping", "write `key: value` lines below it"))
            continue
        own = ((key, line) for key, line in document.lines.items() if key.startswith(f"{name}."))
        lines = {key.removeprefix(f"{name}."): line for key, line in own}
        one = Document(document.name, {**value, "name": name}, {"": document.line(name), **lines})
        rule, found = schema.validate(one, Rule)
        faults += [replace(fault, message=f"{name}: {fault.message}") for fault in found]
        rules += [rule] if rule else []
    return tuple(rules), faults


def _problems(document: Document, rules: tuple[Rule, ...]) -> list[Problem]:
    broken = [*_broken(document, rules)]
    return broken or [*_unclear(document, rules)]


def _broken(document: Document, rules: Iterable[Rule]) -> Iterator[Problem]:
    for rule in rules:
        try:
            re.compile(rule.pattern)
        except re.error as error:
            where = document.at(f"{rule.name}.pattern")
            yield Problem(where, f"{rule.name}: the pattern cannot be read: {error}", "Python's syntax, \\\\ for a \\")


def _unclear(document: Document, rules: tuple[Rule, ...]) -> Iterator[Problem]:
    """Yield each rule that misses its own sample, or finds another's: a line shall have one meaning."""
    for rule in rules:
        if not rule.finds(rule.sample):
            where = document.at(f"{rule.name}.sample")
            yield Problem(where, f"{rule.name}: the pattern does not find the sample", "correct one of the two")
        for other in rules:
            if other is not rule and rule.finds(other.sample):
                where = document.at(f"{rule.name}.pattern")
                yield Problem(where, f"{rule.name}: finds the sample of {other.name}, too", "make it narrower")
