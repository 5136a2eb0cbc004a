"""Dockerfiles from Jinja templates: pure text, committed below images/<image>/rendered/."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import jinja2

from kiln import images as images_module
from kiln.errors import Problem, UserError
from kiln.images import Image
from kiln.versions import Gpu, Stack, Versions


def dockerfile(root: Path, image: Image, *, stack: Stack, gpu: Gpu, kernels: str) -> str:
    """Render one Dockerfile. An undefined name or a syntax error is a UserError with template and line."""
    name = f"images/{image.name}/Dockerfile.j2"
    try:
        text = (
            _environment(root)
            .get_template(name)
            .render(
                stack=stack,
                base=stack.base,
                gpu=gpu,
                kernels=kernels,
                arch=gpu.arch.of(stack.arch_form),
                image=image,
            )
        )
    except jinja2.TemplateError as error:
        raise UserError(str(error), source=_where(root, error, name)) from error
    return text.rstrip("\n") + "\n"


def path(root: Path, image: Image, stack: Stack, gpu: Gpu) -> Path:
    """Where the rendered file is committed; images that no GPU changes have one per stack."""
    name = f"{stack.name}-{gpu.name}" if image.per_gpu else stack.name
    return root / "images" / image.name / "rendered" / f"{name}.Dockerfile"


def everything(root: Path, versions: Versions) -> dict[Path, str]:
    """Render every image of every stack for every GPU with the stack's default kernel set."""
    texts: dict[Path, str] = {}
    for image in images_module.load_all(root).values():
        for stack in versions.stacks.values():
            for gpu in (gpu for gpu in versions.gpus.values() if stack.supports(gpu.name)):
                text = dockerfile(root, image, stack=stack, gpu=gpu, kernels=stack.kernels)
                texts[path(root, image, stack, gpu)] = text
    return texts


def problems(root: Path, versions: Versions) -> list[Problem]:
    """Tell which committed files differ from what would be rendered, are missing or are left over."""
    return list(_problems(root, everything(root, versions)))


def write(root: Path, versions: Versions) -> list[Path]:
    """Write what differs, remove what is left over; returns the paths touched."""
    texts = everything(root, versions)
    touched = [file for file, text in texts.items() if not file.exists() or file.read_text() != text]
    for file in touched:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(texts[file])
    leftover = _leftover(root, texts)
    for file in leftover:
        file.unlink()
    return [*touched, *leftover]


def _problems(root: Path, texts: dict[Path, str]) -> Iterator[Problem]:
    for file, text in texts.items():
        where = str(file.relative_to(root))
        if not file.exists():
            yield Problem(where, "is not rendered", "inv render")
        elif file.read_text() != text:
            yield Problem(where, "differs from its template", "inv render")
    for file in _leftover(root, texts):
        yield Problem(str(file.relative_to(root)), "no stack and GPU renders this", "inv render")


def _leftover(root: Path, texts: dict[Path, str]) -> list[Path]:
    return [file for file in sorted(root.glob("images/*/rendered/*.Dockerfile")) if file not in texts]


@cache
def _environment(root: Path) -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader([root, root / "templates"]),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )


def _where(root: Path, error: jinja2.TemplateError, name: str) -> str:
    """Find the template and its line: syntax errors carry them, run-time errors have them in the traceback."""
    file, line = name, 0
    if isinstance(error, jinja2.TemplateSyntaxError):
        file, line = error.filename or name, error.lineno
    else:
        for frame, number in traceback.walk_tb(error.__traceback__):
            if frame.f_code.co_filename.endswith(".j2"):
                file, line = frame.f_code.co_filename, number
    return f"{file.removeprefix(f'{root}/')}:{line}"
