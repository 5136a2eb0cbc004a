"""presets/: server arguments and environment for a model, checked against the arguments of the stack's own SGLang."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from pydantic import Field

from kiln import names, schema, sglangargs
from kiln.errors import Problem, UserError
from kiln.intent import Model, Text
from kiln.sglangargs import Flag
from kiln.versions import Versions
from kiln.yamlfile import Document

# Capture of larger batches ran out of memory on 96 GB at TP8: SGLang pull request 29580, June 2026.
MOST_GRAPH_BS = 256
_GRAPH = ("cuda-graph-max-bs", "cuda-graph-max-bs-decode")


class Option(Model):
    """What a person may add to a preset, with what is known of it."""

    summary: Text
    args: dict[Text, Text] = Field(default_factory=dict)
    environment: dict[Text, str] = Field(default_factory=dict)
    evidence: Text


class Preset(Model):
    """Arguments without their dashes; a flag that takes no value has the value "yes". `sglang` is a PEP 440 range."""

    name: Text
    model: Text
    summary: Text
    sglang: Text
    gpus: Annotated[tuple[Text, ...], Field(min_length=1)]
    per_node: Annotated[int, Field(ge=1)]
    args: Annotated[dict[Text, Text], Field(min_length=1)]
    environment: dict[Text, str] = Field(default_factory=dict)
    options: dict[Text, Option] = Field(default_factory=dict)
    evidence: Annotated[tuple[Text, ...], Field(min_length=1)]

    def covers(self, version: str) -> bool:
        """Say whether the preset is meant for this SGLang."""
        return SpecifierSet(self.sglang).contains(version, prereleases=True)

    def words(self, options: tuple[str, ...] = ()) -> list[str]:
        """Return the server's arguments, with those of some options, in the order of their names."""
        args = {**self.args, **{key: value for name in options for key, value in self.options[name].args.items()}}
        pairs = ((f"--{name}", [] if value == "yes" else value.split()) for name, value in sorted(args.items()))
        return [word for flag, values in pairs for word in (flag, *values)]


def load_all(root: Path) -> dict[str, Preset]:
    """Load every preset by name. Raises Problems with everything that is wrong but for the arguments."""
    return {preset.name: preset for _, preset in _loaded(root)}


def problems(root: Path, intent: Versions) -> list[Problem]:
    """Return everything that is wrong: the files, their names of GPUs, and arguments that a stack's SGLang refuses."""
    try:
        return [problem for document, preset in _loaded(root) for problem in _problems(root, intent, document, preset)]
    except UserError as error:
        return [*error.problems]


def _loaded(root: Path) -> list[tuple[Document, Preset]]:
    return schema.load_folder(root, "presets", Preset, _require_range)


def _require_range(document: Document, preset: Preset) -> None:
    try:
        SpecifierSet(preset.sglang)
    except InvalidSpecifier:
        where, hint = document.at("sglang"), "a PEP 440 range: >=0.5.23,<0.6"
        raise UserError(f"sglang: {preset.sglang!r} cannot be read", hint=hint, source=where) from None


def _problems(root: Path, intent: Versions, document: Document, preset: Preset) -> Iterator[Problem]:
    for index, gpu in enumerate(preset.gpus):
        if gpu not in intent.gpus:
            yield names.unknown("GPU", gpu, intent.gpus, document.at(f"gpus[{index}]"), "gpus")
    versions = {stack.components["sglang"] for stack in intent.stacks.values() if "sglang" in stack.components}
    meant = sorted(version for version in versions if preset.covers(version))
    if not meant:
        hint = f"stacks have: {', '.join(sorted(versions))}"
        yield Problem(document.at("sglang"), f"sglang: no stack has {preset.sglang}", hint)
    yield from _limits(document, preset)
    for version in meant:
        try:
            flags = sglangargs.load(root, version)
        except UserError as error:
            yield from error.problems
            continue
        yield from _arguments(document, preset, flags, version)


def _arguments(document: Document, preset: Preset, flags: Mapping[str, Flag], version: str) -> Iterator[Problem]:
    groups = {"args": preset.args, **{f"options.{name}.args": one.args for name, one in preset.options.items()}}
    for path, args in groups.items():
        for name, value in args.items():
            where = document.at(f"{path}.{name}")
            yield from _argument(where, f"{path}.{name}", value, flags.get(f"--{name}"), flags, version)


def _argument(
    where: str, path: str, value: str, flag: Flag | None, flags: Mapping[str, Flag], version: str
) -> Iterator[Problem]:
    name = path.rpartition(".")[2]
    if flag is None:
        known = {one.removeprefix("--") for one in flags}
        close = names.hint(name, known).partition("? ")[0]
        hint = f"{close}?" if close.startswith("did you mean") else f"{sglangargs.lock_path(version)} lists them"
        yield Problem(where, f"{path}: SGLang {version} has no such argument", hint)
    elif flag.takes == "none" and value != "yes":
        yield Problem(where, f"{path}: takes no value, {value!r} is given", 'write "yes", or remove the line')
    elif flag.choices and not set(value.split()) <= {*flag.choices}:
        yield Problem(
            where, f"{path}: {value!r} is none of SGLang {version}'s choices", names.hint(value, flag.choices)
        )
    elif name.endswith("-backend") and value == "auto":
        yield Problem(where, f"{path}: what `auto` means changes between releases", "name the backend")


def _limits(document: Document, preset: Preset) -> Iterator[Problem]:
    """Yield what a preset must say for its memory and its tuning to be known."""
    if "max-running-requests" not in preset.args:
        hint = "the autotuner tunes up to it, and the KV cache is planned with it"
        yield Problem(document.at("args"), "args: max-running-requests is missing", hint)
    graph = next((name for name in _GRAPH if name in preset.args), None)
    if graph is None:
        yield Problem(
            document.at("args"), f"args: {' or '.join(_GRAPH)} is missing", f'write "{MOST_GRAPH_BS}" or less'
        )
    elif not preset.args[graph].isdigit() or int(preset.args[graph]) > MOST_GRAPH_BS:
        message = f"args.{graph}: {preset.args[graph]!r} is not a number up to {MOST_GRAPH_BS}"
        yield Problem(document.at(f"args.{graph}"), message, "capturing more runs out of memory on 96 GB")
