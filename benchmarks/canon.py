"""How fast and in how much memory a layer of CUDA libraries is made canonical: `python benchmarks/canon.py [GB]`.

The layer holds the libraries of the store's cuBLAS and cuDNN wheels, a GB of them, and as many small files as a Python
environment of that size. Stage by stage: reading (spool, hash), scanning, writing (tar, two hashes, zstd-3), and plain
`zstandard` over the same bytes in the same process. Rates are per second of CPU time, which a busy machine stretches
by up to two (two hyperthreads share a core): the ratio to plain zstandard is what to compare.
"""

from __future__ import annotations

import hashlib
import io
import json
import resource
import shutil
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import zstandard

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from kiln import canon, layerscan, locks, oci, settings, tarlayer
from kiln.store import Store
from kiln.tree import Tree

WHEELS = ("nvidia-cublas", "nvidia-cudnn-cu13", "nvidia-curand", "nvidia-cusparselt-cu13")
SMALL_FILES, SMALL_BYTES = 10_000, 6_000
CHUNK = 1 << 20
EPOCH = 1_700_000_000


@dataclass(frozen=True)
class Cost:
    """CPU and wall seconds of a step over `size` bytes."""

    name: str
    size: int
    cpu_s: float
    wall_s: float

    @property
    def rate(self) -> float:
        return self.size / 1e6 / self.cpu_s


def main(size: int) -> None:
    """Make the layer, measure the steps, print a table and JSON."""
    found = settings.from_env()
    with tempfile.TemporaryDirectory(dir=found.home) as name:
        folder = Path(name)
        raw = folder / "layer.tar"
        write_layer(raw, found, size)
        costs = measure(raw, folder)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        costs.append(whole(raw, folder))
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    plain = next(cost for cost in costs if cost.name == "plain zstandard")
    for cost in costs:
        share = f"{cost.cpu_s / plain.cpu_s:5.2f} × plain"
        print(f"{cost.name:<18} {cost.rate:7.0f} MB per CPU-second  {share}  wall {cost.wall_s:6.1f} s")
    print(f"peak RSS {peak // 1024} MB (before the whole: {before // 1024} MB), layer {plain.size / 1e6:.0f} MB")
    rates = {cost.name: round(cost.rate, 1) for cost in costs}
    print(json.dumps({"mb_per_cpu_s": rates, "peak_rss_mb": peak // 1024, "layer_mb": round(plain.size / 1e6)}))


def write_layer(target: Path, found: settings.Settings, size: int) -> None:
    """Write a raw layer of the wheels' files and small files, about `size` bytes."""
    store = Store(found.store)
    wheels = {wheel.name: wheel for wheel in locks.load(found.root, "current").wheels}
    with tarfile.open(target, "w", format=tarfile.PAX_FORMAT) as tar:
        for number in range(SMALL_FILES):
            content = f"# module {number}\nvalue = {number}\n".encode() * (SMALL_BYTES // 30)
            add(tar, f"opt/site/package{number // 50}/module{number}.py", io.BytesIO(content), len(content))
        for name in WHEELS:
            with zipfile.ZipFile(store.path(wheels[name].sha256)) as wheel:
                for member in wheel.infolist():
                    room = size - target.stat().st_size
                    if room > 0 and not member.is_dir():
                        with wheel.open(member) as library:
                            add(tar, f"opt/site/{member.filename}", library, min(member.file_size, room))


def add(tar: tarfile.TarFile, name: str, content: IO[bytes], size: int) -> None:
    """Add a file."""
    info = tarfile.TarInfo(name)
    info.size, info.mtime = size, 1_600_000_000
    tar.addfile(info, content)


def ignore(size: int) -> None:
    """Take a step of progress."""


def measure(raw: Path, folder: Path) -> list[Cost]:
    """Measure plain zstandard, then scanning and writing the layer, one after the other in one thread."""
    size, costs = raw.stat().st_size, list[Cost]()
    with raw.open("rb") as file, timed("plain zstandard", size, costs):
        stream = zstandard.ZstdCompressor(level=3).compressobj()
        while data := file.read(CHUNK):
            stream.compress(data)
        stream.flush()
    with tarlayer.open_contents([raw]) as contents:
        with timed("scan", size, costs):
            items = Tree().advance(layerscan.scan(raw, 0, "layer 0"), contents.equal)
        with timed("write", size, costs):
            tarlayer.write(items, contents, folder / "blob", epoch=EPOCH, compression="zstd", on_progress=ignore)
    (folder / "blob").unlink()
    return costs


def whole(raw: Path, folder: Path) -> Cost:
    """Measure the canonicaliser from the engine's stream to the layout."""
    layout, costs = folder / "in", list[Cost]()
    (layout / "blobs" / "sha256").mkdir(parents=True)
    with raw.open("rb") as file:
        digest = f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"
    shutil.move(raw, oci.blob_path(layout, digest))
    describe(layout, digest)
    with timed("whole", oci.blob_path(layout, digest).stat().st_size, costs):
        canon.canonicalise(layout, folder / "out", epoch=EPOCH)
    return costs[0]


def describe(layout: Path, digest: str) -> None:
    """Complete a layout around one plain layer."""

    def put(value: object, media_type: str) -> dict[str, object]:
        data = oci.canonical_json(value)
        oci.blob_path(layout, oci.digest_of(data)).write_bytes(data)
        return {"mediaType": media_type, "digest": oci.digest_of(data), "size": len(data)}

    rootfs = {"type": "layers", "diff_ids": [digest]}
    config = put({"architecture": "amd64", "os": "linux", "config": {}, "rootfs": rootfs}, oci.CONFIG)
    layer = {"mediaType": oci.LAYER, "digest": digest, "size": oci.blob_path(layout, digest).stat().st_size}
    manifest = put({"schemaVersion": 2, "config": config, "layers": [layer]}, oci.MANIFEST)
    (layout / "oci-layout").write_bytes(oci.canonical_json({"imageLayoutVersion": "1.0.0"}))
    (layout / "index.json").write_bytes(oci.canonical_json({"schemaVersion": 2, "manifests": [manifest]}))


@contextmanager
def timed(name: str, size: int, costs: list[Cost]) -> Iterator[None]:
    """Add what the block costs."""
    cpu, wall = time.process_time(), time.monotonic()
    yield
    costs.append(Cost(name, size, time.process_time() - cpu, time.monotonic() - wall))


if __name__ == "__main__":
    main(int(float(sys.argv[1] if len(sys.argv) > 1 else 1) * 1e9))
