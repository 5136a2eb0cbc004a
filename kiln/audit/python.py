"""Python: what pip would not tell, or tells and goes on."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion

from kiln.audit import distributions
from kiln.audit.distributions import Distribution
from kiln.audit.records import Target, short
from kiln.audit.rules import Finding

PIP_CHECK = "pip check"
_GENERATION = re.compile(r"-cu(\d\d)$")
_LOCAL = re.compile(r"cpu|cu\d+")


def check(target: Target) -> Iterator[Finding]:
    """Yield conflicts among distributions and files that are not what RECORD says."""
    found = distributions.find(target)
    yield from _overlaps(found)
    yield from _changed(target, found)
    yield from _generations(found)
    yield from _nccl(target)
    yield from _versions(found)
    if target.whole:
        yield from pip_check(found, distributions.environment(target))


def pip_check(found: Sequence[Distribution], environment: Mapping[str, str]) -> Iterator[Finding]:
    """Yield requirements that are not met, in the words of `uv pip check`."""
    installed = {one.name: one.version for one in found}
    for one in found:
        for text in one.requires:
            try:
                wanted = Requirement(text)
            except InvalidRequirement:
                yield Finding(
                    "python", one.name, PIP_CHECK, f"The package `{one.name}` requires `{text}`: not readable"
                )
                continue
            if wanted.marker and not wanted.marker.evaluate({**environment, "extra": ""}):
                continue
            version = installed.get(canonicalize_name(wanted.name), "")
            if not version or not _meets(wanted, version):
                yield Finding("python", one.name, PIP_CHECK, _unmet(one.name, wanted, version))


def _meets(wanted: Requirement, version: str) -> bool:
    try:
        return wanted.specifier.contains(version, prereleases=True)
    except InvalidVersion:
        return not wanted.specifier


def allowed_lines(root: Path, stack: str) -> tuple[Path, list[re.Pattern[str]]]:
    """Return the stack's list of allowed `pip check` lines, the one that the image tests use."""
    file = root / "tests" / "image" / "allow" / f"pip-check-{stack}.txt"
    lines = file.read_text().splitlines() if file.exists() else []
    return file, [re.compile(line) for line in lines if line.strip() and not line.startswith("#")]


def _unmet(name: str, wanted: Requirement, version: str) -> str:
    bare = f"{wanted.name}{wanted.specifier}"
    ending = f"but `{version}` is installed" if version else "but it's not installed"
    return f"The package `{name}` requires `{bare}`, {ending}"


def _overlaps(found: Sequence[Distribution]) -> Iterator[Finding]:
    """Yield pairs of distributions that own a file with different content; the same content twice does no harm."""
    owners: dict[str, list[Distribution]] = {}
    for one in found:
        for path in one.files:
            owners.setdefault(path, []).append(one)
    pairs: dict[tuple[str, str], list[str]] = {}
    for path, several in owners.items():
        if len({one.files[path] for one in several}) > 1:
            pairs.setdefault((several[0].name, several[-1].name), []).append(short(path))
    for (first, second), paths in sorted(pairs.items()):
        message = f"owns {len(paths)} files that {second} owns too, with other content: {paths[0]}"
        yield Finding("python", first, second, message, tuple(sorted(paths)))


def _changed(target: Target, found: Sequence[Distribution]) -> Iterator[Finding]:
    for one in found:
        changed, missing = [], []
        for path, sha256 in one.files.items():
            record = target.records.get(path)
            if record is None:
                missing.append(short(path))
            elif record.sha256 and record.sha256 != sha256:
                changed.append(short(path))
        if changed:
            message = f"{len(changed)} files are not what RECORD says: {changed[0]}"
            yield Finding("python", one.name, "RECORD", message, tuple(sorted(changed)))
        if missing:
            message = f"{len(missing)} files of RECORD are missing: {missing[0]}"
            yield Finding("python", one.name, "missing files", message, tuple(sorted(missing)))


def _generations(found: Sequence[Distribution]) -> Iterator[Finding]:
    """Yield the distributions of the rarer CUDA generation; unsuffixed `nvidia-cuda-*` has it in its version."""
    generations: dict[str, str] = {}
    for one in found:
        if match := _GENERATION.search(one.name):
            generations[one.name] = match[1]
        elif one.name.startswith("nvidia-cuda-"):
            generations[one.name] = one.version.partition(".")[0]
    ranked = Counter(generations.values()).most_common()
    for name, generation in generations.items():
        if ranked and generation != ranked[0][0]:
            yield Finding("python", name, "CUDA generation", f"is for CUDA {generation}, the others for {ranked[0][0]}")


def _nccl(target: Target) -> Iterator[Finding]:
    copies = [one for one in target.matching("*libnccl.so*") if one.sha256]
    if len({one.sha256 for one in copies}) > 1:
        paths = tuple(one.short for one in copies)
        yield Finding("python", paths[0], "NCCL", f"one of {len(paths)} different libnccl: {', '.join(paths)}", paths)


def _versions(found: Sequence[Distribution]) -> Iterator[Finding]:
    locals_ = {one.name: match[0] for one in found if (match := _LOCAL.fullmatch(one.local))}
    trio = {one.name: one.local for one in found if one.name in ("torch", "torchaudio", "torchvision")}
    for tags in (locals_, trio):
        if len(set(tags.values())) > 1:
            text = ", ".join(f"{name} {'+' + tag if tag else 'without'}" for name, tag in sorted(tags.items()))
            yield Finding("python", min(tags), "local tags", f"mixed local tags: {text}")
    for one in found:
        if one.version.startswith("0.0.0"):
            yield Finding(
                "python", one.name, "version", f"has version {one.version}: it was built without its metadata"
            )
