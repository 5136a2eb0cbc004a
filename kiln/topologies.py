"""topologies/: what a kind of node must reach, one file each; thresholds live here and nowhere else."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from kiln import names, schema
from kiln.errors import Problem, UserError, raise_all
from kiln.intent import Model, Switch, Text
from kiln.versions import Versions
from kiln.yamlfile import Document

ANY = "any"
_LOWER_IS_BETTER = ("peer_latency_us", "allreduce_latency_us")


def _count(value: object) -> object:
    """Read a number, or "any" as None."""
    if value == ANY:
        return None
    if isinstance(value, str) and not value.isdigit():
        raise ValueError(f'{value!r} is neither a number nor "any"')
    return value


Count = Annotated[int | None, BeforeValidator(_count)]
Percent = Annotated[float, Field(gt=0, le=1)]
Positive = Annotated[float, Field(gt=0)]


class Limit(Model):
    """Two thresholds for one number: worse than `warn` is WARN, worse than `fail` is FAIL."""

    warn: Positive
    fail: Positive


class Limits(Model):
    """Thresholds of the fabric, GB/s = 1e9 bytes per second; one that is not there is not judged.

    Sources of a GPU's copies: from and to pinned host memory. `allreduce_gb_s` is bus bandwidth at 32 MiB and more with
    all ranks, `allreduce_latency_us` the time of 32 KiB. For the latencies more is worse.
    """

    h2d_gb_s: Limit | None = None
    d2h_gb_s: Limit | None = None
    peer_same_gb_s: Limit | None = None
    peer_cross_gb_s: Limit | None = None
    peer_latency_us: Limit | None = None
    allreduce_gb_s: Limit | None = None
    allreduce_latency_us: Limit | None = None

    @model_validator(mode="after")
    def _fail_is_worse(self) -> Limits:
        for name in type(self).model_fields:
            limit: Limit | None = getattr(self, name)
            worse = 1 if name in _LOWER_IS_BETTER else -1
            if limit and worse * limit.fail < worse * limit.warn:
                raise ValueError(f"{name}: `fail` is better than `warn`")
        return self


class Match(Model):
    """Which nodes the topology is for. `sockets` and `switched` (GPUs below PCIe switches) are asked where given."""

    gpu_names: Annotated[tuple[Text, ...], Field(min_length=1)]
    count: Count
    sockets: Annotated[int, Field(ge=1)] | None = None
    switched: Switch | None = None

    @property
    def any_gpu(self) -> bool:
        return self.gpu_names == (ANY,)


class Gpus(Model):
    """What the GPUs are; None for "any". `lacks` names what this GPU does not have, so that its N/A is no gap."""

    count: Count = None
    compute_capability: Text | None = None
    ecc: Literal["on", "any"] = "any"
    open_module: Switch = False
    lacks: tuple[Literal["ecc", "mig", "row-remapping", "recovery-action"], ...] = ()


class Pcie(Model):
    """The link of each GPU: the generation under load, the width always."""

    generation: Annotated[int, Field(ge=1)]
    width: Annotated[int, Field(ge=1)]


class Heat(Model):
    """The load of matrix products on all GPUs at once. `min_power_fraction` is of the limit, at full utilisation."""

    seconds: Positive = 60
    temperature_idle_warn_c: Positive = 60
    temperature_warn_c: Positive = 84
    temperature_fail_c: Positive = 88
    min_power_fraction: Percent = 0.5
    bf16_tflops: Limit | None = None


class Server(Model):
    """The server's run. `floors` is the throughput to reach, tokens per second by preset.

    `min_power_fraction`: of the power limit, where the GPUs say they are busy. Source: GLM-5-NVFP4 on eight GPUs of
    600 W drew 250 W while it was slow, and 125 W while the ranks waited for each other (February 2026).
    """

    floors: dict[Text, Positive] = Field(default_factory=dict)
    stall_s: Positive = 120
    ready_deadline_s: Positive = 1800
    min_power_fraction: Percent = 0.25


class Topology(Model):
    """The thresholds for one kind of node. `outlier_fraction`: a GPU below this part of the median is an outlier."""

    name: Text
    summary: Text
    match: Match
    gpus: Gpus = Gpus()
    interconnect: Literal["pcie", "nvlink", "any"] = "any"
    pcie: Pcie | None = None
    bar1_min_mib: Positive | None = None
    idle_memory_max_mib: Positive = 1024
    power_limit_min_w: Positive | None = None
    host_memory_min_gib: Positive | None = None
    shm_min_gib: Positive = 16
    disk_min_images: Positive = 3
    limits: Limits = Limits()
    outlier_fraction: Percent = 0.85
    heat: Heat = Heat()
    server: Server = Server()


def load_all(root: Path) -> dict[str, Topology]:
    """Load every topology by name. Raises Problems with everything that is wrong but for names of other files."""
    return {topology.name: topology for _, topology in _loaded(root)}


def get(topologies: Mapping[str, Topology], name: str) -> Topology:
    """Return a topology; raises UserError with the known ones."""
    if name not in topologies:
        raise_all([names.unknown("topology", name, topologies)])
    return topologies[name]


def match(
    topologies: Mapping[str, Topology],
    gpu_names: Iterable[str],
    count: int,
    *,
    sockets: int | None = None,
    switched: bool | None = None,
) -> Topology:
    """Return the topology that says most about a node and contradicts nothing known of it; raises UserError.

    What is not known of the node (None) contradicts nothing. Of several equally close ones the first by name is taken.
    """
    found = {*gpu_names}
    scored = [
        (_score(topology.match, found, count, sockets, switched), name) for name, topology in sorted(topologies.items())
    ]
    fitting = [(score, name) for score, name in scored if score is not None]
    if not fitting:
        hint = f"name one: {', '.join(sorted(topologies)) or 'there is none'}"
        raise UserError(f"no topology is for {count} × {', '.join(sorted(found)) or 'no GPU'}", hint=hint)
    return topologies[max(fitting, key=lambda one: one[0])[1]]


def _score(wanted: Match, found: set[str], count: int, sockets: int | None, switched: bool | None) -> int | None:
    """Return how many of the conditions the node meets, names counting most; None if one is contradicted."""
    pairs = ((wanted.count, count), (wanted.sockets, sockets), (wanted.switched, switched))
    known = [(want, have) for want, have in pairs if want is not None and have is not None]
    named = not wanted.any_gpu
    if any(want != have for want, have in known) or (named and not (found and found <= {*wanted.gpu_names})):
        return None
    return 10 * named + len(known)


def problems(root: Path, intent: Versions) -> list[Problem]:
    """Return everything that is wrong: the files, their names of GPUs and presets, and two for the same nodes."""
    try:
        loaded = _loaded(root)
    except UserError as error:
        return [*error.problems]
    presets = {path.stem for path in (root / "presets").glob("*.yaml")}
    found = [one for document, topology in loaded for one in _names(document, topology, intent, presets)]
    return [*found, *_twins(loaded)]


def _loaded(root: Path) -> list[tuple[Document, Topology]]:
    return schema.load_folder(root, "topologies", Topology)


def _names(document: Document, topology: Topology, intent: Versions, presets: set[str]) -> Iterator[Problem]:
    targets = {name: gpu for gpu in intent.gpus.values() for name in gpu.names}
    wanted = topology.gpus.compute_capability
    for index, name in enumerate(() if topology.match.any_gpu else topology.match.gpu_names):
        path = f"match.gpu_names[{index}]"
        if name not in targets:
            yield names.unknown("GPU", name, targets, document.at(path), path)
        elif wanted not in (None, has := targets[name].compute_capability):
            hint = f"versions.yaml: {name} has {has}"
            yield Problem(document.at("gpus.compute_capability"), f"gpus.compute_capability: {wanted!r}", hint)
    for preset in topology.server.floors:
        if preset not in presets:
            path = f"server.floors.{preset}"
            yield names.unknown("preset", preset, presets, document.at(path), path)


def _twins(loaded: Iterable[tuple[Document, Topology]]) -> Iterator[Problem]:
    seen: dict[tuple[str, Match], str] = {}
    for document, topology in loaded:
        for name in topology.match.gpu_names:
            key = (name, topology.match.model_copy(update={"gpu_names": (name,)}))
            other = seen.setdefault(key, document.name)
            if other != document.name:
                hint = "give one of them `sockets`, `switched` or another count"
                yield Problem(document.at("match"), f"match: {other} is for the same nodes", hint)
