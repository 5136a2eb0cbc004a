"""`{component}`, `{cuda}` and `{toolkit}` in a stack's requirements."""

from __future__ import annotations

import re
from collections.abc import Iterator

from kiln.intent import Stack

HOLE = re.compile(r"\{([^{}]*)\}")


def values(stack: Stack) -> dict[str, str]:
    """Return what each placeholder of the stack stands for."""
    return {**stack.components, "cuda": stack.cuda, "toolkit": stack.nvcc}


def fill(stack: Stack) -> Stack:
    """Return the stack with every placeholder replaced; unknown ones stay."""
    known = values(stack)
    return stack.model_copy(
        update={
            "python_packages": {image: _all(lines, known) for image, lines in stack.python_packages.items()},
            "no_deps": {image: _all(lines, known) for image, lines in stack.no_deps.items()},
            "constraints": _all(stack.constraints, known),
            "overrides": _all(stack.overrides, known),
        }
    )


def requirements(stack: Stack) -> Iterator[tuple[str, str]]:
    """Yield (path below the stack, requirement) of every requirement that the stack holds."""
    for field, by_image in (("python_packages", stack.python_packages), ("no_deps", stack.no_deps)):
        for image, lines in by_image.items():
            yield from ((f"{field}.{image}[{index}]", line) for index, line in enumerate(lines))
    for field, lines in (("constraints", stack.constraints), ("overrides", stack.overrides)):
        yield from ((f"{field}[{index}]", line) for index, line in enumerate(lines))


def _all(lines: tuple[str, ...], known: dict[str, str]) -> tuple[str, ...]:
    return tuple(HOLE.sub(lambda hole: known.get(hole[1], hole[0]), line) for line in lines)
