"""`inv reproduce` without an engine: the other place, what is copied there, and what becomes of it afterwards."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from kiln import canon, elsewhere, inventory, layout, reproduce, result, run
from kiln.canon import ConfigOverrides
from kiln.elsewhere import Elsewhere
from kiln.errors import CheckFailed, UserError
from kiln.plan import Plan
from kiln.reproduce import Options, Rebuild
from kiln.result import Result
from kiln.settings import ROOT, Settings, from_env
from kiln.store import Store
from tests import madeimages as made
from tests.madeimages import EPOCH, Entry

pytestmark = pytest.mark.unit


@pytest.fixture(scope="module")
def plan() -> Plan:
    return inventory.plan_for(from_env({}), gpu="sm90", stack="ci", kernel_set="", image="")


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return replace(from_env({}), home=tmp_path / "home")


def test_what_is_said_to_vary_is_what_a_command_there_sees(tmp_path: Path, settings: Settings) -> None:
    place = elsewhere.prepare(settings, tmp_path / "tree", tmp_path / "there", 1)
    script = 'hostname; umask; echo "$TZ" "$LC_ALL"; nproc; echo "$KILN_HOME"; env | wc -l'
    status = run.relay([*place.argv, "sh", "-c", script], out=tmp_path / "out", cwd=tmp_path, env=place.env)
    assert status == 0
    seen = (tmp_path / "out").read_text().split()
    there = {one.name: one.there for one in place.conditions}
    assert seen[:5] == [there[name] for name in ("host name", "umask", "time zone", "locale", "cores")]
    assert seen[5] == str(tmp_path / "there")
    assert int(seen[6]) < 15


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_as_root_there_is_no_network_at_all(tmp_path: Path, settings: Settings) -> None:
    place = elsewhere.prepare(settings, tmp_path / "tree", tmp_path / "there", 1)
    words = [*place.argv, "cat", "/proc/net/dev", "/proc/net/route"]
    assert run.relay(words, out=tmp_path / "out", cwd=tmp_path, env=place.env) == 0
    names = [line.partition(":")[0].strip() for line in (tmp_path / "out").read_text().splitlines() if ":" in line]
    assert names == ["lo"]


def test_a_plain_user_is_told_what_could_not_be_varied(
    tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kiln.host.is_root", lambda: False)
    place = elsewhere.prepare(settings, tmp_path / "tree", tmp_path / "there", 1)
    fixed = {one.name: one.why for one in place.conditions if one.state == "NOT_VARIED"}
    assert fixed["network"] == fixed["host name"] == "needs root"
    assert {"machine", "kernel", "user", "kiln's Python"} <= set(fixed)
    assert place.argv[0] == "sh"


def test_as_many_cores_as_there_are_is_no_variation(tmp_path: Path, settings: Settings) -> None:
    cores = len(os.sched_getaffinity(0))
    place = elsewhere.prepare(settings, tmp_path / "tree", tmp_path / "there", cores)
    (one,) = [one for one in place.conditions if one.name == "cores"]
    assert (one.state, one.why) == ("NOT_VARIED", f"there are {cores}")
    assert "taskset" not in place.argv


def test_the_other_checkout_has_the_tracked_files_as_they_are_now_and_no_others(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "a").mkdir(parents=True)
    for name, text in (("a/edited", "1"), ("a/gone", "1"), ("run", "#!/bin/sh\n"), ("ignored", "1"), ("new", "1")):
        (root / name).write_text(text)
    (root / "run").chmod(0o755)
    (root / "link").symlink_to("run")
    run.run(["git", "-c", "init.defaultBranch=main", "init", "-q", root])
    run.run(["git", "-C", root, "add", "a", "run", "link"])
    (root / "a/edited").write_text("2")
    (root / "a/gone").unlink()
    dest = tmp_path / "dest"
    reproduce.copy_tracked(root, dest)
    found = {str(path.relative_to(dest)): path for path in dest.rglob("*") if not path.is_dir()}
    assert sorted(found) == ["a/edited", "link", "run"]
    assert found["a/edited"].read_text() == "2"
    assert found["link"].is_symlink()
    assert [found[name].stat().st_mode & 0o777 for name in ("a/edited", "run")] == [0o600, 0o700]


def test_what_is_no_checkout_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not a git checkout"):
        reproduce.copy_tracked(tmp_path, tmp_path / "dest")


def test_the_copied_checkout_makes_the_same_plan(tmp_path: Path, settings: Settings, plan: Plan) -> None:
    reproduce.copy_tracked(ROOT, tmp_path / "tree")
    tracked = run.run(["git", "-C", ROOT, "status", "--porcelain", "images", "locks", "patches", "templates"]).stdout
    if "??" not in tracked:
        assert reproduce.plan_of(replace(settings, root=tmp_path / "tree"), plan).id == plan.id


def test_the_other_store_holds_links_to_what_the_plan_needs(tmp_path: Path, plan: Plan) -> None:
    store = Store(tmp_path / "store")
    store.directory.mkdir()
    needed = plan.artefacts()[0]
    for name, size in ((needed.sha256, needed.size), ("0" * 64, 1)):
        with (store.directory / name).open("wb") as file:
            file.truncate(size)
    reproduce.share_store(plan, store, tmp_path / "other")
    assert [path.name for path in (tmp_path / "other").iterdir()] == [needed.sha256]
    assert (tmp_path / "other" / needed.sha256).samefile(store.path(needed.sha256))


def test_a_plan_that_is_not_built_names_the_build(settings: Settings, plan: Plan) -> None:
    with pytest.raises(UserError, match="is not built, so there is nothing to reproduce\n  hint: inv build --gpu=sm90"):
        reproduce.reproduce(settings, plan, Options(), lambda line: None)


def test_an_unknown_engine_lists_the_known_ones(settings: Settings, plan: Plan, tmp_path: Path) -> None:
    written(settings, plan, b"1")
    with pytest.raises(UserError, match="engine 'kaniko' is not known\n  hint: one of docker, classic, buildah"):
        reproduce.reproduce(settings, plan, Options(engine="kaniko"), lambda line: None)


def written(settings: Settings, plan: Plan, data: bytes) -> Result:
    """Stand for a build: write a small canonical layout and its result."""
    target = layout.path(settings, plan)
    target.parent.mkdir(parents=True)
    raw = made.layout(settings.home / "raw", [made.layer([Entry("a", data=data), Entry("b", data=b"same")])])
    config = ConfigOverrides(labels=plan.labels())
    digest = canon.canonicalise(raw, target, epoch=EPOCH, config=config).manifest_digest
    built = Result(plan.id, plan.tag, digest, plan.repository, str(target), ())
    result.save(settings, built)
    return built


def rebuild(settings: Settings, plan: Plan, data: bytes, monkeypatch: pytest.MonkeyPatch, **options: bool) -> Rebuild:
    """A rebuild whose build is stood for as the first one is."""
    built = written(settings, plan, b"1")

    def build(self: Rebuild, place: Elsewhere) -> Result:
        return written(self.there, self.plan, data)

    monkeypatch.setattr(Rebuild, "_build", build)
    monkeypatch.setattr(reproduce, "plan_of", lambda there, plan: plan)
    return Rebuild(settings, plan, built, Options(engine="buildah", **options), lambda line: None)


def test_the_same_image_again_is_reported_and_the_folder_goes(
    settings: Settings, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = rebuild(settings, plan, b"1", monkeypatch)
    report = work.run()
    assert (report.same, report.kept, report.comparison.files_percent) == (True, "", 100)
    assert not work.folder.exists()
    kept = json.loads(work.folder.with_name(f"{work.folder.name}.json").read_text())
    assert kept["same"] is True
    assert {one["state"] for one in kept["conditions"]} == {"VARIED", "NOT_VARIED"}


def test_another_image_is_kept_with_the_paths_that_differ(
    settings: Settings, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kiln.host.ensure", lambda *words: None)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr("kiln.diffoscope._run", lambda work, number: "…")
    monkeypatch.setattr("kiln.reproduce.copy_tracked", lambda root, dest: dest.mkdir(parents=True))
    monkeypatch.setattr("kiln.elsewhere.prepare", lambda *words: Elsewhere((), {}, ()))
    work = rebuild(settings, plan, b"2", monkeypatch)
    report = work.run()
    assert not report.same
    assert report.kept == str(work.folder)
    assert [each.path for each in report.comparison.layers[0].differences] == ["a"]
    assert [each.path for each in report.explanations] == ["a"]
    assert work.there.home.exists()
    assert work.run().kept  # what was kept is in nobody's way


def test_a_rebuild_is_kept_on_request(settings: Settings, plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    work = rebuild(settings, plan, b"1", monkeypatch, keep=True)
    assert work.run().kept == str(work.folder)
    assert work.folder.exists()


def test_two_rebuilds_of_one_plan_do_not_meet(settings: Settings, plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    work = rebuild(settings, plan, b"1", monkeypatch)
    with work._alone(), pytest.raises(UserError, match=r"another `inv reproduce` of plan .* is at work"):
        work.run()


@pytest.mark.parametrize(("status", "kind"), [(2, UserError), (1, CheckFailed), (3, CheckFailed)])
def test_a_rebuild_that_breaks_names_its_logs(
    settings: Settings, plan: Plan, monkeypatch: pytest.MonkeyPatch, status: int, kind: type[Exception]
) -> None:
    monkeypatch.setattr("kiln.run.relay", lambda argv, **how: status)
    work = Rebuild(settings, plan, written(settings, plan, b"1"), Options(engine="buildah"), lambda line: None)
    with pytest.raises(kind, match=f"the rebuild ended with {status}; its logs are in {work.there.logs}"):
        work._build(Elsewhere((), {}, ()))


def test_the_build_that_is_started_has_no_cache_no_push_and_its_own_engine(
    settings: Settings, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[list[str]] = []

    def relay(argv: Sequence[object], **how: object) -> int:
        seen.append([str(word) for word in argv])
        return 1

    monkeypatch.setattr("kiln.run.relay", relay)
    for engine in ("docker", "buildah"):
        built = Result(plan.id, plan.tag, "", plan.repository, "", ())
        work = Rebuild(settings, plan, built, Options(engine=engine, jobs=3), lambda line: None)
        with pytest.raises(CheckFailed):
            work._build(Elsewhere(("there",), {}, ()))
    docker, buildah = seen
    assert {"--no-cache", "--no-push", "--no-test", "--jobs=3", "--gpu=sm90", "--stack=ci"} <= set(docker) & set(
        buildah
    )
    assert docker[:2] == ["there", "sh"]
    assert reproduce._OWN_ENGINE in docker
    assert reproduce._OWN_ENGINE not in buildah


def test_an_interrupt_is_handed_on_once_and_waited_for(tmp_path: Path) -> None:
    code = (
        "import signal, sys, time\n"
        "try:\n    print('started', flush=True); time.sleep(60)\n"
        "except KeyboardInterrupt:\n    time.sleep(0.5); print('tidied', flush=True)\n"
    )
    outer = (
        "from pathlib import Path; from kiln import run; import os, sys; here = Path(sys.argv[1])\n"
        f"run.relay([sys.executable, '-c', {code!r}], out=here / 'out', cwd=here, env=os.environ)"
    )
    argv = [sys.executable, "-c", outer, str(tmp_path)]
    with subprocess.Popen(argv, cwd=ROOT, stderr=subprocess.DEVNULL, preexec_fn=_takes_interrupts) as proc:
        while "started" not in ((tmp_path / "out").read_text() if (tmp_path / "out").exists() else ""):
            assert proc.poll() is None
            time.sleep(0.05)
        proc.send_signal(signal.SIGINT)
        assert proc.wait(timeout=60) != 0
    assert (tmp_path / "out").read_text().split() == ["started", "tidied"]


def _takes_interrupts() -> None:
    """Undo what a shell does to its background jobs, and CI to everything: SIGINT ignored."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
