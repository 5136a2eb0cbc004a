"""A flat apt repository of exactly the locked packages, for an offline mmdebstrap."""

from __future__ import annotations

import hashlib
import io
import lzma
import tarfile
import zlib
from collections.abc import Iterable, Iterator
from email.utils import formatdate
from pathlib import Path
from typing import BinaryIO

from kiln.errors import UserError
from kiln.locks import Deb
from kiln.store import Store

_AR_MAGIC = b"!<arch>\n"


def write_flat_repo(debs: Iterable[Deb], store: Store, dest: Path) -> Path:
    """Fill `dest` with the packages, Packages and Release: `deb [trusted=yes] copy://<dest> ./`.

    Both texts are pure functions of the lock. Raises UserError if a package is not in the store or is damaged.
    """
    dest.mkdir(parents=True, exist_ok=True)
    ordered = sorted(debs, key=lambda deb: (deb.name, deb.arch))
    blocks = []
    for deb in ordered:
        path = store.place(deb, dest)
        blocks.append(_stanza(deb, control(path)))
    packages = "\n".join(blocks).encode()
    (dest / "Packages").write_bytes(packages)
    newest = max(ordered, key=lambda deb: deb.epoch)
    (dest / "Release").write_text(_release(packages, newest.epoch, newest.suite))
    for name in ("Packages", "Release"):
        (dest / name).chmod(0o644)  # apt reads them as a user of its own, whatever our umask is
    return dest


def control(deb: Path) -> str:
    """Return the control file of a .deb. Raises UserError if it is none."""
    try:
        with deb.open("rb") as file:
            name, data = next((name, data) for name, data in _members(file) if name.startswith("control.tar"))
        with tarfile.open(fileobj=io.BytesIO(_unpack(name, data))) as tar:
            found = next(member for member in tar if member.name.lstrip("./") == "control")
            text = tar.extractfile(found)
            assert text
            return text.read().decode("utf-8").strip() + "\n"
    except (StopIteration, ValueError, OSError, EOFError, lzma.LZMAError, zlib.error, tarfile.TarError) as error:
        raise UserError(f"{deb.name} is no Debian package: {error or 'it has no control file'}") from error


def _stanza(deb: Deb, text: str) -> str:
    return f"{text}Filename: ./{deb.file}\nSize: {deb.size}\nSHA256: {deb.sha256}\n"


def _release(packages: bytes, epoch: int, suite: str) -> str:
    # mmdebstrap looks for essential packages in the suite it was asked for, by this name.
    line = f" {hashlib.sha256(packages).hexdigest()} {len(packages)} Packages"
    return f"Label: kiln\nSuite: {suite}\nCodename: {suite}\nDate: {formatdate(epoch, usegmt=True)}\nSHA256:\n{line}\n"


def _members(file: BinaryIO) -> Iterator[tuple[str, bytes]]:
    """Give the members of an ar archive in order."""
    if file.read(8) != _AR_MAGIC:
        raise ValueError("not an ar archive")
    while header := file.read(60):
        if len(header) != 60 or header[58:] != b"`\n":
            raise ValueError("a damaged ar header")
        size = int(header[48:58])
        yield header[:16].decode("ascii").strip().rstrip("/"), file.read(size)
        file.read(size % 2)


def _unpack(name: str, data: bytes) -> bytes:
    if name.endswith(".xz"):
        return lzma.decompress(data)
    if name.endswith(".gz"):
        return zlib.decompress(data, wbits=31)
    if name.endswith(".zst"):
        import zstandard

        return zstandard.ZstdDecompressor().decompressobj().decompress(data)
    return data
