"""The bill of materials: everything locked is in it, the schema accepts it, the same plan gives the same bytes."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from kiln import inventory, sbom
from kiln.plan import Plan
from kiln.settings import ROOT, from_env

pytestmark = pytest.mark.unit

DIGEST = "sha256:" + "ab" * 32
STACKS = ("ci", "current", "story")


@cache
def plan(stack: str) -> Plan:
    return inventory.plan_for(from_env({}), gpu="sm120", stack=stack, kernel_set="", image="")


@cache
def bill(stack: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(sbom.make(plan(stack), DIGEST))
    return found


def hashes(components: list[dict[str, Any]]) -> set[str]:
    return {each["content"] for component in components for each in component.get("hashes", [])}


def properties(component: dict[str, Any]) -> dict[str, str]:
    return {each["name"]: each["value"] for each in component["properties"]}


def flashinfer(stack: str) -> dict[str, Any]:
    found: dict[str, Any] = next(each for each in bill(stack)["components"] if each["name"] == "flashinfer-python")
    return found


@pytest.mark.parametrize("stack", STACKS)
def test_the_schema_of_cyclonedx_accepts_it(stack: str) -> None:
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    assert bill(stack)["specVersion"] == "1.6"
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(json.dumps(bill(stack))) is None


@pytest.mark.parametrize("stack", STACKS)
def test_every_locked_file_is_in_it_by_sha256(stack: str) -> None:
    components = bill(stack)["components"]
    ancestors = [each for one in components for each in one.get("pedigree", {}).get("ancestors", [])]
    wanted = {artefact.sha256 for artefact in plan(stack).artefacts()}
    assert hashes([*components, *ancestors]) == wanted


@pytest.mark.parametrize("stack", STACKS)
def test_no_two_components_have_one_reference(stack: str) -> None:
    names = [each["bom-ref"] for each in bill(stack)["components"]]
    assert len(names) == len(set(names))


def test_packages_have_the_purl_that_scanners_know() -> None:
    purls = {each["name"]: each["purl"] for each in bill("ci")["components"]}
    deb = next(deb for deb in plan("ci").lock.debs if deb.name == "base-files")
    version = deb.version.replace("+", "%2B")
    assert purls["base-files"] == f"pkg:deb/debian/base-files@{version}?arch={deb.arch}&distro=bookworm"
    assert purls["torch"] == "pkg:pypi/torch@2.13.0%2Bcpu"


def test_flashinfer_is_ours_with_upstream_as_its_ancestor_and_the_patches_between() -> None:
    found, upstream = flashinfer("ci"), plan("ci").lock.sources[0]
    assert found["version"] == f"{upstream.version}+{plan('ci').local_version}"
    (ancestor,) = found["pedigree"]["ancestors"]
    assert (ancestor["version"], hashes([ancestor])) == (upstream.version, {upstream.sha256})
    diffs = [patch["diff"]["url"] for patch in found["pedigree"]["patches"]]
    patches = [patch for patch in plan("ci").patches if patch.component == "flashinfer"]
    assert sorted(diffs) == sorted(f"urn:sha256:{patch.sha256}" for patch in patches)
    assert {f"kiln:patch:{patch.label}" for patch in patches} <= set(properties(found))


def test_a_patched_wheel_is_ours_too_with_the_wheel_of_the_index_as_its_ancestor() -> None:
    found = plan("ci")
    patch = replace(found.patches[0], component="torch")
    wheel = next(wheel for image in found.chain for wheel in image.wheels if wheel.name == "torch")
    changed = replace(found, patches=(*found.patches, patch))
    document = json.loads(sbom.make(changed, DIGEST))
    (torch,) = [each for each in document["components"] if each["name"] == "torch"]
    assert torch["version"] == changed.installed(wheel).version != wheel.version
    assert hashes(torch["pedigree"]["ancestors"]) == {wheel.sha256}
    assert f"kiln:patch:{patch.label}" in properties(torch)


def test_tools_are_excluded_with_a_reason() -> None:
    tools = {each["name"]: each for each in bill("ci")["components"] if each.get("scope") == "excluded"}
    assert set(tools) == {tool.name for tool in plan("ci").lock.tools}
    assert properties(tools["uv"])["kiln:excluded"] == "took part in the build, is not in the image"
    assert properties(tools["nvidia-cuda-cuobjdump"])["kiln:excluded"] == "looked at the finished image, is not in it"


def test_it_is_about_the_image_and_its_digest() -> None:
    component = bill("ci")["metadata"]["component"]
    assert (component["name"], component["version"]) == (plan("ci").repository, plan("ci").tag)
    assert sbom.subject(bill("ci")) == DIGEST
    assert properties(component)["kiln:label:kiln.plan"] == plan("ci").id


def test_its_time_is_the_plans_epoch() -> None:
    from datetime import UTC, datetime

    expected = datetime.fromtimestamp(plan("ci").epoch, UTC).isoformat()
    assert bill("ci")["metadata"]["timestamp"] == expected


@pytest.mark.parametrize("stack", STACKS)
def test_it_names_no_host(stack: str) -> None:
    text = json.dumps({key: value for key, value in bill(stack).items() if key != "$schema"})
    assert "://" not in text
    assert str(ROOT) not in text


def test_another_process_with_another_hash_seed_and_zone_makes_the_same_bytes() -> None:
    code = (
        "import hashlib; from kiln import inventory, sbom; from kiln.settings import from_env;"
        "plan = inventory.plan_for(from_env({}), gpu='sm120', stack='ci', kernel_set='', image='');"
        f"print(hashlib.sha256(sbom.make(plan, '{DIGEST}')).hexdigest())"
    )
    env = {**os.environ, "PYTHONHASHSEED": "1", "TZ": "Asia/Tokyo", "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env)
    assert done.stdout.strip() == hashlib.sha256(sbom.make(plan("ci"), DIGEST)).hexdigest()


def test_another_digest_gives_another_serial_number() -> None:
    other = json.loads(sbom.make(plan("ci"), "sha256:" + "cd" * 32))
    assert other["serialNumber"] != bill("ci")["serialNumber"]


@pytest.mark.parametrize("document", [{}, {"metadata": []}, {"metadata": {"component": {"hashes": [{"alg": "MD5"}]}}}])
def test_a_malformed_bill_is_about_nothing(document: dict[str, Any]) -> None:
    assert sbom.subject(document) == ""
