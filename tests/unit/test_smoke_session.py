"""One node's run, here, with probes that answer what is recorded, and a container engine that keeps a log."""

from __future__ import annotations

import io
import json
import os
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kiln import checks, topologies
from kiln.facts import Facts
from kiln.facts.node import NodeFacts
from kiln.receipt import Receipt
from kiln.settings import ROOT
from kiln.smoke.access import Clock
from kiln.smoke.broken import broken
from kiln.smoke.connection import Target, connect
from kiln.smoke.draft import CONNECTION, PULL, TEARDOWN, Draft
from kiln.smoke.job import Job
from kiln.smoke.session import Session
from kiln.verdict import Finding, Verdict
from tests import madenodes as made

pytestmark = pytest.mark.unit
IMAGE = f"registry.example/kiln/sglang@sha256:{'a' * 64}"
LABELS = {"kiln.cuda": "13.0", "kiln.gpu": "sm120", "kiln.arch": "12.0f", "kiln.plan": "66fd7b5a9625"}
PROBE = """
import json, sys, time
from pathlib import Path
import zipfile
answer = json.loads(zipfile.ZipFile(sys.path[0]).read("answers.json")).get(sys.argv[1])
if answer is None:
    sys.exit(f"no module named {sys.argv[1]}")
time.sleep(answer.get("sleep", 0))
print(json.dumps(answer))
"""
# `run` runs its probe right here; what is asked is noted, and `image inspect` knows what was pulled.
DOCKER = f"""#!/bin/bash
echo "$@" >> "$FAKE_DOCKER/log"
case $1 in
pull)
  if [ -e "$FAKE_DOCKER/refuses" ]; then cat "$FAKE_DOCKER/refuses" >&2; exit 1; fi
  touch "$FAKE_DOCKER/pulled" ;;
image)
  [ -e "$FAKE_DOCKER/pulled" ] || exit 1
  echo '{json.dumps(LABELS)}' ;;
exec)
  shift 7
  exec timeout -k 5 "$1" python3 "$(cat "$FAKE_DOCKER/bundle")" "${{@:4}}" ;;
run)
  [ "$2" = --detach ] && detached=yes
  while [ "$1" != -- ]; do
    case $2 in *:/run/kiln/probe.pyz:ro) bundle=${{2%%:*}} ;; esac
    shift
  done
  if [ "$detached" ]; then
    echo "$bundle" > "$FAKE_DOCKER/bundle"
    cp -r "${{bundle%/*}}/model" "$FAKE_DOCKER/model"
    echo "[2026-10-01 10:00:00] server_args=..." > "${{bundle%/*}}/log/server.log"
    echo 3 > "${{bundle%/*}}/log/exit_code"
    exit 0
  fi
  shift; limit=$4; shift 6
  exec timeout -k 5 "$limit" python3 "$bundle" "$@" ;;
esac
"""


def bundle(answers: dict[str, Any]) -> Callable[[], bytes]:
    """Return a bundle whose probes answer what they are told to."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("__main__.py", PROBE)
        archive.writestr("answers.json", json.dumps(answers))
    return buffer.getvalue


def answer(name: str, facts: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"probe": name, "version": 1, "seconds": 0.1, "faults": [], "facts": facts, **more}


def recorded(node: NodeFacts) -> dict[str, Any]:
    """Return a node as its probe would tell it."""
    return answer("node", node.model_dump(mode="json", exclude={"faults"}))


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A container engine by name, and a folder /tmp of the node."""
    folder = tmp_path / "docker"
    (tmp_path / "bin").mkdir()
    folder.mkdir()
    program = tmp_path / "bin" / "docker"
    program.write_text(DOCKER)
    program.chmod(0o755)
    (tmp_path / "bin" / "python3").symlink_to(Path(sys.executable).resolve())
    (tmp_path / "nodes").mkdir()
    for name, value in {"PATH": f"{program.parent}:{os.environ['PATH']}", "FAKE_DOCKER": str(folder),
                        "TMPDIR": str(tmp_path / "nodes")}.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    yield folder
    assert not [*(tmp_path / "nodes").iterdir()], "something was left on the node"


