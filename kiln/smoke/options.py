"""What `inv smoke` was asked for: everything is checked, and all that is wrong told at once, before anything starts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from kiln import checks, names, presets, reference, topologies
from kiln.errors import Problem, raise_all
from kiln.settings import Settings
from kiln.smoke import ssh
from kiln.smoke.job import LOADING

DEADLINE_S = 1800
_SHORTEST_S = 10
_PRESET = "tiny"


@dataclass(frozen=True)
class Options:
    """The words of the command; empty means "not given". `deadline` is in seconds and for each node."""

    hosts: tuple[str, ...] = ()
    image: str = ""
    preset: str = ""
    topology: str = ""
    weights: str = ""
    python: str = ""
    phases: tuple[str, ...] = ()
    deadline: int = 0

    def chosen(self) -> Options:
        """Return the options with what follows from them: preflight and `after` always, the tiny preset."""
        wanted = {"preflight", "after", *(self.phases or checks.PHASES)}
        phases = tuple(phase for phase in checks.PHASES if phase in wanted)
        preset = self.preset or (_PRESET if "server" in phases else "")
        return replace(self, phases=phases, preset=preset, deadline=self.deadline or DEADLINE_S)


def require_good(settings: Settings, options: Options) -> None:
    """Check the options. Raises Problems with everything that is wrong."""
    raise_all([*_hosts(options), *_image(options), *_names(settings, options), *_paths(options), *_rest(options)])


def require_fit(settings: Settings, options: Options, labels: Mapping[str, str]) -> None:
    """Check a preset against what the image's labels say. Raises Problems."""
    if not options.preset or not labels:
        return
    preset = presets.load_all(settings.root)[options.preset]
    version, gpu = labels.get("kiln.pin.sglang", ""), labels.get("kiln.gpu", "")
    found = list[Problem]()
    if version and not preset.covers(version):
        hint = "choose a preset whose `sglang` covers it: presets/*.yaml"
        found.append(
            Problem("", f"--preset: {preset.name} is for SGLang {preset.sglang}, the image has {version}", hint)
        )
    if gpu and gpu not in preset.gpus:
        hint = f"it is for {', '.join(preset.gpus)}"
        found.append(Problem("", f"--preset: {preset.name} is not for the image's GPU target, {gpu}", hint))
    raise_all(found)


def _hosts(options: Options) -> Iterator[Problem]:
    for host in dict.fromkeys(options.hosts):
        if not ssh.is_host(host):
            yield Problem("", f"--hosts: {host!r} is no host", "[USER@]HOST[:PORT], or an alias of ~/.ssh/config")
        if options.hosts.count(host) > 1:
            yield Problem("", f"--hosts: {host} stands there {options.hosts.count(host)} times", "name each node once")


def _image(options: Options) -> Iterator[Problem]:
    if options.image and options.python:
        hint = "an image brings its own Python: give one of the two"
        yield Problem("", "--image and --python exclude each other", hint)
    if options.image:
        yield from _digest(options.image)
    asked = [phase for phase in options.phases if phase in LOADING]
    if asked and not options.image and not options.python:
        hint = "--image REF@sha256:…, or --python PATH for a node without a container engine"
        yield Problem("", f"--phases: {', '.join(asked)} takes an image or a Python", hint)


def _digest(image: str) -> Iterator[Problem]:
    found = reference.read(image)
    if found is None:
        yield Problem("", f"--image: {image!r} is no image in a registry", "HOST[:PORT]/REPOSITORY@sha256:…")
    elif not found.digest:
        hint = f"skopeo inspect --format '{{{{.Digest}}}}' docker://{image}"
        yield Problem("", f"--image: {image} has no digest, and a tag may be another image tomorrow", hint)


def _names(settings: Settings, options: Options) -> Iterator[Problem]:
    for phase in options.phases:
        if phase not in checks.PHASES:
            yield names.unknown("phase", phase, checks.PHASES, path="--phases")
    known_presets = {path.stem for path in (settings.root / "presets").glob("*.yaml")}
    if options.preset and options.preset not in known_presets:
        yield names.unknown("preset", options.preset, known_presets, path="--preset")
    known = topologies.load_all(settings.root)
    if options.topology and options.topology not in known:
        yield names.unknown("topology", options.topology, known, path="--topology")


def _paths(options: Options) -> Iterator[Problem]:
    for name, path in (("--weights", options.weights), ("--python", options.python)):
        if path and not PurePosixPath(path).is_absolute():
            yield Problem("", f"{name}: {path!r} is not an absolute path", "it is looked for on each node")
    if options.hosts:
        return
    if options.weights and Path(options.weights).is_absolute() and not Path(options.weights).is_dir():
        yield Problem("", f"--weights: {options.weights} is no folder here", "a folder with config.json and weights")
    if options.python and Path(options.python).is_absolute() and not Path(options.python).is_file():
        yield Problem("", f"--python: there is no {options.python} here", "the python of an environment with torch")


def _rest(options: Options) -> Iterator[Problem]:
    if options.weights and not options.preset:
        yield Problem("", "--weights takes a preset: its arguments fit one model", "--preset NAME")
    if options.deadline and options.deadline < _SHORTEST_S:
        yield Problem("", f"--deadline: {options.deadline} s is too short", f"{_SHORTEST_S} s or more")
