"""Where an artefact may be: directories, indexes and mirrors in the order of the search."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.parse import quote, urlsplit

import requests
from pypi_simple import ProjectPage

from kiln import aptmirror, indexes
from kiln.aptmirror import Mirrors
from kiln.indexes import Places, Unavailable
from kiln.locks import Artifact, Deb
from kiln.settings import Settings


@dataclass(frozen=True)
class Candidate:
    """A place that may have an artefact: an address, or why it has none."""

    place: str
    url: str = ""
    why: str = ""


@dataclass(frozen=True)
class Finder:
    """Where to look, as configured; Debian's mirrors are reached through apt's own proxy."""

    settings: Settings
    places: Places
    mirrors: Mapping[str, Mirrors]
    session: requests.Session
    apt_session: requests.Session

    def candidates(self, artifact: Artifact) -> Iterator[Candidate]:
        """Give the places in the order of the search; each is asked when its turn comes."""
        if isinstance(artifact, Deb):
            yield from self._deb(artifact)
            return
        for link in self.places.find_links:
            yield self._link(artifact, link)
        for index in self.places.indexes():
            yield self._listed(artifact, index, partial(indexes.page, self.session, index, artifact.name))

    def _deb(self, deb: Deb) -> Iterator[Candidate]:
        root = self.mirrors[deb.suite].root_for(deb.path)
        if not root:
            yield Candidate("a Debian mirror", why="none is configured")
        snapshots = aptmirror.snapshot_roots(self.settings, deb.path, deb.epoch)
        for place in (*([root] if root else []), *snapshots):
            yield Candidate(indexes.shown(place), f"{place}/{quote(deb.path)}")
        if not snapshots:
            yield Candidate("a snapshot mirror", why="none is configured")

    def _link(self, artifact: Artifact, link: str) -> Candidate:
        if urlsplit(link).scheme in ("http", "https"):
            return self._listed(artifact, link, partial(indexes.link_page, self.session, link, artifact.name))
        path = Path(urlsplit(link).path).expanduser() / artifact.file
        return Candidate(link, path.absolute().as_uri()) if path.is_file() else Candidate(link, why="not there")

    def _listed(self, artifact: Artifact, place: str, page: Callable[[], ProjectPage]) -> Candidate:
        """Look the file up in a page; a digest that differs settles it without a download."""
        name = indexes.shown(place)
        try:
            entry = indexes.find(page(), artifact.file)
        except Unavailable as error:
            return Candidate(name, why=str(error))
        if entry is None:
            return Candidate(name, why="does not list this file")
        told = entry.digests.get("sha256", artifact.sha256)
        if told != artifact.sha256:
            return Candidate(name, why=f"the bytes changed: locked sha256 {artifact.sha256}, found {told}")
        return Candidate(name, entry.url.partition("#")[0])
