"""A YAML file in which every scalar is a string and every key has a line."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import yaml
from yaml import events
from yaml.nodes import ScalarNode
from yaml.resolver import Resolver

from kiln.errors import Problem, Problems, UserError, raise_all

if TYPE_CHECKING:
    from collections.abc import Iterator

Value: TypeAlias = "str | list[Value] | dict[str, Value]"

# What YAML 1.1 makes of a plain scalar that is not text, in words.
KINDS = {
    "bool": "a boolean",
    "int": "a number",
    "float": "a number",
    "timestamp": "a date",
    "null": "nothing",
    "merge": "a merge",
    "value": "a default",
}
STR = "tag:yaml.org,2002:str"
# libyaml's parser, where PyYAML was built with it, is ten times as fast; PyYAML's own says better what is wrong.
_FAST = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True)
class Document:
    """A file as strings, lists and mappings (sorted by key), with the line of every dotted path."""

    name: str
    value: dict[str, Value]
    lines: Mapping[str, int]

    def line(self, path: str) -> int:
        """Return the line of a path such as `a.b[0].c`, or of its nearest parent that is in the file."""
        while path and path not in self.lines:
            path = re.sub(r"(\[[^\[\]]*\]|\.[^.\[\]]*|^[^.\[\]]*)$", "", path)
        return self.lines.get(path, 1)

    def at(self, path: str) -> str:
        """Return "file:line" of a path."""
        return f"{self.name}:{self.line(path)}"


def join(path: str, key: str | int) -> str:
    """Add a key or an index to a dotted path."""
    if isinstance(key, int):
        return f"{path}[{key}]"
    return f"{path}.{key}" if path else key


def read(path: Path, root: Path) -> Document:
    """Read a file whose top is a mapping; errors name it relative to `root`. Raises Problems."""
    name = str(path.relative_to(root))
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise UserError(f"{name} does not exist", hint="run the command in a complete checkout") from error
    except UnicodeDecodeError as error:
        raise UserError(f"byte {error.start} is not UTF-8", hint="save the file as UTF-8", source=name) from error
    return parse(text, name)


def parse(text: str, name: str) -> Document:
    """Read text as `read` does."""
    raise_all(
        Problem(f"{name}:{number}", "a tab in the indentation", "indent with spaces")
        for number, line in enumerate(text.splitlines(), 1)
        if "\t" in line[: len(line) - len(line.lstrip())]
    )
    try:
        value, reader = _read(text, name, yaml.SafeLoader if "\t" in text else _FAST)  # libyaml lets some tabs pass
    except yaml.YAMLError:
        value, reader = _explained(text, name)
    raise_all(reader.problems)
    if not isinstance(value, dict):
        raise UserError("is not a mapping", hint="start with `key:`", source=f"{name}:1")
    return Document(name, value, reader.lines)


def _read(text: str, name: str, loader: Any) -> tuple[Value, _Reader]:
    reader = _Reader(name, yaml.parse(text, Loader=loader))
    return reader.document(), reader


def _explained(text: str, name: str) -> tuple[Value, _Reader]:
    """Read a text that is not YAML once more, by the parser that tells why. Raises Problems."""
    reader = _Reader(name, yaml.parse(text, Loader=yaml.SafeLoader))
    try:
        return reader.document(), reader
    except yaml.MarkedYAMLError as error:
        raise Problems([*reader.problems, _syntax(error, name)]) from error
    except yaml.YAMLError as error:
        raise UserError(str(error).splitlines()[0], hint="remove the character", source=name) from error


def _syntax(error: yaml.MarkedYAMLError, name: str) -> Problem:
    mark = error.problem_mark or error.context_mark
    source = f"{name}:{mark.line + 1}" if mark else name
    if "'\\t'" in (error.problem or ""):
        return Problem(source, "a tab between two words", "use spaces")
    return Problem(source, f"not YAML: {error.problem or error.context}", "look at this line and the one above it")


def _line(event: events.Event) -> int:
    return event.start_mark.line + 1 if event.start_mark else 1


class _Reader:
    """Builds the tree from the parser's events and collects what is wrong on the way."""

    def __init__(self, name: str, stream: Iterator[events.Event]) -> None:
        self.name = name
        self.stream = stream
        self.lines: dict[str, int] = {}
        self.problems: list[Problem] = []
        self.resolver = Resolver()

    def document(self) -> Value:
        """Read the one document of the stream."""
        next(self.stream)
        if isinstance(next(self.stream), events.StreamEndEvent):
            return ""
        value = self.node(next(self.stream), "")
        next(self.stream)
        after = next(self.stream)
        if not isinstance(after, events.StreamEndEvent):
            self.complain(after, "", "a second document", "keep one document in a file, without `---`")
        return value

    def node(self, event: events.Event, path: str) -> Value:
        """Read the node that starts with `event`."""
        self.lines.setdefault(path, _line(event))
        if getattr(event, "anchor", None):
            self.complain(event, path, "an anchor or alias", "write the value out where it is used")
        if isinstance(event, events.MappingStartEvent):
            return self.mapping(path)
        if isinstance(event, events.SequenceStartEvent):
            return self.sequence(path)
        return self.scalar(event, path) if isinstance(event, events.ScalarEvent) else ""

    def mapping(self, path: str) -> dict[str, Value]:
        """Read a mapping to its end; of two equal keys the first one stays."""
        found: dict[str, Value] = {}
        while not isinstance(start := next(self.stream), events.MappingEndEvent):
            key = self.key(start, path)
            here = join(path, key)
            if key in found:
                first = self.lines[here]
                self.complain(start, path, f"duplicate key {key!r}, first on line {first}", "keep one of the two")
            self.lines.setdefault(here, _line(start))
            value = self.node(next(self.stream), here)
            found.setdefault(key, value)
        return dict(sorted(found.items()))

    def key(self, event: events.Event, path: str) -> str:
        """Read a key, which is a scalar."""
        if isinstance(event, events.ScalarEvent):
            return self.scalar(event, path)
        self.complain(event, path, "a key that is not a word", "write `key: value`")
        self.node(event, join(path, "?"))
        return "?"

    def sequence(self, path: str) -> list[Value]:
        """Read a list to its end."""
        found: list[Value] = []
        while not isinstance(start := next(self.stream), events.SequenceEndEvent):
            found.append(self.node(start, join(path, len(found))))
        return found

    def scalar(self, event: events.ScalarEvent, path: str) -> str:
        """Return the text; a plain scalar that YAML would turn into something else is a problem."""
        tag = event.tag or str(self.resolver.resolve(ScalarNode, event.value, event.implicit))  # type: ignore[no-untyped-call]
        if event.tag:
            self.complain(event, path, f"a tag, {event.tag}", "remove the tag")
        elif tag != STR and not event.value:
            self.complain(event, path, "has no value", 'write a value, or "" for an empty one')
        elif tag != STR:
            kind = KINDS.get(tag.rsplit(":", 1)[-1], "not text")
            self.complain(event, path, f"{event.value} is read as {kind}", f'quote it: "{event.value}"')
        return str(event.value)

    def complain(self, event: events.Event, path: str, message: str, hint: str) -> None:
        """Note a problem on the event's line."""
        prefix = f"{path}: " if path else ""
        self.problems.append(Problem(f"{self.name}:{_line(event)}", f"{prefix}{message}", hint))
