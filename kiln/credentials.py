"""Who we are to a registry: what `skopeo login` or `docker login` left, and which certificates to believe."""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import requests

CERTIFICATES = (Path("/etc/containers/certs.d"), Path("/etc/docker/certs.d"))


@dataclass(frozen=True)
class Login:
    """A user and a password, or an identity token to be exchanged for others; all empty for nobody."""

    user: str = ""
    password: str = ""
    identity_token: str = ""


def find(address: str, repository: str, env: Mapping[str, str] = os.environ) -> Login:
    """Return the login for a repository: of the first file, in skopeo's order, that has one for it or above it."""
    from docker import auth

    for path in _files(env):
        config = auth.load_config(str(path))
        for name in _prefixes(f"{address}/{repository}"):
            if entry := config.auths.get(name):
                return _login(entry)
        if entry := config.resolve_authconfig(address.partition("/")[0]):
            return _login(entry)
    return Login()


def session(address: str) -> requests.Session:
    """Return a session that speaks TLS as skopeo does; no proxy stands between us and loopback."""
    import requests
    from requests.adapters import HTTPAdapter

    from kiln.registry import is_loopback

    class Trusting(HTTPAdapter):
        def init_poolmanager(self, *args: Any, **how: Any) -> None:
            super().init_poolmanager(*args, **how, ssl_context=_trust(address))

        def proxy_manager_for(self, *args: Any, **how: Any) -> Any:
            return super().proxy_manager_for(*args, **how, ssl_context=_trust(address))

    found = requests.Session()
    found.auth = lambda request: request  # else ~/.netrc would replace our header
    if is_loopback(address):
        found.trust_env = False
    else:
        found.verify = ssl.get_default_verify_paths().cafile or True
        found.mount("https://", Trusting())
    return found


def _trust(address: str) -> ssl.SSLContext:
    """The certificates that skopeo believes: the system's (or SSL_CERT_FILE) and the host's own in certs.d."""
    context = ssl.create_default_context()
    for folder in (top / address.partition("/")[0] for top in CERTIFICATES):
        for authority in sorted(folder.glob("*.crt")):
            context.load_verify_locations(authority)
        for certificate in sorted(folder.glob("*.cert")):
            context.load_cert_chain(certificate, certificate.with_suffix(".key"))
    return context


def _files(env: Mapping[str, str]) -> Iterator[Path]:
    home = Path(env.get("HOME") or Path.home())
    if chosen := env.get("REGISTRY_AUTH_FILE"):
        candidates = [Path(chosen)]
    else:
        run = Path(env.get("XDG_RUNTIME_DIR") or f"/run/containers/{os.getuid()}")
        own = run / "containers" if env.get("XDG_RUNTIME_DIR") else run
        config = Path(env.get("XDG_CONFIG_HOME") or home / ".config")
        docker = Path(env.get("DOCKER_CONFIG") or home / ".docker")
        candidates = [own / "auth.json", config / "containers" / "auth.json", docker / "config.json"]
    yield from (path for path in candidates if path.is_file())


def _prefixes(name: str) -> Iterator[str]:
    """`host/a/b` → itself, `host/a`, `host`."""
    while name:
        yield name
        name = name.rpartition("/")[0]


def _login(entry: Mapping[str, str]) -> Login:
    fields = {key.lower(): value for key, value in entry.items() if value}
    return Login(fields.get("username", ""), fields.get("password", ""), fields.get("identitytoken", ""))
