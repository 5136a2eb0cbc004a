"""What the registry says of the image, asked once and from here: labels and size, before any node pulls it."""

from __future__ import annotations

from dataclasses import dataclass, field

from kiln import labels, reference
from kiln.distribution import Repository
from kiln.errors import KilnError, UserError
from kiln.registry import Registry


@dataclass(frozen=True)
class Described:
    """Labels and compressed size; `fault` says why they are not known."""

    labels: dict[str, str] = field(default_factory=dict)
    size_bytes: int | None = None
    fault: str = ""


def describe(image: str) -> Described:
    """Ask the registry for manifest and config of `…@sha256:…`; a registry that does not answer is no error."""
    where = reference.read(image)
    assert where is not None
    repository = Repository(Registry(where.address, attempts=2), where.repository)
    try:
        manifest = repository.manifest(where.digest)
        if manifest is None:
            return Described(fault="the registry has no such digest")
        fields = manifest.fields()
        found = labels.of_config(repository.blob(str(fields["config"]["digest"])))
        size = sum(int(layer["size"]) for layer in fields["layers"])
    except UserError as error:
        return Described(fault=f"the registry does not tell from here: {error.problems[0].message}")
    except (KilnError, ValueError, LookupError) as error:
        return Described(fault=f"the registry does not tell from here: {type(error).__name__}: {error}")
    return Described(found, size)
