"""A YAML document against a pydantic model: every fault with its line and the keys that are known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from kiln import names, yamlfile
from kiln.errors import Problem, UserError, raise_all
from kiln.yamlfile import Document, join

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

Shape = TypeVar("Shape", bound=BaseModel)
Loc = tuple[str | int, ...]

SHAPES = {
    "string_type": ("must be a text", "write one quoted value"),
    "tuple_type": ("must be a list", 'write a list: ["…"]'),
    "dict_type": ("must be a mapping", "write `key: value` lines below it"),
    "model_type": ("must be a mapping", "write `key: value` lines below it"),
    "int_parsing": ("is not a whole number", 'write digits: "8"'),
    "string_too_short": ("is empty", "write a value"),
    "too_short": ("is empty", "write at least one entry"),
}


def validate(document: Document, model: type[Shape]) -> tuple[Shape | None, list[Problem]]:
    """Return the model's instance, or None and every problem."""
    try:
        return model.model_validate(document.value), []
    except ValidationError as error:
        return None, [_problem(document, model, details) for details in error.errors()]


def _problem(document: Document, model: type[BaseModel], error: ErrorDetails) -> Problem:
    # pydantic marks a fault of a mapping's key by the pseudo-index "[key]".
    loc = tuple(part for part in error["loc"] if part != "[key]")
    kind, parent = error["type"], dotted(loc[:-1])
    if kind == "extra_forbidden":
        where = document.at(dotted(loc))
        return _about(where, parent, f"unknown key {loc[-1]!r}", names.hint(str(loc[-1]), known_keys(model, loc[:-1])))
    if kind == "missing":
        return _about(document.at(parent), parent, f"the key {loc[-1]!r} is missing", f"add `{loc[-1]}:` to this block")
    return _about(document.at(dotted(loc)), dotted(loc), *_fault(error))


def _fault(error: ErrorDetails) -> tuple[str, str]:
    kind, given = error["type"], error["input"]
    if kind == "literal_error":
        return f"{given!r} is not one of the choices", f"choices: {error['ctx']['expected']}"
    if kind == "value_error":
        return str(error["ctx"]["error"]), "correct the value"
    message, hint = SHAPES.get(kind, (error["msg"][:1].lower() + error["msg"][1:], "correct the value"))
    return (f"{given!r} {message}" if kind == "int_parsing" else message), hint


def _about(source: str, path: str, message: str, hint: str) -> Problem:
    return Problem(source, f"{path}: {message}" if path else message, hint)


def dotted(loc: Loc) -> str:
    """Write pydantic's location as a dotted path."""
    path = ""
    for part in loc:
        path = join(path, part)
    return path


def known_keys(model: type[BaseModel], loc: Loc) -> list[str]:
    """Return the keys that the block at `loc` may have; its name is written as its key in the parent."""
    here: Any = model
    for part in loc:
        here = _step(here, part)
    fields: dict[str, object] = getattr(here, "model_fields", {})
    return sorted(set(fields) - {"name"})


def _step(here: Any, part: str | int) -> Any:
    if isinstance(here, type) and issubclass(here, BaseModel):
        return _required(here.model_fields[str(part)].annotation)
    inner = get_args(here)
    return _required(inner[0] if isinstance(part, int) else inner[-1])


def _required(annotation: Any) -> Any:
    """Return what `X | None` is when it is there."""
    kinds = get_args(annotation)
    return next(kind for kind in kinds if kind is not NoneType) if NoneType in kinds else annotation


def load_folder(
    root: Path, folder: str, kind: type[Shape], require: Callable[[Document, Shape], None] | None = None
) -> list[tuple[Document, Shape]]:
    """Read every YAML file of a folder, its stem as `name`; `require` may refuse one. Raises Problems."""
    found, faults = list[tuple[Document, Shape]](), list[Problem]()
    for path in sorted((root / folder).glob("*.yaml")):
        try:
            document = yamlfile.read(path, root)
            document = replace(document, value={**document.value, "name": path.stem})
            value, wrong = validate(document, kind)
            raise_all(wrong)
            assert value is not None
            if require:
                require(document, value)
            found.append((document, value))
        except UserError as error:
            faults += error.problems
    raise_all(faults)
    return found
