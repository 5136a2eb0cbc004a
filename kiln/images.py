"""The images and their order: one folder below images/ each, declared by its image.yaml."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Annotated

from pydantic import Field

from kiln import names, schema, yamlfile
from kiln.errors import Problem, UserError, raise_all
from kiln.intent import Model, Switch, Text
from kiln.yamlfile import Document


class Healthcheck(Model):
    """How an engine asks a running container whether it is well; exit status 0 is yes. Times in seconds."""

    command: Annotated[tuple[Text, ...], Field(min_length=1)]
    interval_s: Annotated[int, Field(ge=1)]
    timeout_s: Annotated[int, Field(ge=1)]
    start_period_s: Annotated[int, Field(ge=1)]
    retries: Annotated[int, Field(ge=1)]

    def config(self) -> dict[str, object]:
        """Return it as an image config holds it: in nanoseconds."""
        times = {"Interval": self.interval_s, "Timeout": self.timeout_s, "StartPeriod": self.start_period_s}
        nanoseconds = {key: seconds * 10**9 for key, seconds in times.items()}
        return {"Test": ["CMD", *self.command], **nanoseconds, "Retries": self.retries}


class Image(Model):
    """One image. `sources` maps a distribution that is built from source to the component that pins it."""

    name: Text
    parent: Text | None = None
    per_gpu: Switch
    summary: Text
    apt: tuple[Text, ...] = ()
    sources: dict[Text, Text] = Field(default_factory=dict)
    python_globs: tuple[Text, ...] = ()
    labels: dict[Text, str] = Field(default_factory=dict)
    files: tuple[Text, ...] = ()
    healthcheck: Healthcheck | None = None


def load_all(root: Path) -> dict[str, Image]:
    """Load every image, parents first. Raises Problems with everything that is wrong with any of them."""
    found: dict[str, Image] = {}
    documents: dict[str, Document] = {}
    problems: list[Problem] = []
    for folder in sorted(path for path in (root / "images").glob("*") if path.is_dir()):
        try:
            documents[folder.name], found[folder.name] = _load(folder, root)
        except UserError as error:
            problems += error.problems
        problems += _missing_files(folder, root, found.get(folder.name))
    # A parent whose own file is broken is not "unknown": say so only when every file could be read.
    raise_all([*problems, *(() if problems else _tree_problems(found, documents))])
    return {image.name: image for image in sorted(found.values(), key=lambda image: _path(found, image.name))}


def get(images: Mapping[str, Image], name: str) -> Image:
    """Return an image; raises UserError with the known ones."""
    if name not in images:
        problem = names.unknown("image", name, images)
        raise UserError(problem.message, hint=problem.hint)
    return images[name]


def chain(images: Mapping[str, Image], name: str) -> tuple[Image, ...]:
    """Return the images from the root to `name`; raises UserError for an unknown name."""
    get(images, name)
    return tuple(images[step] for step in _path(images, name))


def _load(folder: Path, root: Path) -> tuple[Document, Image]:
    document = yamlfile.read(folder / "image.yaml", root)
    if "name" in document.value:
        message = f"unknown key 'name': the folder's name is the image's, {folder.name!r}"
        raise UserError(message, hint="remove the line", source=document.at("name"))
    named = replace(document, value={**document.value, "name": folder.name})
    image, problems = schema.validate(named, Image)
    raise_all(problems)
    assert image is not None
    raise_all(_own_problems(document, image))
    return document, image


def _own_problems(document: Document, image: Image) -> Iterator[Problem]:
    if not names.SLUG.fullmatch(image.name):
        hint = "use lower-case letters, digits, dots and dashes: the name goes into references"
        yield Problem(document.name, f"{image.name!r} is not a name for an image", hint)
    for index, name in enumerate(image.files):
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts:
            hint = "name a file inside the image's folder"
            yield Problem(document.at(f"files[{index}]"), f"files: {name!r} leaves images/{image.name}", hint)


def _missing_files(folder: Path, root: Path, image: Image | None) -> Iterator[Problem]:
    where = str(folder.relative_to(root))
    for name in ("Dockerfile.j2", *(image.files if image else ())):
        if not (folder / name).is_file():
            yield Problem(f"{where}/image.yaml", f"{where}/{name} does not exist", f"add {name} to {where}")


def _tree_problems(images: Mapping[str, Image], documents: Mapping[str, Document]) -> Iterator[Problem]:
    for image in images.values():
        where = documents[image.name].at("parent")
        if image.parent is not None and image.parent not in images:
            yield names.unknown("image", image.parent, images, where, "parent")
        elif images[(walk := _path(images, image.name))[0]].parent == image.name:
            circle = " -> ".join((*walk, walk[0]))
            yield Problem(where, f"parent: goes round: {circle}", "give one of these another parent")
        elif image.parent is not None and images[image.parent].per_gpu and not image.per_gpu:
            where = documents[image.name].at("per_gpu")
            yield Problem(where, f"per_gpu: its parent {image.parent} is per GPU, so is this", 'write "yes"')
    yield from _root_problems(images, documents)


def _root_problems(images: Mapping[str, Image], documents: Mapping[str, Document]) -> Iterator[Problem]:
    roots = sorted(image.name for image in images.values() if image.parent is None)
    if not roots:
        yield Problem("images", "no image is without a parent", "remove `parent:` from the one that starts the chain")
    for name in roots[1:]:
        message = f"parent: {name} and {roots[0]} both have no parent, and a chain starts at one image"
        yield Problem(f"{documents[name].name}:1", message, f'add parent: "{roots[0]}"')


def _path(images: Mapping[str, Image], name: str) -> tuple[str, ...]:
    """Return the names from the root to `name`; on a cycle, each name once."""
    walk = [name]
    while (parent := images[walk[0]].parent) in images and parent not in walk:
        assert parent is not None
        walk.insert(0, parent)
    return tuple(walk)
