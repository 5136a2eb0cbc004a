"""Where Python packages come from, as the user's clients are configured; kiln itself knows no address."""

from __future__ import annotations

import configparser
import os
import sys
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

import requests
from packaging.utils import canonicalize_name
from pypi_simple import PYPI_SIMPLE_ENDPOINT, DistributionPackage, ProjectPage

from kiln.errors import KilnError
from kiln.settings import Settings

TIMEOUT_S = (15.0, 60.0)
_ACCEPT = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1"


class Unavailable(KilnError):
    """A place cannot give what was asked; the text says why."""


@dataclass(frozen=True)
class Places:
    """The default index (empty: the client's own), more indexes, and flat directories or link pages."""

    index: str
    extra: tuple[str, ...] = ()
    find_links: tuple[str, ...] = ()

    def indexes(self) -> tuple[str, ...]:
        """Return every index, the default one first."""
        return (self.index or PYPI_SIMPLE_ENDPOINT, *self.extra)


def places(settings: Settings, env: Mapping[str, str] = os.environ) -> Places:
    """Read the configuration of pip and uv: variables before files, kiln's own mirror before both."""
    pip = {**_pip_files(env), **_pip_variables(env)}
    uv_index, uv_extra = _uv_file(env)
    index = settings.pypi_mirror or env.get("UV_DEFAULT_INDEX") or env.get("UV_INDEX_URL")
    index = index or env.get("PIP_INDEX_URL") or uv_index or pip.get("index-url", "")
    variables = [*_words(env.get("UV_INDEX")), *_words(env.get("UV_EXTRA_INDEX_URL"))]
    extra = [*variables, *uv_extra, *_words(pip.get("extra-index-url"))]
    links = [*env.get("UV_FIND_LINKS", "").split(","), *_words(pip.get("find-links"))]
    return Places(_address(index), _unique(map(_address, extra)), _unique(links))


def page(session: requests.Session, index: str, project: str) -> ProjectPage:
    """Return what an index lists for a project. Raises Unavailable."""
    url = f"{index.rstrip('/')}/{canonicalize_name(project)}/"
    if urlsplit(url).scheme == "file":
        return _page_of_file(Path(unquote(urlsplit(url).path)) / "index.html", project, url)
    response = _get(session, url)
    try:
        return ProjectPage.from_response(response, project)
    except ValueError as error:
        raise Unavailable(f"not an index page: {error}") from error


def link_page(session: requests.Session, url: str, project: str) -> ProjectPage:
    """Return the links of a find-links page. Raises Unavailable."""
    return ProjectPage.from_html(project, _get(session, url).content, base_url=url)


def find(found: ProjectPage, file: str) -> DistributionPackage | None:
    """Return a page's entry for a file name."""
    return next((package for package in found.packages if package.filename == file), None)


def size_of(session: requests.Session, url: str) -> int:
    """Ask for a file's size where the index does not tell it. Raises Unavailable."""
    if urlsplit(url).scheme == "file":
        return Path(unquote(urlsplit(url).path)).stat().st_size
    try:
        response = session.head(url, allow_redirects=True, timeout=TIMEOUT_S, headers={"Accept-Encoding": "identity"})
        response.raise_for_status()
        return int(response.headers["Content-Length"])
    except (requests.RequestException, KeyError) as error:
        raise Unavailable(f"no answer about the size ({type(error).__name__})") from error


def shown(url: str) -> str:
    """Return an address without the credentials in it."""
    parts = urlsplit(url)
    return url.replace(f"{parts.netloc}", parts.netloc.rpartition("@")[2], 1) if "@" in parts.netloc else url


def _get(session: requests.Session, url: str) -> requests.Response:
    try:
        response = session.get(url, timeout=TIMEOUT_S, headers={"Accept": _ACCEPT})
    except requests.RequestException as error:
        raise Unavailable(f"no answer ({type(error).__name__})") from error
    if response.status_code == 404:
        raise Unavailable("not there")
    if not response.ok:
        raise Unavailable(f"HTTP {response.status_code}")
    return response


def _page_of_file(path: Path, project: str, url: str) -> ProjectPage:
    try:
        return ProjectPage.from_html(project, path.read_bytes(), base_url=url)
    except FileNotFoundError:
        raise Unavailable("not there") from None


def _pip_files(env: Mapping[str, str]) -> dict[str, str]:
    """Return the [global] section of pip's configuration files, later files over earlier ones."""
    parser = configparser.RawConfigParser()
    parser.read(_pip_paths(env), encoding="utf-8")
    return dict(parser["global"]) if parser.has_section("global") else {}


def _pip_paths(env: Mapping[str, str]) -> list[Path]:
    if env.get("PIP_CONFIG_FILE") == os.devnull:
        return []
    home = Path(env.get("HOME") or "/nonexistent")
    shared = [Path(folder) / "pip/pip.conf" for folder in env.get("XDG_CONFIG_DIRS", "/etc/xdg").split(":")]
    own = [home / ".pip/pip.conf", Path(env.get("XDG_CONFIG_HOME") or home / ".config") / "pip/pip.conf"]
    named = [Path(env["PIP_CONFIG_FILE"])] if env.get("PIP_CONFIG_FILE") else []
    return [*shared, Path("/etc/pip.conf"), *own, Path(sys.prefix) / "pip.conf", *named]


def _uv_file(env: Mapping[str, str]) -> tuple[str, list[str]]:
    """Return the default index and the others of uv's user or system configuration."""
    home = Path(env.get("XDG_CONFIG_HOME") or Path(env.get("HOME") or "/nonexistent") / ".config")
    named = env.get("UV_CONFIG_FILE")
    paths = [Path(named)] if named else [home / "uv/uv.toml", Path("/etc/uv/uv.toml")]
    data = next((tomllib.loads(path.read_text(encoding="utf-8")) for path in paths if path.is_file()), {})
    entries = data.get("index", [])
    default = [entry["url"] for entry in entries if entry.get("default")] or [data.get("index-url", "")]
    others = [entry["url"] for entry in entries if not entry.get("default") and not entry.get("explicit")]
    return default[0], [*others, *data.get("extra-index-url", [])]


def _pip_variables(env: Mapping[str, str]) -> dict[str, str]:
    names = ("index-url", "extra-index-url", "find-links")
    found = {name: env.get("PIP_" + name.replace("-", "_").upper(), "") for name in names}
    return {name: value for name, value in found.items() if value}


def _words(value: str | None) -> list[str]:
    return (value or "").split()


def _address(index: str) -> str:
    """Drop the name that uv allows in front: `name=address`."""
    head, separator, rest = index.partition("=")
    return rest if separator and "/" not in head else index


def _unique(values: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(value.strip() for value in values if value.strip()))
