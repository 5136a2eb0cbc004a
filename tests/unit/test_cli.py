"""What a command ends with: the words on stderr and the exit code, through Invoke itself."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kiln import cli
from kiln.settings import ROOT

pytestmark = pytest.mark.unit
TASKS = '''
import sys
import time

from invoke import task

from kiln.cli import announce, emit, reported
from kiln.errors import CheckFailed, KilnError, Problem, Problems, UserError


@task
@reported
def good(c, name="x"):
    """Print."""
    announce("on the host")
    emit({"b": name, "a": [1]})


@task
@reported
def user(c):
    raise UserError("no such thing", hint="inv list", source="versions.yaml:7")


@task
@reported
def several(c):
    raise Problems([Problem("b:2", "second", "mend it"), Problem("a:9", "first")])


@task
@reported
def check(c):
    raise CheckFailed("the digest differs")


@task
@reported
def kiln(c):
    raise KilnError("the engine went away")


@task
@reported
def fault(c):
    {}["nothing"]


@task
@reported
def wait(c):
    print("waiting", flush=True)
    time.sleep(60)
'''


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tasks.py").write_text(TASKS)
    return tmp_path


def start(folder: Path, *words: str) -> subprocess.Popen[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    # A suite that runs in the background has SIGINT ignored, and a child would inherit that.
    argv = ["env", "--default-signal=INT", sys.executable, "-m", "invoke", "--search-root", str(folder), *words]
    return subprocess.Popen(argv, env=env, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def run(folder: Path, *words: str) -> tuple[int, str, str]:
    with start(folder, *words) as process:
        out, err = process.communicate(timeout=60)
        return process.returncode, out, err


def test_a_good_command_ends_with_0_and_keeps_data_and_words_apart(folder: Path) -> None:
    code, out, err = run(folder, "good", "--name", "y")
    assert (code, json.loads(out), err) == (0, {"a": [1], "b": "y"}, "kiln: on the host\n")


@pytest.mark.parametrize(
    ("task", "code", "words"),
    [
        ("user", 2, "error: versions.yaml:7: no such thing\n  hint: inv list\n"),
        ("several", 2, "error: a:9: first\nerror: b:2: second\n  hint: mend it\n"),
        ("check", 1, "error: the digest differs\n"),
        ("kiln", 3, "error: the engine went away\n"),
    ],
)
def test_an_error_is_told_in_words_and_by_its_exit_code(folder: Path, task: str, code: int, words: str) -> None:
    assert run(folder, task) == (code, "", words)


def test_a_fault_of_kiln_shows_where_and_says_whose_it_is(folder: Path) -> None:
    code, _, err = run(folder, "fault")
    assert code == 3
    assert "KeyError: 'nothing'" in err
    assert err.endswith("error: this is a fault of kiln itself, please report it with the lines above\n")


def test_an_interrupt_ends_with_130_and_says_that_nothing_is_lost(folder: Path) -> None:
    with start(folder, "wait") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "waiting\n"
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err == "interrupted: what was finished is kept, the same command goes on from there\n"


def test_a_reader_that_goes_away_is_no_fault(folder: Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": ""}
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", f"{sys.executable} -m invoke --search-root {folder} good | true"],
        env=env, cwd=folder, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (1, "kiln: on the host\n")


def test_a_real_command_of_the_project_refuses_an_unknown_gpu() -> None:
    code, out, err = run(ROOT, "show", "--gpu", "sm121")
    assert (code, out) == (2, "")
    assert err.startswith("error: there is no GPU 'sm121'\n  hint: did you mean 'sm120'? known: sm120")


def test_a_plan_is_printed_for_machines() -> None:
    code, out, _ = run(ROOT, "show", "--stack", "ci", "--gpu", "sm90", "--json")
    assert code == 0
    assert json.loads(out)["gpu"] == "sm90"


@pytest.mark.parametrize("text", ["a,b", "a b", " a , b ", "a,,b"])
def test_a_list_is_split_at_commas_and_blanks(text: str) -> None:
    assert cli.words(text) == ("a", "b")
    assert cli.words("") == ()
