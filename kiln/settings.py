"""Where things are and what the environment says. The one reader of `KILN_*` variables."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Settings:
    """Paths and switches of one run. `home` is state that may be deleted at any time."""

    root: Path
    home: Path
    registry: str
    pypi_mirror: str
    apt_mirror: str
    snapshot_mirror: str
    no_install: bool
    signing_key: str = ""
    key_password: str = field(default="", repr=False)

    def signed_by(self, key: str) -> Settings:
        """Return the settings with another key to sign with; "" leaves them as they are."""
        return replace(self, signing_key=key) if key else self

    @property
    def store(self) -> Path:
        return self.home / "store"

    @property
    def builds(self) -> Path:
        return self.home / "builds"

    @property
    def logs(self) -> Path:
        return self.home / "logs"


def from_env(env: Mapping[str, str] = os.environ, root: Path = ROOT) -> Settings:
    """Read the settings from the environment; every variable is in docs/settings.md."""
    return Settings(
        root=root,
        home=Path(env.get("KILN_HOME") or root / ".kiln").resolve(),
        registry=env.get("KILN_REGISTRY", ""),
        pypi_mirror=env.get("KILN_PYPI_MIRROR", ""),
        apt_mirror=env.get("KILN_APT_MIRROR", ""),
        snapshot_mirror=env.get("KILN_SNAPSHOT_MIRROR", ""),
        no_install=bool(env.get("KILN_NO_INSTALL")),
        signing_key=env.get("KILN_SIGNING_KEY", ""),
        key_password=env.get("KILN_KEY_PASSWORD", ""),
    )