def session(tmp_path: Path, answers: dict[str, Any], *, stop: threading.Event | None = None, **job: Any) -> Session:
    """Return a run on this machine; all phases, with the image, unless `job` says otherwise."""
    given = {"image": IMAGE, "digest": IMAGE.partition("@")[2], "labels": LABELS, "size_bytes": 12 * 10**9, **job}
    folder = tmp_path / "job"
    folder.mkdir()
    words: dict[str, Any] = {"phases": checks.PHASES, "preset": "tiny", "seconds": 100, **given}
    made_job = Job(id="0123456789abcdef", root=ROOT, folder=folder, **words)
    stop = stop or threading.Event()
    return Session(
        made_job, connect(Target(), stop), Clock(made_job.seconds, stop), bundle(answers), topologies.load_all(ROOT),
        lambda receipt: (), Draft(made_job),
    )  # fmt: skip


def run_all(found: Session) -> Receipt:
    for name in list(found.draft.findings):
        found.findings(name)
    return found.finish()


def verdicts(receipt: Receipt, prefix: str) -> set[Verdict]:
    return {one.verdict for one in receipt.outcomes if one.check.startswith(prefix)}


def messages(receipt: Receipt, prefix: str) -> set[str]:
    return {one.message for one in receipt.outcomes if one.check.startswith(prefix)}


def test_a_good_node_is_judged_and_left_as_it_was(tmp_path: Path, docker: Path) -> None:
    receipt = run_all(session(tmp_path, {"node": recorded(made.rtx8())}, phases=("preflight", "after")))
    assert receipt.verdict in (Verdict.PASS, Verdict.WARN), receipt.of(Verdict.FAIL, Verdict.NOT_RUN)
    assert receipt.node.topology == "rtx-pro-6000-8x-direct"
    assert receipt.node.cards == "8 × NVIDIA RTX PRO 6000 Blackwell Server Edition"
    assert receipt.image.plan == "66fd7b5a9625"
    assert [phase.name for phase in receipt.phases] == ["preflight", "after"]
    assert "fabric/heat: phase fabric was not chosen" in receipt.not_run
    teardown = next(one for one in receipt.outcomes if one.check == TEARDOWN)
    assert teardown.numbers["round_trips"] == 4
    assert "pull" not in (docker / "log").read_text()


def test_nothing_is_pulled_to_a_node_that_failed_preflight(tmp_path: Path, docker: Path) -> None:
    node = made.xid(made.rtx8(), 79, when_s=-1)
    receipt = run_all(session(tmp_path, {"node": recorded(node)}))
    assert receipt.verdict is Verdict.FAIL
    assert messages(receipt, "run/pull") == {"preflight failed: preflight/xid"}
    assert verdicts(receipt, "fabric/") == {Verdict.NOT_RUN}
    assert messages(receipt, "fabric/") == {"there is no image: preflight failed: preflight/xid"}
    assert "pull" not in (docker / "log").read_text()


def test_the_image_is_pulled_once_and_each_probe_has_a_container_of_its_own(tmp_path: Path, docker: Path) -> None:
    receipt = run_all(session(tmp_path, {"node": recorded(made.rtx8())}, phases=("preflight", "fabric", "after")))
    log = (docker / "log").read_text().splitlines()
    assert [line for line in log if line.startswith("pull")] == [f"pull -q {IMAGE}"]
    runs = [line for line in log if line.startswith("run")]
    assert [line.split("probe.pyz ")[1].split()[0] for line in runs] == [
        "bandwidth", "peers", "ipc", "allreduce", "heat"]  # fmt: skip
    for line in runs:
        assert "--rm --network none" in line
        assert "--name kiln-smoke-0123456789abcdef-" in line
        assert "--label kiln.smoke=0123456789abcdef --gpus all --ulimit memlock=-1 " in line
        assert "timeout -k 5 " in line
    assert log[-1] == "ps -aq --filter label=kiln.smoke=0123456789abcdef"
    assert messages(receipt, "run/pull").pop().startswith("pulled in")
    probes = {one.subject: one.message for one in receipt.outcomes if one.check == "run/probes"}
    assert probes["heat"] == "the probe heat ended with 1: no module named heat"


