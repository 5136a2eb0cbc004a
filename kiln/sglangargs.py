"""SGLang's command line, read out of its wheel without importing it: flags and their choices, kept in a lock.

Two ways to declare an argument are known: `parser.add_argument("--flag", …)`, and from 0.5.1x on annotated fields of
classes, `field: A[T, Arg(…)]`. Choices are kept where they are literals or names of literals.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from kiln.errors import UserError

COMMAND = "inv lock --args"
_LINE = re.compile(r'^    \{name = "(-[^"]+)", takes = "(\w+)", choices = (\[.*\])\},$', re.MULTILINE)
SOURCES = ("sglang/srt/server_args.py", "sglang/srt/arg_groups/")


@dataclass(frozen=True, order=True)
class Flag:
    """One argument under one of its names. `takes` is "none", "one" or "many" values; no `choices`: anything."""

    name: str
    takes: str
    choices: tuple[str, ...] = ()


def lock_path(version: str) -> str:
    """Return the lock's path below the root; a local version has the arguments of the release."""
    return f"locks/sglang/args-{version.partition('+')[0]}.toml"


def dump(flags: Iterable[Flag]) -> str:
    """Write a lock as text, one line a flag, sorted."""
    lines = (
        f'    {{name = "{one.name}", takes = "{one.takes}", choices = {json.dumps(list(one.choices))}}},\n'
        for one in sorted(flags)
    )
    return f"# Written by `{COMMAND}`; do not edit.\n\nflags = [\n" + "".join(lines) + "]\n"


def load(root: Path, version: str) -> dict[str, Flag]:
    """Read the flags of one SGLang version, line by line: `inv check` has no time for TOML. Raises UserError."""
    name = lock_path(version)
    try:
        rows = _LINE.findall((root / name).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError("this lock does not exist", hint=COMMAND, source=name) from None
    if not rows:
        raise UserError("the lock is damaged: it holds no flag", hint=COMMAND, source=name)
    return {flag: Flag(flag, takes, tuple(json.loads(choices))) for flag, takes, choices in rows}


def extract(files: Mapping[str, str]) -> set[Flag]:
    """Return every flag that the sources declare; `files` maps names to texts. Raises UserError if there are none."""
    trees = {name: ast.parse(text) for name, text in sorted(files.items())}
    lists = dict(pair for tree in trees.values() for pair in _lists(tree))
    found = {flag for tree in trees.values() for flag in (*_calls(tree, lists), *_fields(tree, lists))}
    if not found:
        raise UserError("no argument is declared there", hint="is it SGLang's wheel?")
    return found


def _calls(tree: ast.AST, lists: Mapping[str, tuple[str, ...]]) -> Iterator[Flag]:
    """Yield the flags of `….add_argument("--flag", …)`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument":
            names = [arg.value for arg in node.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
            words = {word.arg: word.value for word in node.keywords if word.arg}
            yield from _flags(names, _takes(words, ""), _choices(words.get("choices"), lists))


def _fields(tree: ast.AST, lists: Mapping[str, tuple[str, ...]]) -> Iterator[Flag]:
    """Yield the flags of `field: A[T, Arg(…)]` and `field: A[T, "help"]`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and _is_annotated(node.annotation):
            assert isinstance(node.annotation, ast.Subscript)
            assert isinstance(node.annotation.slice, ast.Tuple)
            kind, *rest = node.annotation.slice.elts
            yield from _field(node.target.id, kind, rest, lists)


def _field(name: str, kind: ast.expr, rest: Iterable[ast.expr], lists: Mapping[str, tuple[str, ...]]) -> Iterator[Flag]:
    meta = next((one for one in rest if isinstance(one, ast.Call) and _called(one) == "Arg"), None)
    if meta is None and not any(isinstance(one, ast.Constant | ast.JoinedStr | ast.BinOp) for one in rest):
        return
    words = {word.arg: word.value for word in meta.keywords if word.arg} if meta else {}
    if isinstance(words.get("no_cli"), ast.Constant):
        return
    own = words.get("cli_name")
    names = [str(own.value) if isinstance(own, ast.Constant) else "--" + name.replace("_", "-")]
    names += [*_literals(words.get("aliases"))]
    text = ast.unparse(kind)
    choices = _choices(words.get("choices"), lists) or _literal_type(kind)
    yield from _flags(names, _takes(words, text), choices)


def _flags(names: Iterable[str], takes: str, choices: tuple[str, ...]) -> Iterator[Flag]:
    yield from (Flag(name, takes, choices) for name in names if name.startswith("-"))


def _takes(words: Mapping[str, ast.expr], kind: str) -> str:
    """Say how many values follow: of a bare bool none, of a list many."""
    action, nargs = (ast.unparse(words[key]) if key in words else "" for key in ("action", "nargs"))
    if "true" in action.lower() or "false" in action.lower() or (not action and kind == "bool"):
        return "none"
    many = nargs not in ("", "None", "'?'") or (not nargs and "type_parser" not in words and "list[" in kind.lower())
    return "many" if many else "one"


def _choices(node: ast.expr | None, lists: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    if isinstance(node, ast.Name | ast.Attribute):
        return lists.get(ast.unparse(node), ())
    return _resolved(node, lists) or ()


def _lists(tree: ast.AST) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield every name that is bound to a list of literals."""
    known: dict[str, tuple[str, ...]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            found = _resolved(node.value, known)
            if found:
                known[node.targets[0].id] = found
    yield from known.items()


def _resolved(node: ast.expr | None, known: Mapping[str, tuple[str, ...]]) -> tuple[str, ...] | None:
    """Return the words of a list, tuple or set of literals and of starred names of such; None if anything else is in
    it, as then not every choice is known."""
    if not isinstance(node, ast.List | ast.Tuple | ast.Set):
        return None
    words: list[str] = []
    for one in node.elts:
        if isinstance(one, ast.Starred) and isinstance(one.value, ast.Name) and one.value.id in known:
            words += known[one.value.id]
        elif isinstance(one, ast.Constant):
            words.append(str(one.value))
        else:
            return None
    return tuple(words)


def _literal_type(kind: ast.expr) -> tuple[str, ...]:
    """Return the values of `Literal[…]` or `Optional[Literal[…]]`."""
    for node in ast.walk(kind):
        if isinstance(node, ast.Subscript) and ast.unparse(node.value).endswith("Literal"):
            elements = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
            return tuple(str(one.value) for one in elements if isinstance(one, ast.Constant))
    return ()


def _literals(node: ast.expr | None) -> Iterator[str]:
    if isinstance(node, ast.List | ast.Tuple):
        yield from (str(one.value) for one in node.elts if isinstance(one, ast.Constant))


def _is_annotated(node: ast.expr) -> bool:
    return (
        isinstance(node, ast.Subscript)
        and ast.unparse(node.value) in ("A", "Annotated")
        and isinstance(node.slice, ast.Tuple)
    )


def _called(node: ast.Call) -> str:
    return ast.unparse(node.func).rpartition(".")[2]
