"""Pinned sources without and with one patch, and pieces of their Python run with stand-ins for what they import."""

from __future__ import annotations

import ast
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kiln import patches, patchqueue, sources
from kiln.settings import ROOT, from_env
from kiln.store import Store


@dataclass(frozen=True)
class Pair:
    """The files that a patch names, as they are without and with it; default patches before it are in both."""

    before: Path
    after: Path


@contextmanager
def pair(label: str) -> Iterator[Pair]:
    """Hand out both trees of one patch. Skips as NOT_RUN if the source that it is for is not in the store."""
    settings, known = from_env(), patches.load_all(ROOT)
    (patch,) = patches.find(known, label)
    fits = [
        one
        for one in patchqueue.pinned(settings)
        if one.component == patch.component and patch.covers(one.version) and Store(settings.store).has(one.source)
    ]
    if not fits:
        pytest.skip(f"NOT_RUN: no source of {patch.component} {patch.applies_to} in the store; inv fetch")
    archive = Store(settings.store).path(fits[0].source.sha256)
    below = patchqueue.before(patch, known, fits[0].version)
    with (
        sources.excerpted(archive, [*below, patch]) as whole,
        sources.patched(whole, [*below, patch]) as (after, outcomes),
        sources.excerpted(whole, [*below, patch]) as before,
    ):
        assert [outcome.state for outcome in outcomes] == ["applied"] * len(outcomes), outcomes
        sources.apply(below, before)
        yield Pair(before, after)


def function(file: Path, name: str, **known: object) -> Callable[..., Any]:
    """Compile one function or method of a file, by its dotted name, with the given names as its globals."""
    node: ast.AST = ast.parse(file.read_text(encoding="utf-8"))
    for part in name.split("."):
        node = next(child for child in ast.iter_child_nodes(node) if getattr(child, "name", None) == part)
    assert isinstance(node, ast.FunctionDef)
    node.decorator_list = []
    return _compiled(node, node.name, known)


def statement(file: Path, start: str, *, holding: str, **known: object) -> Callable[..., Any]:
    """Compile the one statement that starts with `start` and holds `holding` as a function of `self`."""
    text = file.read_text(encoding="utf-8")
    found = [
        node
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.stmt)
        and ast.unparse(node).startswith(start)
        and holding in ast.unparse(node)
        and not isinstance(node, ast.FunctionDef | ast.ClassDef)
    ]
    smallest = min(found, key=lambda node: len(ast.unparse(node)))
    body = "\n".join(f"    {line}" for line in ast.unparse(smallest).splitlines())
    (wrapper,) = ast.parse(f"def piece(self):\n{body}\n").body
    return _compiled(wrapper, "piece", known)


def module(file: Path, modules: Mapping[str, object]) -> Mapping[str, Any]:
    """Run a whole file with stand-ins for the modules that it imports; returns its globals."""

    def imported(name: str, *rest: Any) -> object:
        return modules[name] if name in modules else __import__(name, *rest)

    space: dict[str, Any] = {
        "__name__": file.stem,
        "__builtins__": {**vars(__import__("builtins")), "__import__": imported},
    }
    exec(compile(file.read_text(encoding="utf-8"), str(file), "exec"), space)
    return space


def literals(file: Path, name: str) -> list[str]:
    """Return every string that a function holds."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    node = next(one for one in ast.walk(tree) if isinstance(one, ast.FunctionDef) and one.name == name)
    return [one.value for one in ast.walk(node) if isinstance(one, ast.Constant) and isinstance(one.value, str)]


def thing(**attributes: object) -> Any:
    """Return a stand-in with the given attributes."""
    return types.SimpleNamespace(**attributes)


def _compiled(node: ast.stmt, name: str, known: Mapping[str, object]) -> Callable[..., Any]:
    space: dict[str, Any] = dict(known)
    future = ast.parse("from __future__ import annotations").body
    code = compile(ast.fix_missing_locations(ast.Module([*future, node], [])), name, "exec")
    exec(code, space)
    found: Callable[..., Any] = space[name]
    return found