def test_what_only_the_pulled_image_tells_is_judged_before_it_is_run(tmp_path: Path, docker: Path) -> None:
    """The registry may not answer from here; then a driver that is too old shows after the pull."""
    node = made.changed(made.rtx8(), "nvidia", cuda="12.4")
    found = session(tmp_path, {"node": recorded(node)}, labels={}, size_bytes=None)
    before = found.findings("preflight/driver-cuda")[0]
    assert (before.verdict, before.message) == (
        Verdict.NOT_RUN, "the image's CUDA is not known: it has no label kiln.cuda")  # fmt: skip
    receipt = run_all(found)
    assert verdicts(receipt, "preflight/driver-cuda") == {Verdict.FAIL}
    assert messages(receipt, PULL) == {"preflight failed: preflight/driver-cuda"}
    assert "pull -q" in (docker / "log").read_text()
    assert "run" not in {line.split()[0] for line in (docker / "log").read_text().splitlines()}


def test_an_image_that_is_there_is_not_pulled(tmp_path: Path, docker: Path) -> None:
    (docker / "pulled").touch()
    receipt = run_all(session(tmp_path, {"node": recorded(made.rtx8())}))
    assert messages(receipt, "run/pull") == {"the image was there already"}
    assert "pull -q" not in (docker / "log").read_text()


@pytest.mark.parametrize(
    ("said", "cause"),
    [
        ("manifest unknown: manifest unknown", "the registry does not have this digest"),
        ("write /var/lib/docker/x: no space left on device", "the disk with the engine's images is full"),
        ("unauthorized: authentication required", "the node is not logged in to the registry"),
        ("http: server gave HTTP response to HTTPS client", "the registry speaks plain HTTP"),
        ("something else", "the engine's own words"),
    ],
)
def test_a_pull_that_fails_says_why(said: str, cause: str, tmp_path: Path, docker: Path) -> None:
    (docker / "refuses").write_text(said)
    found = session(tmp_path, {"node": recorded(made.rtx8())})
    pulled = found.findings(PULL)[0]
    receipt = run_all(found)
    assert pulled.verdict is Verdict.FAIL
    assert said in pulled.message
    assert cause in pulled.cause
    assert receipt.verdict is Verdict.FAIL
    assert verdicts(receipt, "numerics/") == {Verdict.NOT_RUN}


def test_without_an_image_what_takes_one_is_not_run(tmp_path: Path, docker: Path) -> None:
    receipt = run_all(session(tmp_path, {"node": recorded(made.good_h200())}, image="", digest="", labels={}))
    assert receipt.verdict is Verdict.NOT_RUN
    assert messages(receipt, "fabric/") == {"there is no image to run it in"}
    assert not [one for one in receipt.outcomes if one.check == PULL]


def test_with_a_python_no_container_is_started_and_the_server_is_not_run(tmp_path: Path, docker: Path) -> None:
    python = tmp_path / "bin" / "python-with-torch"
    python.write_text('#!/bin/sh\necho "$@" >> "$FAKE_DOCKER/python"\nexec python3 "$@"\n')
    python.chmod(0o755)
    receipt = run_all(session(tmp_path, {"node": recorded(made.good_h200())}, image="", python=str(python)))
    assert "run" not in {line.split()[0] for line in (docker / "log").read_text().splitlines()}
    assert [line.split()[1] for line in (docker / "python").read_text().splitlines()][:2] == ["container", "bandwidth"]
    for one in receipt.outcomes:
        if one.check.startswith("server/"):
            assert (one.verdict, one.cause) == (Verdict.NOT_RUN, "--python was given")


