"""The server phase: start the image with the preset, follow it to its verdict, load it, stop it."""

from __future__ import annotations

import io
import shlex
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from kiln import logrules, presets, server
from kiln.errors import KilnError, UserError
from kiln.facts.reading import BadReport, Fault, read
from kiln.facts.server import ReachFacts, ServerFacts, StartFacts
from kiln.presets import Preset
from kiln.smoke.access import Access, CannotRun
from kiln.smoke.connection import KILL_S, TimedOut, call
from kiln.smoke.job import PORT
from kiln.smoke.places import BUNDLE, IMAGE_PYTHON, InImage, output
from kiln.topologies import Topology

NAME = "server"
LOG = "/run/kiln/log"
_LOG_BYTES = 4 << 20
_START_S = 120.0
_LOAD_S = 1200.0
_REACH_S = 60.0
# The server runs below a shell that outlives it: a container whose first process ended takes the probe with it, and
# nothing would be left to say DEAD. The container ends by itself, should nobody come back for it.
_MAIN = """
kiln-serve "$@" > {log}/server.log 2>&1
echo $? > {log}/exit_code
exec sleep {seconds}
"""


@dataclass(frozen=True)
class InServer:
    """The server's container: probes run in it as root, which may look at every process there."""

    image: InImage

    def probe(self, name: str, args: Sequence[str], timeout_s: float) -> str:
        """Run a probe beside the server. Raises TimedOut, NodeLost, BadReport, run.CutOff."""
        words = ["exec", "--user", "0:0", self.image.name(NAME), "timeout", "-k", str(KILL_S), f"{timeout_s:.0f}",
                 IMAGE_PYTHON, BUNDLE, name, *args]  # fmt: skip
        answer = call(self.image.host, self.image.engine(words), timeout_s=timeout_s + 2 * KILL_S)
        return output(name, answer, timeout_s)


def serve(access: Access, topology: Topology, gpus: int, version: str) -> ServerFacts:
    """Run the server; `version` is the image's SGLang, empty if not known.

    Raises CannotRun if preset, image and node do not go together, and what probes raise.
    """
    preset = presets.load_all(access.job.root)[access.job.preset]
    rules = logrules.load(access.job.root)
    words = _words(access, preset, gpus, version)
    limits = topology.server
    with _started(access, preset, words) as place:
        args = ["--port", str(PORT), "--stall", f"{limits.stall_s:.0f}", "--log", f"{LOG}/server.log"]
        deadline_s = access.clock.left(limits.ready_deadline_s)
        start = access.probe(place, "serve", [*args, "--deadline", f"{deadline_s:.0f}"], limits.ready_deadline_s + 60)
        ready = read(start, StartFacts).state == "READY"
        load = _load(access, place, limits.stall_s) if ready else None
        reach = _reach(access, place) if ready else None
        log, status = _left(access)
    found = server.facts(preset, start, load, log, rules, exit_code=status)
    return found.model_copy(update={"reach": reach})


def _words(access: Access, preset: Preset, gpus: int, version: str) -> list[str]:
    if version and not preset.covers(version):
        raise CannotRun(f"preset {preset.name} is for SGLang {preset.sglang}, the image has {version}")
    if server.has_weights(preset) and not access.job.weights:
        raise CannotRun(f"preset {preset.name} needs the weights of {preset.model}: give --weights DIR")
    try:
        return server.words(preset, port=PORT, gpus=gpus)
    except UserError as error:
        raise CannotRun(str(error)) from None


@contextmanager
def _started(access: Access, preset: Preset, words: Sequence[str]) -> Iterator[InServer]:
    """Start the server's container; it is removed whatever happens, if the node can still be reached."""
    model = access.job.weights
    if not server.has_weights(preset):
        model = f"{access.opened.dir}/model"
        _send(access, server.model(access.job.root, preset), model)
    variables = [word for name, value in sorted(preset.environment.items()) for word in ("--env", f"{name}={value}")]
    mounts = ["--volume", f"{model}:{server.MODEL}:ro", "--volume", f"{access.opened.dir}/log:{LOG}"]
    place = access.in_image("--network", "none", "--cap-add", "SYS_PTRACE", *mounts, *variables)
    script = _MAIN.format(log=LOG, seconds=int(access.job.seconds))
    command = ["run", "--detach", *place.container(NAME), "--entrypoint", "/usr/bin/tini", place.image,
               "-g", "--", "/bin/sh", "-c", script, NAME, *words]  # fmt: skip
    access.say("starting the server")
    try:
        answer = call(access.host, place.engine(command), timeout_s=access.clock.left(_START_S))
        if answer.rc != 0:
            raise CannotRun(f"the engine does not start the server: {answer.stderr.strip()[-300:]}")
        yield InServer(place)
    finally:
        access.say("stopping the server")
        with suppress(KilnError):  # the teardown removes what is left, and tells if it cannot
            call(access.host, place.engine(["rm", "--force", place.name(NAME)]), timeout_s=60)


def _send(access: Access, files: Mapping[str, bytes], folder: str) -> None:
    """Put files into a folder on the node that anybody may read, in one round trip."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(data), 0o644
            archive.addfile(entry, io.BytesIO(data))
    where = shlex.quote(folder)
    answer = call(access.host, f"mkdir -m 755 {where} && tar -x -p -C {where}", stdin=buffer.getvalue())
    if answer.rc != 0:
        raise CannotRun(f"the model's files did not arrive: {answer.stderr.strip()[-300:]}")


def _load(access: Access, place: InServer, stall_s: float) -> str | None:
    """Load the server; None if that cannot be told, which makes its checks NOT_RUN."""
    left_s = access.clock.left(_LOAD_S)
    args = ["--port", str(PORT), "--stall", f"{stall_s:.0f}", "--deadline", f"{left_s * 0.7:.0f}"]
    real = ["--real"] if access.job.weights else []
    try:
        return access.probe(place, "load", [*args, *real], _LOAD_S)
    except (BadReport, TimedOut, CannotRun):
        return None


def _reach(access: Access, place: InServer) -> ReachFacts | None:
    """Ask what a new program in the server's container reaches; None if there is no time left to ask."""
    try:
        return read(access.probe(place, "reach", [], _REACH_S), ReachFacts)
    except CannotRun:
        return None
    except (BadReport, TimedOut) as error:
        faults = tuple(Fault(source=source, error=str(error)) for source in ("nvml", "CUDA driver"))
        return ReachFacts(nvml=None, cuda=None, faults=faults)


def _left(access: Access) -> tuple[str, int | None]:
    """Return the server's log, its last part, and its exit status; None while it runs."""
    folder = shlex.quote(f"{access.opened.dir}/log")
    answer = call(
        access.host,
        f"cd {folder} && (if [ -f exit_code ]; then cat exit_code; else echo; fi); tail -c {_LOG_BYTES} server.log",
    )
    status, _, log = answer.stdout.partition("\n")
    return log, int(status) if status.strip().isdigit() else None
