"""uv: one resolution for one interpreter and one platform, as values."""

from __future__ import annotations

import shutil
import sys
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from urllib.parse import unquote, urlsplit

from kiln.errors import UserError
from kiln.indexes import Places, shown
from kiln.run import CommandFailed, run


@dataclass(frozen=True)
class Target:
    """The interpreter and C library that wheels must fit."""

    python: str
    glibc_minor: int

    @property
    def platform(self) -> str:
        return f"x86_64-manylinux_2_{self.glibc_minor}"


@dataclass(frozen=True)
class File:
    """One distribution file as the index told it; `size` and `uploaded` are 0 if it did not."""

    url: str
    size: int
    sha256: str
    uploaded: int

    @property
    def name(self) -> str:
        return unquote(PurePosixPath(urlsplit(self.url).path).name)


@dataclass(frozen=True)
class Package:
    """One package of a resolution with the wheels that uv thought possible."""

    name: str
    version: str
    wheels: tuple[File, ...]


@dataclass(frozen=True)
class Rules:
    """What bounds a resolution besides its roots; `prefer` holds versions to keep unless something forbids them."""

    constraints: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()
    as_of: str | None = None
    deps: bool = True
    prefer: Mapping[str, str] | None = None
    upgrade: tuple[str, ...] = ()


def compile_roots(roots: Sequence[str], target: Target, places: Places, rules: Rules) -> list[Package]:
    """Resolve requirements with uv. Raises UserError with uv's own explanation."""
    if not roots:
        return []
    with TemporaryDirectory(prefix="kiln-lock-") as folder:
        here = Path(folder)
        output = here / "pylock.toml"
        if rules.prefer:
            output.write_text(_seed(rules.prefer), encoding="utf-8")
        argv = [_uv(), *_arguments(target, places, rules, here), _file(here, "roots", roots), "-o", output]
        try:
            run(argv, timeout_s=600, cwd=here)
        except CommandFailed as error:
            raise _unresolved(error.done.stderr.strip(), places) from None
        return parse(output.read_text(encoding="utf-8"))


def _unresolved(text: str, places: Places) -> UserError:
    looked = ", ".join(map(shown, (*places.find_links, *places.indexes())))
    hint = (
        "edit versions.yaml, or set PIP_EXTRA_INDEX_URL to an index or PIP_FIND_LINKS to a directory "
        "that carries what is missing"
    )
    return UserError(f"the python packages do not resolve; looked in {looked}\n{text}", hint=hint)


def parse(text: str) -> list[Package]:
    """Read uv's pylock.toml."""
    return [
        Package(item["name"], item["version"], tuple(_read_file(wheel) for wheel in item.get("wheels", ())))
        for item in tomllib.loads(text).get("packages", ())
    ]


def _read_file(item: Mapping[str, object]) -> File:
    uploaded, hashes = item.get("upload-time"), item["hashes"]
    assert isinstance(hashes, dict)
    stamp = int(uploaded.timestamp()) if isinstance(uploaded, datetime) else 0
    return File(str(item["url"]), int(str(item.get("size", 0))), str(hashes["sha256"]), stamp)


def _uv() -> str:
    own = Path(sys.prefix) / "bin" / "uv"
    found = str(own) if own.exists() else shutil.which("uv")
    if not found:
        raise UserError("uv is not installed", hint="run ./inv, which installs it into .venv")
    return found


def _arguments(target: Target, places: Places, rules: Rules, here: Path) -> list[str | Path]:
    words: list[str | Path] = [
        "pip", "compile", "--quiet", "--no-config", "--no-header", "--only-binary", ":all:", "--format", "pylock.toml",
        "--python-version", target.python, "--python-platform", target.platform,
    ]  # fmt: skip
    words += _place_arguments(places)
    words += [word for name in rules.upgrade for word in (["--upgrade"] if name == "all" else ["-P", name])]
    words += ["--exclude-newer", rules.as_of] if rules.as_of else []
    words += [] if rules.deps else ["--no-deps"]
    words += ["--constraint", _file(here, "constraints", rules.constraints)] if rules.constraints else []
    return words + (["--override", _file(here, "overrides", rules.overrides)] if rules.overrides else [])


def _place_arguments(places: Places) -> list[str]:
    """The default index is asked first and the best version of all wins, as with pip; uv alone would do otherwise."""
    words = [word for link in places.find_links for word in ("--find-links", link)]
    if places.extra:
        *first, last = places.indexes()
        words += [word for index in first for word in ("--index", index)]
        return [*words, "--default-index", last, "--index-strategy", "unsafe-best-match"]
    return words + (["--default-index", places.index] if places.index else [])


def _file(here: Path, name: str, lines: Iterable[str]) -> Path:
    path = here / f"{name}.in"
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def _seed(versions: Mapping[str, str]) -> str:
    """Write what uv reads as the former output, whose versions it keeps where it can."""
    blocks = (f'[[packages]]\nname = "{name}"\nversion = "{version}"\n' for name, version in versions.items())
    return 'lock-version = "1.0"\ncreated-by = "kiln"\n\n' + "\n".join(blocks)
