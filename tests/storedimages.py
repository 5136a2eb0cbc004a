"""The images that a build left in the engine, for tests that run them."""

from __future__ import annotations

import pytest

from kiln import inventory
from kiln.run import run
from kiln.settings import from_env


def ref_of(stack: str, given: str = "") -> str:
    """Return the reference of a stack's image, or the given one. Skips as NOT_RUN if the engine does not have it."""
    ref = given or inventory.plan_for(from_env(), gpu="", stack=stack, kernel_set="", image="").chain[-1].ref
    try:
        found = run(["docker", "image", "inspect", ref], check=False, timeout_s=300)
    except OSError:
        pytest.skip("NOT_RUN: there is no docker client")
    if found.returncode != 0:
        pytest.skip(f"NOT_RUN: the engine has no {ref}, the image of stack {stack}: inv build --stack {stack}")
    return ref
