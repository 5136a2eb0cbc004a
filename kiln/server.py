"""A server of the smoke run, as far as it is pure: its words, its environment, and what its log explains."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from itertools import pairwise
from pathlib import Path

from kiln.errors import UserError
from kiln.facts import reading
from kiln.facts.server import LoadFacts, LogLine, ServerFacts, StartFacts
from kiln.logrules import Rule, explain
from kiln.presets import Preset

DUMMY = "dummy"
MODEL = "/model"
MODELS = "models"
_TAIL = 40
_STAMP = re.compile(r"^\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)[^\]]*\] (.*)")
# SGLang's own times, from 0.5.1x on: `Engine startup timings (s): load_weight=0.07, …, cuda_graph={prefill=0.00, …}`.
_TIMINGS = re.compile(r"Engine startup timings \(s\): (?P<all>.*)")
_NUMBER = re.compile(r"(\w+)=(\d+(?:\.\d+)?)")
_GROUP = re.compile(r"(\w+)=\{([^}]*)\}")
# The first line of each phase, of both releases.
_PHASES = (
    ("launch", re.compile(r"server_args=")),
    ("distributed", re.compile(r"Init (torch distributed|parallel) begin")),
    ("load_weight", re.compile(r"Load weight begin")),
    ("kv_cache", re.compile(r"Load weight end")),
    ("autotune", re.compile(r"Running FlashInfer autotune")),
    ("cuda_graph", re.compile(r"Capture .*cuda graph begin", re.IGNORECASE)),
    ("http", re.compile(r"Started server process")),
    ("warm_up", re.compile(r"Uvicorn running on")),
    ("ready", re.compile(r"The server is fired up")),
)


def has_weights(preset: Preset) -> bool:
    """Say whether a preset needs a real model's files."""
    return preset.args.get("load-format") != DUMMY


def words(preset: Preset, *, port: int, gpus: int, options: tuple[str, ...] = ()) -> list[str]:
    """Return the launcher's arguments; a model of made-up weights is spread over as many GPUs as divide its heads.

    Raises UserError if the node has fewer GPUs than the preset asks for.
    """
    if gpus < preset.per_node:
        hint = "another preset, or another node"
        raise UserError(f"preset {preset.name} takes {preset.per_node} GPUs, the node has {gpus}", hint=hint)
    spread = {} if has_weights(preset) else {"tp-size": str(max(size for size in (1, 2, 4, 8) if size <= gpus))}
    preset = preset.model_copy(update={"args": {**preset.args, **spread}})
    return [*preset.words(options), "--host", "127.0.0.1", "--port", str(port)]


def model(root: Path, preset: Preset) -> Mapping[str, bytes]:
    """Return the files to mount at /model for a preset without weights: a config and a tokenizer."""
    folder = root / MODELS / preset.model
    if has_weights(preset):
        hint = f"inv smoke --preset {preset.name} --weights DIR"
        raise UserError(f"preset {preset.name} needs the weights of {preset.model}", hint=hint)
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def facts(
    preset: Preset, start: str, load: str | None, log: str, rules: Iterable[Rule], *, exit_code: int | None = None
) -> ServerFacts:
    """Put together what the probes `serve` and `load` printed, and the server's log. Raises BadReport."""
    lines = log.splitlines()
    return ServerFacts(
        preset=preset.name, wanted=dict(preset.args), weights=has_weights(preset),
        start=reading.read(start, StartFacts), load=reading.read(load, LoadFacts) if load is not None else None,
        startup_s=startup(log), log=explained(rules, log), log_tail=tuple(line[:500] for line in lines[-_TAIL:]),
        exit_code=exit_code,
    )  # fmt: skip


def explained(rules: Iterable[Rule], log: str) -> tuple[LogLine, ...]:
    """Return what the rules say of a log's lines."""
    return tuple(
        LogLine(rule=one.rule.name, blames=one.rule.blames, means=one.rule.means, cure=one.rule.cure,
                line=one.line, count=one.count)
        for one in explain(rules, log)
    )  # fmt: skip


def startup(log: str) -> dict[str, float]:
    """Return the seconds of each phase: from the dates of its lines, and SGLang's own numbers where it gives them.

    A phase lasts until the next one that the log shows begins; `sglang.*` are SGLang's. Unknown phases are left out.
    """
    begins: dict[str, datetime] = {}
    own: dict[str, float] = {}
    for line in log.splitlines():
        stamped = _STAMP.match(line)
        if stamped:
            for name, pattern in _PHASES:
                if name not in begins and pattern.search(stamped[2]):
                    begins[name] = datetime.fromisoformat(stamped[1])
        if timings := _TIMINGS.search(line):
            own = _timings(timings["all"])
    order = sorted(begins.items(), key=lambda one: one[1])
    spans = {name: (after - at).total_seconds() for (name, at), (_, after) in pairwise(order)}
    return {**spans, **own}


def _timings(text: str) -> dict[str, float]:
    """Read `a=0.07, b={c=0.00, d=1.5}` as sglang.a, sglang.b.c, sglang.b.d."""
    grouped = {f"sglang.{group}.{name}": float(value) for group, inner in _GROUP.findall(text)
               for name, value in _NUMBER.findall(inner)}  # fmt: skip
    plain = {f"sglang.{name}": float(value) for name, value in _NUMBER.findall(_GROUP.sub("", text))}
    return {**plain, **grouped}
