"""Options of the whole suite. Image tests need a loaded image; without one they are NOT_RUN and say so."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("kiln", "image under test")
    group.addoption("--kiln-image", default="", help="reference of the image in the engine")
    group.addoption("--kiln-runtime", default="docker", help="what runs containers of it: docker or podman")
    group.addoption("--kiln-plan", default="", help="plan.json of that image")
    group.addoption("--kiln-tools", default="", help="folder with uv and cuobjdump, mounted into the container")


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Name bytes by their argument: what is compressed while tests are collected has the time in it, and the workers of
    a run have to agree on every name."""
    return argname if isinstance(val, bytes) else None
