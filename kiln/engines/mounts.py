"""Dockerfiles without `RUN --mount`, for builders that lack it: what a mount shows is copied there and removed again.

The canonical image leaves out everything below /run, so its layers are those of the original.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from kiln.engines import dockerfile
from kiln.errors import UserError

EMPTY = ".kiln-empty"
"""A folder that the context must have, with nothing in it."""
SECRETS = ".kiln-secrets"
"""The folder of the context that must hold the secrets, by id."""
PUBLIC = ("kiln-jobs",)
"""Secrets that may be copied into a layer of the engine: no secrets, but inputs that no cache key should contain."""

_TARGET = re.compile(r"/run/kiln/[\w./-]+")
_ALIASES = {"src": "source", "dst": "target", "destination": "target"}
_OPTIONS: Mapping[str, Collection[str]] = {
    "bind": ("source", "target", "from"), "cache": ("id", "target"), "secret": ("id", "target"),
}  # fmt: skip
_COPY_CHMOD = re.compile(r"COPY\s+--chmod=0?([0-7]{3})\s+([^\s-]\S*)\s+(\S+)\s*")
_FLAG = re.compile(r"(--[a-z]+)(?:=(\S+))?(?:\s+|(?:\\\n))+")


@dataclass(frozen=True)
class Translated:
    """A Dockerfile for a builder without mounts, and the modes that files of its context must have."""

    text: str
    modes: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))


def translate(text: str, *, secrets: Collection[str] = ()) -> Translated:
    """Replace mounts and `COPY --chmod`. `secrets`: the ids that are given. Raises UserError for what it can't say."""
    modes: dict[str, int] = {}
    lines = [line for step in dockerfile.instructions(text) for line in _step(step, secrets, modes)]
    return Translated("".join(f"{line}\n" for line in lines), MappingProxyType(modes))


def _step(step: str, secrets: Collection[str], modes: dict[str, int]) -> Iterator[str]:
    word = step.split(None, 1)[0].upper() if step.strip() else ""
    if word == "RUN":
        yield from _run(step, secrets)
    elif word in ("COPY", "ADD") and re.search(r"\s--(?!from=)", step):
        yield _copy(step, modes)
    else:
        yield step


def _run(step: str, secrets: Collection[str]) -> Iterator[str]:
    command, mounts = _split_flags(step)
    if not mounts:
        yield step
        return
    if "<<" in command.splitlines()[0]:
        raise UserError(f"a here-document takes BuildKit: {command!r}")
    for mount in mounts:
        yield from _copied(mount, secrets)
    yield f"RUN {command}"
    targets = ", ".join(f'"{mount["target"]}"' for mount in mounts)
    yield f'RUN ["/bin/rm", "-rf", {targets}]'


def _split_flags(step: str) -> tuple[str, list[dict[str, str]]]:
    """Return a RUN's command and its mounts."""
    rest = step.split(None, 1)[1] if len(step.split(None, 1)) > 1 else ""
    mounts = []
    while flag := _FLAG.match(rest):
        if flag[1] != "--mount" or not flag[2]:
            raise UserError(f"RUN {flag[0].strip()} takes BuildKit")
        mounts.append(_mount(flag[2]))
        rest = rest[flag.end() :].lstrip()
    return rest, mounts


def _mount(words: str) -> dict[str, str]:
    options = dict(_option(word) for word in words.split(","))
    kind = options.pop("type", "bind")
    if kind not in _OPTIONS:
        raise UserError(f"--mount={words}: type {kind} takes BuildKit")
    unknown = sorted(options.keys() - set(_OPTIONS[kind]))
    missing = sorted(set(_OPTIONS[kind]) - {"from"} - options.keys())
    if unknown or missing:
        what = [f"option {name} is not known" for name in unknown] + [f"option {name} is missing" for name in missing]
        raise UserError(f"--mount={words}: {', '.join(what)} to builders without BuildKit")
    if not _TARGET.fullmatch(options["target"]) or ".." in options["target"]:
        raise UserError(f"--mount={words}: only targets below /run/kiln leave no trace in the image")
    return {**options, "type": kind}


def _option(word: str) -> tuple[str, str]:
    name, _, value = word.partition("=")
    return _ALIASES.get(name, name), value


def _copied(mount: Mapping[str, str], secrets: Collection[str]) -> Iterator[str]:
    target = mount["target"]
    if mount["type"] == "bind":
        stage = f"--from={mount['from']} " if "from" in mount else ""
        yield f"COPY {stage}{mount['source']} {target}"
    elif mount["type"] == "cache":
        yield f"COPY {EMPTY} {target}"
    elif mount["id"] in secrets:
        if mount["id"] not in PUBLIC:
            raise UserError(f"secret {mount['id']} would stay in a layer of a builder without BuildKit")
        yield f"COPY {SECRETS}/{mount['id']} {target}"


def _copy(step: str, modes: dict[str, int]) -> str:
    """Drop the flag; the file has the mode in the context already."""
    match = _COPY_CHMOD.fullmatch(step)
    if not match:
        raise UserError(f"builders without BuildKit cannot do this: {step!r}")
    mode, source = int(match[1], 8), match[2]
    if modes.setdefault(source, mode) != mode:
        raise UserError(f"{source} is copied with two modes")
    return f"COPY {source} {match[3]}"
