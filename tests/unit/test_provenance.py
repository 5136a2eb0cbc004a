"""Provenance: a SLSA statement about the manifest, that says who built what from which inputs, and names no host."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from kiln import inventory, provenance, run, statement
from kiln.patches import Choice
from kiln.provenance import Circumstances
from kiln.result import Layer, Result
from kiln.settings import ROOT, from_env

pytestmark = pytest.mark.unit

DIGEST = "sha256:" + "ab" * 32
SETTINGS = from_env({})
PLAN = inventory.plan_for(SETTINGS, gpu="sm120", stack="ci", kernel_set="", image="")
BUILT = Result(PLAN.id, PLAN.tag, DIGEST, PLAN.repository, "", (Layer("sha256:" + "cd" * 32, 10, 20, 3, "base"),))
SEEN = Circumstances(
    "docker 20.10.24",
    datetime(2026, 11, 29, 21, tzinfo=timezone(timedelta(hours=9))),
    datetime(2026, 11, 29, 13, tzinfo=UTC),
    "f" * 40,
    dirty=True,
)


def made(seen: Circumstances = SEEN) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(provenance.make(SETTINGS, PLAN, BUILT, seen))
    return found


def test_it_is_a_slsa_statement_about_the_manifest() -> None:
    found = made()
    assert (found["_type"], found["predicateType"]) == (statement.STATEMENT, statement.PROVENANCE)
    assert found["subject"] == [{"name": PLAN.repository, "digest": {"sha256": "ab" * 32}}]
    assert statement.subjects(found) == (DIGEST,)


def test_it_tells_what_was_asked_for() -> None:
    definition = made()["predicate"]["buildDefinition"]
    assert definition["buildType"] == "urn:kiln:build:v1"
    asked = {"gpu": "sm120", "stack": "ci", "kernels": "ci", "image": "sglang"}
    assert definition["externalParameters"] == asked


def test_a_choice_of_patches_is_part_of_what_was_asked_for() -> None:
    chosen = replace(PLAN, choice=Choice(added=("sm120-allreduce",)))
    found = json.loads(provenance.make(SETTINGS, chosen, BUILT, SEEN))
    asked = found["predicate"]["buildDefinition"]["externalParameters"]
    assert asked["patches.with"] == "sm120-allreduce"


def test_it_names_commit_locks_dockerfiles_and_patches_by_hash() -> None:
    found = {each["name"]: each for each in made()["predicate"]["buildDefinition"]["resolvedDependencies"]}
    assert found["kiln"] == {"name": "kiln", "digest": {"gitCommit": "f" * 40}, "annotations": {"dirty": True}}
    for name in ("versions.yaml", "locks/ci/apt.toml", "locks/ci/python.toml", "locks/ci/sources.toml"):
        assert found[name]["digest"]["sha256"] == hashlib.sha256((ROOT / name).read_bytes()).hexdigest()
    assert {f"images/{image.name}/Dockerfile" for image in PLAN.chain} <= set(found)
    assert {f"patches/{patch.label}.patch" for patch in PLAN.patches} <= set(found)


def test_it_tells_builder_times_and_layers() -> None:
    details = made()["predicate"]["runDetails"]
    assert details["builder"]["version"]["engine"] == "docker 20.10.24"
    assert details["metadata"]["startedOn"] == "2026-11-29T12:00:00Z"
    assert details["metadata"]["finishedOn"] == "2026-11-29T13:00:00Z"
    (layer,) = details["byproducts"]
    assert layer["digest"] == {"sha256": "cd" * 32}
    assert layer["annotations"] == {"image": "base", "files": 3, "size_bytes": 10, "raw_bytes": 20}


def test_what_is_not_known_is_left_out() -> None:
    found = made(Circumstances("", None, SEEN.finished, "", dirty=False))
    details = found["predicate"]["runDetails"]
    assert "startedOn" not in details["metadata"]
    assert "engine" not in details["builder"]["version"]
    assert "kiln" not in {each["name"] for each in found["predicate"]["buildDefinition"]["resolvedDependencies"]}


def test_it_names_no_host_and_no_path_of_this_machine() -> None:
    text = json.dumps({**made(), "_type": "", "predicateType": ""})
    assert "://" not in text
    assert str(ROOT) not in text


def test_the_checkouts_commit_and_changes_are_seen(tmp_path: Path) -> None:
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b.test"]
    run.run([*git, "init", "-q"])
    (tmp_path / "file").write_text("1")
    run.run([*git, "add", "."])
    run.run([*git, "commit", "-q", "-m", "first"])
    clean = provenance.observe(tmp_path, "", None, SEEN.finished)
    assert clean.commit == run.run([*git, "rev-parse", "HEAD"]).stdout.strip()
    assert not clean.dirty
    (tmp_path / "file").write_text("2")
    assert provenance.observe(tmp_path, "", None, SEEN.finished).dirty


def test_a_folder_that_is_no_repository_has_no_commit(tmp_path: Path) -> None:
    seen = provenance.observe(tmp_path, "", None, SEEN.finished)
    assert (seen.commit, seen.dirty) == ("", False)


@pytest.mark.parametrize("document", [{}, {"subject": "x"}, {"subject": [{"digest": "x"}]}, {"subject": 5}])
def test_a_malformed_statement_is_about_nothing(document: dict[str, Any]) -> None:
    assert statement.subjects(document) == ()