START = {"seconds": 20.0, "timed_out": False, "alive": [], "missing": [], "orphans": [], "expected": None,
         "compiled": [], "nccl": [], "stacks": [],
         "timeline": [{"time_s": 0.1, "state": "STARTING", "why": "no port"}]}  # fmt: skip
LOAD: dict[str, Any] = {"resolved": None, "same": None, "rounds": [], "answers": None, "compiled": [], "samples": []}


def served(tmp_path: Path, state: str, **job: Any) -> tuple[Receipt, Session]:
    answers = {
        "node": recorded(made.rtx8()),
        "serve": answer("serve", {**START, "state": state}),
        "load": answer("load", LOAD),
        "reach": answer("reach", {"nvml": 8, "cuda": 8}),
    }
    found = session(tmp_path, answers, **{"phases": ("preflight", "server", "after"), "preset": "tiny", **job})
    return run_all(found), found


def test_the_server_is_started_followed_loaded_and_removed(tmp_path: Path, docker: Path) -> None:
    receipt, found = served(tmp_path, "READY")
    log = (docker / "log").read_text().splitlines()
    begun = next(line for line in log if line.startswith("run --detach --name kiln-smoke-0123456789abcdef-server "))
    assert "--network none --cap-add SYS_PTRACE" in begun
    assert " -g -- /bin/sh -c " in begun
    assert begun.count("/model:ro") == 1
    words = "\n".join(log).split("sleep 100", 1)[1]
    assert "--load-format dummy" in words
    assert "--tp-size 8" in words
    assert {path.name for path in (docker / "model").iterdir()} >= {"config.json", "tokenizer.json"}
    probes = [line.split("probe.pyz ")[1] for line in log if line.startswith("exec --user 0:0 ")]
    assert [one.split()[0] for one in probes] == ["serve", "load", "reach"]
    assert "--port 30000 --stall 120 --log /run/kiln/log/server.log --deadline " in probes[0]
    assert log.index("rm --force kiln-smoke-0123456789abcdef-server") < log.index(
        "ps -aq --filter label=kiln.smoke=0123456789abcdef"
    )
    facts = found.draft.facts.server
    assert facts
    assert facts.load
    assert (facts.preset, facts.start.state, facts.exit_code) == ("tiny", "READY", 3)
    assert facts.reach
    assert (facts.reach.nvml, facts.reach.cuda) == (8, 8)
    assert facts.log_tail == ("[2026-10-01 10:00:00] server_args=...",)
    assert receipt.server
    assert receipt.server.timeline[0].state == "STARTING"
    assert receipt.preset == "tiny"


def test_a_server_that_does_not_come_up_is_not_loaded(tmp_path: Path, docker: Path) -> None:
    receipt, found = served(tmp_path, "DEAD")
    assert found.draft.facts.server
    assert found.draft.facts.server.load is None
    assert receipt.verdict is Verdict.FAIL
    assert " load " not in (docker / "log").read_text()
    assert "rm --force kiln-smoke-0123456789abcdef-server" in (docker / "log").read_text()


@pytest.mark.parametrize(
    ("job", "message"),
    [
        ({"preset": "glm5-nvfp4"}, "preset glm5-nvfp4 needs the weights of GLM-5-NVFP4: give --weights DIR"),
        ({"labels": {**LABELS, "kiln.pin.sglang": "0.4.0"}}, "preset tiny is for SGLang "),
    ],
)
def test_a_preset_that_does_not_fit_is_not_served(
    job: dict[str, Any], message: str, tmp_path: Path, docker: Path
) -> None:
    if "labels" in job:
        (docker.parent / "bin" / "docker").write_text(DOCKER.replace(json.dumps(LABELS), json.dumps(job["labels"])))
    receipt, _ = served(tmp_path, "READY", **job)
    assert all(one.startswith(message) for one in messages(receipt, "server/"))
    assert "--detach" not in (docker / "log").read_text()


