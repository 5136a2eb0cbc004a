"""Facts: what the probes of one node found, typed; what is not known is None and never 0.

One module per place: each reads the JSON of one probe. `Facts` is all that is known of a node at one moment.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from kiln.facts.container import ContainerFacts
from kiln.facts.fabric import FabricFacts
from kiln.facts.image import ImageFacts
from kiln.facts.node import NodeFacts
from kiln.facts.numerics import NumericsFacts
from kiln.facts.server import ServerFacts

Known = TypeVar("Known")


class Unknown(Exception):
    """A fact that a check needs is not known: its name, and why if the probe said so."""

    def __init__(self, name: str, why: str = "") -> None:
        super().__init__(f"{name} is not known" + (f": {why}" if why else ""))


@dataclass(frozen=True)
class Facts:
    """What is known of a node; a part that was not probed is None. `after` is the node again, after the load."""

    node: NodeFacts | None = None
    container: ContainerFacts | None = None
    image: ImageFacts | None = None
    fabric: FabricFacts | None = None
    numerics: NumericsFacts | None = None
    server: ServerFacts | None = None
    after: NodeFacts | None = None


def known(value: Known | None, name: str, why: str = "") -> Known:
    """Return a value that is there; raises Unknown, which makes a check NOT_RUN, for one that is not."""
    if value is None:
        raise Unknown(name, why)
    return value
