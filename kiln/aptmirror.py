"""Which Debian mirror to use: kiln's setting, or what the host's apt is configured with. No address is ours."""

from __future__ import annotations

import time
from dataclasses import dataclass

from kiln.errors import UserError
from kiln.run import run
from kiln.settings import Settings

_FIELDS = "$(RELEASE)|$(COMPONENT)|$(REPO_URI)|$(ORIGIN)"
_DAY_S = 86400


@dataclass(frozen=True)
class Mirrors:
    """Roots of the main archive and of the security archive; empty if none is known."""

    main: str
    security: str

    def root_for(self, path: str) -> str:
        """Return the root that carries a pool path: the security archive keeps its own below `updates`."""
        return self.security if path.startswith("pool/updates/") else self.main


def mirrors(settings: Settings, suite: str) -> Mirrors:
    """Return the mirrors of a suite. A root of kiln's own setting has its security archive at `<root>-security`."""
    if settings.apt_mirror:
        root = settings.apt_mirror.rstrip("/")
        return Mirrors(root, f"{root}-security")
    return pick(run(["apt-get", "indextargets", "--format", _FIELDS, "Created-By: Packages"]).stdout, suite)


def pick(targets: str, suite: str) -> Mirrors:
    """Choose among apt's index targets: Debian's own only, the suite itself before another suite of the same mirror."""
    rows = [tuple(line.split("|")) for line in targets.splitlines() if line.count("|") == 3]
    debian = [(row[0], row[2].rstrip("/")) for row in rows if row[1] == "main" and _is_debian(row, suite)]
    main = [row for row in debian if not row[0].endswith("-security")]
    security = [row for row in debian if row[0].endswith("-security")]
    return Mirrors(_best(main, suite), _best(security, f"{suite}-security"))


def require(mirror: str, suite: str) -> str:
    """Return the mirror. Raises UserError if there is none."""
    if not mirror:
        raise UserError(f"this host's apt has no Debian mirror for {suite}", hint="set KILN_APT_MIRROR to one")
    return mirror


def snapshot_roots(settings: Settings, path: str, epoch: int) -> tuple[str, ...]:
    """Return the snapshot mirror's root for a pool path, one day after the lock's time; nothing if none is set."""
    if not (settings.snapshot_mirror and epoch):
        return ()
    archive = "debian-security" if path.startswith("pool/updates/") else "debian"
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(epoch + _DAY_S))
    return (f"{settings.snapshot_mirror.rstrip('/')}/archive/{archive}/{stamp}",)


def proxies() -> dict[str, str]:
    """Return the proxies of the host's apt by scheme, for downloads that are not done by apt."""
    names = {"http": "Acquire::http::Proxy", "https": "Acquire::https::Proxy"}
    words = [word for scheme, name in names.items() for word in (f"KILN_{scheme.upper()}", name)]
    lines = run(["apt-config", "shell", *words], check=False).stdout.splitlines()
    found = {line.split("=", 1)[0][5:].lower(): line.split("=", 1)[1].strip("'") for line in lines if "=" in line}
    return {scheme: value for scheme, value in found.items() if value and value != "DIRECT"}


def _is_debian(row: tuple[str, ...], suite: str) -> bool:
    """An index that was read tells its origin; of the others only the suite's own names are believed."""
    release, origin = row[0], row[3]
    return origin == "Debian" or (origin in ("", "$(ORIGIN)") and release in (suite, f"{suite}-security"))


def _best(rows: list[tuple[str, str]], release: str) -> str:
    ordered = sorted(rows, key=lambda row: (row[0] != release, row[0]))
    return ordered[0][1] if ordered else ""
