"""diffoscope on the few files whose content differs between two layouts: what is inside that is not the same."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kiln import host, oci, run
from kiln.cli import announce
from kiln.compare import Comparison, open_source
from kiln.errors import UserError
from kiln.settings import Settings
from kiln.tarread import REGULAR, Member, Source, members, show

FILES = 5
FILE_LIMIT_BYTES = 256 << 20
TIMEOUT_S = 120
LINES = 120
_CHUNK = 1 << 20


@dataclass(frozen=True)
class Explanation:
    """A path, and diffoscope's words about it, cut to `LINES` lines; or why it has none."""

    path: str
    text: str


def explain(settings: Settings, a: Path, b: Path, comparison: Comparison) -> tuple[Explanation, ...]:
    """Compare the first `FILES` files of other content. Where the program is missing, an explanation says so."""
    chosen = dict(list(_chosen(comparison).items())[:FILES])
    if not chosen:
        return ()
    try:
        host.ensure(settings, ("diffoscope",), announce)
    except UserError as error:
        return tuple(Explanation(path, f"diffoscope did not run: {error}") for path in chosen)
    settings.home.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=settings.home, prefix="diffoscope-") as folder:
        work = Path(folder)
        _extract(a, {path: ids[0] for path, ids in chosen.items()}, work / "a")
        _extract(b, {path: ids[1] for path, ids in chosen.items()}, work / "b")
        return tuple(Explanation(path, _run(work, number)) for number, path in enumerate(chosen))


def _chosen(comparison: Comparison) -> dict[str, tuple[str, str]]:
    """Return the files that both have with other content, and the diffIDs of the first layers where that is so."""
    found: dict[str, tuple[str, str]] = {}
    for layer in comparison.layers:
        for one in layer.differences:
            if {"content", "size"} & set(one.what) and one.a.startswith("file ") and one.b.startswith("file "):
                found.setdefault(one.path, (layer.a, layer.b))
    return found


def _extract(layout: Path, wanted: Mapping[str, str], folder: Path) -> None:
    """Write each wanted path of the layer with its diffID as `folder/NUMBER/NAME`; one too large is left out."""
    numbers = {path: number for number, path in enumerate(wanted)}
    for layer in oci.read(layout).layers:
        left = {path for path, diff_id in wanted.items() if diff_id == layer.diff_id}
        if left:
            with open_source(layout, layer) as source:
                for member in members(source):
                    path = show(member.name)
                    if path in left and member.kind == REGULAR and member.size <= FILE_LIMIT_BYTES:
                        _write(source, member, folder / str(numbers[path]))


def _write(source: Source, member: Member, folder: Path) -> None:
    folder.mkdir(parents=True)
    left = member.size
    with (folder / Path(show(member.name)).name).open("wb") as file:
        while left:
            left -= file.write(source.read(min(_CHUNK, left)))


def _run(work: Path, number: int) -> str:
    pair = [next(iter((work / side / str(number)).glob("*")), None) for side in "ab"]
    if None in pair:
        return f"larger than {FILE_LIMIT_BYTES >> 20} MiB, left out"
    argv = ["diffoscope", "--no-progress", "--text=-", "--max-text-report-size=1000000", *(str(file) for file in pair)]
    try:
        done = run.run(argv, check=False, timeout_s=TIMEOUT_S, env={"LC_ALL": "C.UTF-8"})
    except subprocess.TimeoutExpired:
        return f"diffoscope needed more than {TIMEOUT_S} s"
    lines = (done.stdout if done.returncode in (0, 1) else done.stderr or done.stdout).splitlines()
    return "\n".join([*lines[:LINES], *([f"… {len(lines) - LINES} more lines"] if len(lines) > LINES else [])])
