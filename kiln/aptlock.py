"""Debian resolution in an empty apt root of our own: the host's mirror and proxy, nothing else of the host."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory

from kiln import aptmirror
from kiln.debrepo import write_flat_repo
from kiln.errors import UserError
from kiln.intent import Base
from kiln.locks import Deb
from kiln.run import CommandFailed, run
from kiln.settings import Settings

__all__ = ["AptResolution", "resolve", "stanzas", "write_flat_repo"]

ARCH = "amd64"
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_KEPT_OF_HOST = ("Acquire::http", "Acquire::https", "Acquire::Retries", "Acquire::ForceIPv")
_FOLDERS = (
    "etc/parts", "etc/sources", "etc/trusted", "etc/preferences", "state/lists/partial", "cache/archives/partial",
)  # fmt: skip
_INSTALLED = re.compile(r"^Inst (?P<name>\S+?)(?::\S+)? \((?P<version>\S+) ", re.MULTILINE)


@dataclass(frozen=True)
class AptResolution:
    """The packages to install and the date of the newest index, unix seconds."""

    debs: tuple[Deb, ...]
    epoch: int


def resolve(settings: Settings, base: Base, names: Sequence[str]) -> AptResolution:
    """Resolve the essential set and `names`, without recommended packages. Raises UserError, CommandFailed."""
    if base.suite is None:
        return AptResolution((), 0)
    settings.home.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix="apt-", dir=settings.home) as folder:
        root = Path(folder)
        config = _prepare(root, _sources(settings, base))
        _update(config, base)
        index = _index(root)
        _require_known(base, names, index)
        essential = {fields["Package"] for fields in index.values() if fields.get("Essential") == "yes"}
        chosen = _simulate(config, base, [*sorted(essential), *names])
        epoch = _newest_release(root)
    debs = (_deb(index[f"{name}={version}"], base.suite, epoch) for name, version in chosen)
    return AptResolution(tuple(sorted(debs, key=lambda deb: deb.name)), epoch)


def _sources(settings: Settings, base: Base) -> str:
    """Return the sources.list of our root."""
    assert base.suite
    found = aptmirror.mirrors(settings, base.suite)
    words = " ".join(base.components)
    option = f"[arch={ARCH} signed-by={_keyring()}]"
    rows = [(found.main, base.suite)] + ([(found.security, f"{base.suite}-security")] if base.security else [])
    return "".join(f"deb {option} {aptmirror.require(root, suite)} {suite} {words}\n" for root, suite in rows)


def _keyring() -> Path:
    if not KEYRING.exists():
        hint = "apt-get install debian-archive-keyring"
        raise UserError("the keys of Debian's archive are not on this host", hint=hint)
    return KEYRING


def _prepare(root: Path, sources: str) -> Path:
    """Make the empty root and return its configuration file."""
    for folder in _FOLDERS:
        (root / folder).mkdir(parents=True)
    (root / "etc/sources.list").write_text(sources)
    (root / "state/status").touch()
    config = root / "apt.conf"
    config.write_text(_configuration(root) + _host_configuration())
    return config


def _configuration(root: Path) -> str:
    values = {
        "Dir": "/", "Dir::Etc::main": "/dev/null", "Dir::Etc::parts": root / "etc/parts",
        "Dir::Etc::sourcelist": root / "etc/sources.list", "Dir::Etc::sourceparts": root / "etc/sources",
        "Dir::Etc::trusted": "/dev/null", "Dir::Etc::trustedparts": root / "etc/trusted",
        "Dir::Etc::preferences": "/dev/null", "Dir::Etc::preferencesparts": root / "etc/preferences",
        "Dir::State": root / "state", "Dir::State::status": root / "state/status", "Dir::Cache": root / "cache",
        "Dir::Log": root, "APT::Architecture": ARCH, "APT::Architectures": ARCH, "APT::Sandbox::User": "root",
        "APT::Install-Recommends": "false", "APT::Install-Suggests": "false", "Acquire::Languages": "none",
        "Acquire::GzipIndexes": "false", "Acquire::PDiffs": "false",
    }  # fmt: skip
    return "".join(f'{key} "{value}";\n' for key, value in values.items())


def _host_configuration() -> str:
    """Return how the host's apt reaches the network: proxies, certificates, retries."""
    lines = run(["apt-config", "dump"]).stdout.splitlines()
    return "".join(f"{line}\n" for line in lines if line.startswith(_KEPT_OF_HOST) and not line.endswith('"";'))


def _apt(config: Path, *words: str) -> str:
    environment = {"APT_CONFIG": str(config), "LC_ALL": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive"}
    return run(["apt-get", "-q", *words], env=environment, timeout_s=600).stdout


def _update(config: Path, base: Base) -> None:
    """Read the indexes; apt ends with 0 even if some could not be had, unless it is told otherwise."""
    try:
        _apt(config, "update", "-o", "APT::Update::Error-Mode=any")
    except CommandFailed as error:
        text = error.done.stderr.strip()
        raise UserError(f"apt-get update of {base.suite} failed:\n{text}", hint="see KILN_APT_MIRROR") from None


def _simulate(config: Path, base: Base, names: Sequence[str]) -> list[tuple[str, str]]:
    """Return (name, version) of everything that would be installed into nothing."""
    try:
        output = _apt(config, "install", "--simulate", "--no-install-recommends", *names)
    except CommandFailed as error:
        text = (error.done.stdout + error.done.stderr).strip()
        message = f"the Debian packages do not resolve in {base.suite}:\n{text}"
        raise UserError(message, hint="see apt: in images/*/image.yaml") from None
    return [(match["name"], match["version"]) for match in _INSTALLED.finditer(output)]


def _require_known(base: Base, names: Iterable[str], index: Mapping[str, Mapping[str, str]]) -> None:
    unknown = sorted(name for name in names if name not in index)
    if unknown:
        text = f"{base.suite} {' '.join(base.components)} has no package {', '.join(unknown)}"
        raise UserError(text, hint="see apt: in images/*/image.yaml")


def _index(root: Path) -> dict[str, dict[str, str]]:
    """Return the fields of every package by `name` and by `name=version`."""
    found: dict[str, dict[str, str]] = {}
    for path in sorted((root / "state/lists").glob("*_Packages")):
        for fields in stanzas(path.read_text(encoding="utf-8")):
            found.setdefault(fields["Package"], fields)
            found[f"{fields['Package']}={fields['Version']}"] = fields
    return found


_FIELD = re.compile(r"^(Package|Version|Architecture|Essential|Filename|Size|SHA256): (.*)$", re.MULTILINE)


def stanzas(text: str) -> Iterator[dict[str, str]]:
    """Read the fields that a lock needs out of a Packages file."""
    return (dict(_FIELD.findall(block)) for block in text.split("\n\n") if block.strip())


def _newest_release(root: Path) -> int:
    """Return the newest Date of the signed release files."""
    texts = (path.read_text(encoding="utf-8") for path in (root / "state/lists").glob("*_InRelease"))
    dates = (match[1] for text in texts if (match := re.search(r"^Date: (.*)$", text, re.MULTILINE)))
    return max(int(parsedate_to_datetime(date).timestamp()) for date in dates)


def _deb(fields: Mapping[str, str], suite: str, epoch: int) -> Deb:
    path = fields["Filename"].removeprefix("./")
    return Deb(
        fields["Package"], fields["Version"], PurePosixPath(path).name, int(fields["Size"]), fields["SHA256"],
        fields["Architecture"], path, suite, epoch,
    )  # fmt: skip
