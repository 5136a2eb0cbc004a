"""Read files into records: every byte is hashed, device code is looked into, nothing else is kept."""

from __future__ import annotations

import hashlib
import json
import mmap
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO

from kiln import whole
from kiln.audit import facts as facts_module
from kiln.audit.elf import Buffer
from kiln.audit.facts import FACTS_VERSION, Facts
from kiln.audit.fatbin import Gpu
from kiln.audit.records import Record, unpack_facts
from kiln.run import run

_CHUNK = 1 << 20
_IN_MEMORY_BYTES = 32 << 20
_TEXTS = re.compile(r"(?:.*/)?(?:[^/]+\.dist-info/(?:METADATA|RECORD)|pyvenv\.cfg)")


@dataclass(frozen=True)
class Reader:
    """Reads for one GPU. `tool` returns the path of cuobjdump; it is asked for only where LZ4 was used."""

    gpu: Gpu
    home: Path
    tool: Callable[[], Path]

    @property
    def key(self) -> str:
        """Everything but a file's bytes that decides its facts."""
        return f"{FACTS_VERSION}-{self.gpu.major}{self.gpu.minor}"

    @property
    def scratch(self) -> Path:
        """A folder for what does not fit into memory."""
        path = self.home / "audit" / "scratch"
        path.mkdir(parents=True, exist_ok=True)
        return path

    def read(self, path: str, stream: BinaryIO, size: int) -> Record:
        """Read a stream of `size` bytes to its end; a large binary passes through the scratch folder."""
        head = stream.read(min(size, _CHUNK))
        state = hashlib.sha256(head)
        if not facts_module.interesting(head):
            text = bytearray(head) if _TEXTS.fullmatch(path) else None
            for chunk in _chunks(stream, size - len(head)):
                state.update(chunk)
                if text is not None:
                    text += chunk
            return Record(path, size, state.hexdigest(), text=(text or b"").decode("utf-8", "replace"))
        with self._kept(head, stream, size, state.update) as data:
            return Record(path, size, state.hexdigest(), facts=self._facts(state.hexdigest(), data, path))

    def read_file(self, path: str, file: Path) -> Record:
        """Read a file of this host."""
        with file.open("rb") as stream:
            return self.read(path, stream, file.stat().st_size)

    def _facts(self, sha256: str, data: Buffer, path: str) -> Facts:
        name = path.rpartition("/")[2]
        kind = "-compiler" if facts_module.is_compiler(name) else ""
        cached = self.home / "audit" / "facts" / f"{sha256}-{self.key}{kind}.json"
        if cached.exists():
            return unpack_facts(json.loads(cached.read_bytes()))
        found = facts_module.of(data, name, self.gpu, lambda target: self._extract(data, target))
        whole.write(cached, json.dumps(asdict(found)).encode())
        return found

    @contextmanager
    def _kept(self, head: bytes, stream: BinaryIO, size: int, update: Callable[[bytes], None]) -> Iterator[Buffer]:
        if size <= _IN_MEMORY_BYTES:
            data = bytearray(head)
            for chunk in _chunks(stream, size - len(head)):
                update(chunk)
                data += chunk
            yield bytes(data)
            return
        with tempfile.TemporaryFile(dir=self.scratch) as file:
            file.write(head)
            for chunk in _chunks(stream, size - len(head)):
                update(chunk)
                file.write(chunk)
            file.flush()
            with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as view:
                yield view

    def _extract(self, data: Buffer, target: str) -> Iterator[bytes]:
        """Let cuobjdump decompress the cubins of a target; it names those of a family without the `f`."""
        with tempfile.TemporaryDirectory(dir=self.scratch) as folder:
            (Path(folder) / "input").write_bytes(data)
            run([self.tool(), "-xelf", f"{target.removesuffix('f')}.", "input"], cwd=Path(folder))
            for file in sorted(Path(folder).glob("*.cubin")):
                yield file.read_bytes()


def _chunks(stream: BinaryIO, size: int) -> Iterator[bytes]:
    while size > 0 and (chunk := stream.read(min(size, _CHUNK))):
        size -= len(chunk)
        yield chunk
