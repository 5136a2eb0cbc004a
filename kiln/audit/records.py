"""What an audit keeps of a target: a record for each file, not the file."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from kiln.audit.facts import Compiler, Facts, Stubs

SITE = "site-packages/"


@dataclass(frozen=True, slots=True)
class Record:
    """One file: of a symbolic link its target alone, of a metadata file its text, of a binary its facts."""

    path: str
    size: int = 0
    sha256: str = ""
    link: str = ""
    text: str = ""
    facts: Facts | None = None

    @property
    def short(self) -> str:
        """The path below site-packages, or the whole path elsewhere: what people read and allow-lists match."""
        return short(self.path)


@dataclass(frozen=True)
class Target:
    """What is audited. `whole`: it has its own root, so that what nothing in it provides is missing."""

    label: str
    whole: bool
    records: Mapping[str, Record]

    def binaries(self) -> Iterator[tuple[Record, Facts]]:
        """Yield the files with facts, each content once, in the order of their paths."""
        seen: set[str] = set()
        for path in sorted(self.records):
            record = self.records[path]
            if record.facts is not None and record.sha256 not in seen:
                seen.add(record.sha256)
                yield record, record.facts

    def matching(self, pattern: str) -> list[Record]:
        """Return the records whose path matches a glob, sorted."""
        return [self.records[path] for path in sorted(self.records) if fnmatch.fnmatchcase(path, pattern)]


def short(path: str) -> str:
    """Cut a path off at site-packages."""
    return path.rpartition(SITE)[2] if SITE in path else path


def pack(record: Record) -> list[Any]:
    """Turn a record into JSON's types."""
    facts = asdict(record.facts) if record.facts else None
    return [record.path, record.size, record.sha256, record.link, record.text, facts]


def unpack(data: list[Any]) -> Record:
    """Undo `pack`."""
    path, size, sha256, link, text, facts = data
    return Record(path, size, sha256, link, text, unpack_facts(facts) if facts else None)


def unpack_facts(data: Mapping[str, Any]) -> Facts:
    """Read facts from JSON's types."""
    fields: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in data.items()}
    fields["stubs"] = tuple(Stubs(**{**one, "kernels": tuple(one["kernels"])}) for one in data["stubs"])
    if data["compiler"]:
        fields["compiler"] = Compiler(tuple(data["compiler"]["targets"]), data["compiler"]["release"])
    return Facts(**fields)
