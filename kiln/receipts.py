"""Receipts: one JSON file for each run of `inv smoke` on a node, below receipts/smoke/, never changed once written."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from kiln import schema as schemas
from kiln.errors import Problem, UserError, raise_all
from kiln.receipt import (
    SCHEMA,
    Gpu,
    ImageTested,
    NodeTested,
    Outcome,
    Phase,
    Receipt,
    Sample,
    Server,
    ServerStep,
    outcomes,
    schema,
)
from kiln.scrub import hash_name, scrub
from kiln.settings import Settings

__all__ = [
    "SCHEMA", "Gpu", "ImageTested", "NodeTested", "Outcome", "Phase", "Receipt", "Sample", "Server", "ServerStep",
    "find", "hash_name", "load", "load_all", "outcomes", "row", "save", "schema", "scrubbed", "select",
]  # fmt: skip
FOLDER = Path("receipts") / "smoke"
SCHEMA_FILE = Path("docs") / "receipt.schema.json"
HEADINGS = ("id", "started", "node", "topology", "image", "preset", "verdict", "tok/s")
_TEXTS = ("message", "subject", "cause", "cure", "why", "log_excerpts", "not_run")


def save(settings: Settings, receipt: Receipt, private: Iterable[str] = ()) -> Path:
    """Write a receipt, scrubbed, whole or not at all, and never over another one; returns its file.

    `private`: host names, aliases and the like that messages and logs may hold.
    """
    clean = scrubbed(receipt, private)
    folder = settings.root / FOLDER / (clean.image.digest[7:19] or "no-image")
    folder.mkdir(parents=True, exist_ok=True)
    stem = f"{clean.started.translate({ord('-'): None, ord(':'): None})}-{clean.node.name_hash}"
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=folder, prefix=".", suffix=".tmp") as half:
        half.write(text(clean))
        half.flush()
        os.fchmod(half.fileno(), 0o644)
        os.fsync(half.fileno())
        for number in count(1):
            file = folder / f"{stem}{f'-{number}' if number > 1 else ''}.json"
            try:
                os.link(half.name, file)
            except FileExistsError:
                continue
            break
    return file


def scrubbed(receipt: Receipt, private: Iterable[str] = ()) -> Receipt:
    """Return a receipt without what identifies hosts, cards and accounts; of the image's name, the registry goes."""
    names = tuple(private)
    data = {key: _scrub(value, names, key) for key, value in receipt.as_dict().items()}
    ref = data["image"]["ref"]
    head, _, rest = ref.partition("/")
    if rest and ("." in head or ":" in head or head == "localhost"):
        data["image"]["ref"] = rest
    return Receipt.model_validate(data)


def _scrub(value: Any, names: tuple[str, ...], key: str) -> Any:
    if isinstance(value, dict):
        return {inner: _scrub(one, names, inner) for inner, one in value.items()}
    if isinstance(value, list):
        return [_scrub(one, names, key) for one in value]
    return scrub(value, names) if isinstance(value, str) and key in _TEXTS else value


def text(receipt: Receipt) -> str:
    """Return what stands in the file: one line for each entry of each list, so that diffs can be read."""
    parts = (f'"{key}": {_lines(value)}' for key, value in receipt.as_dict().items())
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _lines(value: Any) -> str:
    if isinstance(value, list) and value:
        return "[\n " + ",\n ".join(json.dumps(one, ensure_ascii=False) for one in value) + "\n]"
    return json.dumps(value, ensure_ascii=False)


def load(file: Path) -> Receipt:
    """Read a receipt. Raises UserError with the field that is wrong."""
    try:
        return Receipt.model_validate_json(file.read_bytes())
    except OSError as error:
        raise UserError(f"cannot be read: {error.strerror}", source=str(file)) from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where, got = schemas.dotted(first["loc"]), f": {first['input']!r}"[:80]
        message = f"is no {SCHEMA}: {where}: {first['msg']}{got}" if where else f"is no {SCHEMA}: {first['msg']}"
        raise UserError(message, source=str(file), hint=f"{SCHEMA_FILE} says what a receipt holds") from None


def load_all(settings: Settings) -> tuple[Receipt, ...]:
    """Return every receipt of this checkout, the oldest first. Raises Problems with every file that is none."""
    return _loaded(settings.root / FOLDER)


def select(settings: Settings, words: Iterable[str]) -> tuple[Receipt, ...]:
    """Return the receipts that words name, each once, the oldest first; all of them if there are no words.

    A word is a file, a folder, a digest or its beginning, an id or its beginning. Raises UserError for one that
    names none.
    """
    wanted = tuple(words)
    if not wanted:
        return load_all(settings)
    found = {text(one): one for word in wanted for one in _named(settings, word)}
    return tuple(sorted(found.values(), key=_age))


def find(settings: Settings, word: str) -> Receipt:
    """Return the one receipt that a word names. Raises UserError for none or several."""
    found = _named(settings, word)
    if len(found) > 1:
        names = ", ".join(one.id for one in found[-8:])
        raise UserError(f"{word!r} names {len(found)} receipts", hint=f"name one of: {names}")
    return found[0]


def row(receipt: Receipt) -> tuple[str, ...]:
    """Return one line of `inv receipts.list`."""
    rate = receipt.server.throughput_tok_s if receipt.server else None
    image = receipt.image.digest[7:19] or "–"
    return (receipt.id, receipt.started, receipt.node.name_hash, receipt.node.topology, image, receipt.preset or "–",
            str(receipt.verdict), f"{rate:,.0f}" if rate is not None else "–")  # fmt: skip


def write_schema(settings: Settings) -> Path:
    """Write the JSON Schema of the model; returns its file."""
    file = settings.root / SCHEMA_FILE
    file.write_text(schema_text(), encoding="utf-8")
    return file


def schema_text() -> str:
    """Return the JSON Schema as its file has it."""
    return json.dumps(schema(), indent=1, ensure_ascii=False) + "\n"


def _named(settings: Settings, word: str) -> tuple[Receipt, ...]:
    if word and Path(word).is_file():
        return (load(Path(word)),)
    if word and Path(word).is_dir():
        found = _loaded(Path(word))
    else:
        digits = word.removeprefix("sha256:")
        known = load_all(settings) if word else ()
        found = tuple(one for one in known if one.id == word) or tuple(
            one for one in known if one.id.startswith(word) or one.image.digest[7:].startswith(digits)
        )
    if not found:
        raise UserError(f"no receipt is named by {word!r}", hint="inv receipts.list; inv smoke makes one")
    return found


def _loaded(folder: Path) -> tuple[Receipt, ...]:
    problems: list[Problem] = []
    return tuple(sorted(_each(folder, problems), key=_age))


def _each(folder: Path, problems: list[Problem]) -> Iterator[Receipt]:
    for file in sorted(folder.rglob("*.json")):
        try:
            yield load(file)
        except UserError as error:
            problems += error.problems
    raise_all(problems)


def _age(receipt: Receipt) -> tuple[str, str]:
    return receipt.started, receipt.id