def test_a_probe_that_gives_nonsense_makes_its_phase_not_run_with_its_words(tmp_path: Path, docker: Path) -> None:
    node = recorded(made.rtx8())
    node["facts"]["host"]["cpus"] = "many"
    receipt = run_all(session(tmp_path, {"node": node}))
    assert verdicts(receipt, "preflight/") == {Verdict.NOT_RUN}
    assert "probe node: host.cpus: Input should be a valid integer" in messages(receipt, "preflight/").pop()
    assert messages(receipt, PULL) == {"preflight knows nothing of the node"}
    assert "pull" not in (docker / "log").read_text()


def test_what_the_deadline_cuts_off_is_not_run_and_the_receipt_is_whole(tmp_path: Path, docker: Path) -> None:
    slow = {"node": {**recorded(made.rtx8()), "sleep": 60}}
    receipt = run_all(session(tmp_path, slow, phases=("preflight",), seconds=3))
    assert receipt.verdict is Verdict.NOT_RUN
    assert messages(receipt, "preflight/") == {"the deadline of 3 s came while node ran"}
    assert verdicts(receipt, TEARDOWN) == {Verdict.PASS}


def test_an_interrupted_run_goes_to_its_end_at_once_and_tidies_up(tmp_path: Path, docker: Path) -> None:
    stop = threading.Event()
    found = session(tmp_path, {"node": {**recorded(made.rtx8()), "sleep": 60}}, stop=stop)
    found.findings(CONNECTION)
    threading.Timer(1, stop.set).start()
    receipt = run_all(found)
    assert messages(receipt, "after/") == {"the run was interrupted"}
    assert verdicts(receipt, TEARDOWN) == {Verdict.PASS}
    assert receipt.seconds < 20


def _breaks(facts: Facts, topology: topologies.Topology) -> list[Finding]:
    raise ZeroDivisionError("division by zero")


def test_a_check_that_breaks_costs_itself_only(tmp_path: Path, docker: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = checks.load_all()
    broken_one = [checks.Check(one.name, one.title, True, _breaks) if one.name == "preflight/xid" else one
                  for one in real]  # fmt: skip
    monkeypatch.setattr(checks, "load_all", lambda: tuple(broken_one))
    receipt = run_all(session(tmp_path, {"node": recorded(made.rtx8())}, phases=("preflight", "after")))
    assert messages(receipt, "preflight/xid") == {"the check itself broke: ZeroDivisionError: division by zero"}
    assert verdicts(receipt, "preflight/ecc") == {Verdict.PASS}


def test_the_draft_on_disk_is_a_whole_receipt_at_every_moment(tmp_path: Path, docker: Path) -> None:
    found = session(tmp_path, {"node": recorded(made.rtx8())})
    found.draft.write()
    first = Receipt.model_validate_json(found.job.draft.read_bytes())
    assert first.verdict is Verdict.NOT_RUN
    assert {one.message for one in first.outcomes} == {"not reached"}
    found.findings(CONNECTION)
    found.findings("preflight/xid")
    second = Receipt.model_validate_json(found.job.draft.read_bytes())
    assert verdicts(second, "preflight/xid") == {Verdict.PASS}
    assert messages(second, "after/") == {"not reached"}
    killed = broken(found.job, "its process ended with -9", "line\nlast words\n")
    assert (killed.verdict, killed.outcomes[0].check) == (Verdict.FAIL, "run/process")
    assert "last words" in killed.outcomes[0].cause
    assert killed.outcomes[1:] == second.outcomes
    found.finish()


def test_a_process_that_wrote_no_draft_has_a_receipt_all_the_same(tmp_path: Path, docker: Path) -> None:
    found = session(tmp_path, {})
    receipt = broken(found.job, "its process ended with 4", "ImportError: no testinfra\n")
    assert receipt.verdict is Verdict.FAIL
    assert {one.message for one in receipt.outcomes[1:]} == {"not reached"}
