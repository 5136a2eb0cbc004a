"""A hostile image, built, saved, made canonical and loaded again: the engine shows the same files, owners and modes."""

from __future__ import annotations

import io
import os
import shutil
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from kiln import canon, oci, recompress, run, services
from kiln.engines import docker
from kiln.errors import UserError
from kiln.registry import Registry
from kiln.settings import from_env
from kiln.volatile import is_volatile
from tests import madeimages as made
from tests.madeimages import EPOCH, Entry

pytestmark = pytest.mark.engine
TOOLS = ("dash", "rm", "ln", "chmod", "mkdir", "mv", "touch", "mkfifo", "truncate", "cp")
DOCKERFILE = """\
FROM scratch
COPY rootfs/ /
ADD hostile.tar /
RUN ["/bin/dash", "-c", "rm -r /d/gone && rm -r /d/opaque && mkdir /d/opaque && echo new > /d/opaque/new"]
RUN ["/bin/dash", "-c", "rm -r /d/turns && echo f > /d/turns && rm /f/turns && mkdir -p /f/turns/a && mkfifo /f/pipe"]
RUN ["/bin/dash", "-c", "ln /h/one /h/three && chmod 4711 /h/two && mv /h/moved /h/b && touch /h/b"]
RUN ["/bin/dash", "-c", "touch /d/same /h/one && mkdir -p /var/log/apt /tmp && echo > /var/log/apt/x && echo > /tmp/x"]
RUN ["/bin/dash", "-c", "rm -r /f/turns && ln -s /d /f/turns && truncate -s 3000000 /f/holes && echo end >> /f/holes"]
USER 1000
ENV A=b
LABEL one=1
CMD ["/bin/dash"]
"""
HOSTILE = [
    *(Entry(path, "dir", mode=mode) for path, mode in [("d", 0o755), ("d/gone", 0o700), ("d/opaque", 0o1777)]),
    Entry("d/gone/a", data=b"a"), Entry("d/opaque/old", data=b"old"), Entry("d/opaque/.hidden", data=b"h"),
    Entry("d/turns", "dir", mode=0o755), Entry("d/turns/x", data=b"x"), Entry("d/same", data=b"same", uid=77, gid=78),
    Entry("d/suid", data=b"s", mode=0o6755), Entry("d/" + "n" * 200 + "/" + "m" * 200, data=b"long"),
    Entry("d/caf\udce9", data=b"latin-1"), Entry("d/ünï", data=b"utf-8"), Entry("d/future", data=b"f", mtime=2**33),
    Entry("d/cap", data=b"c", mode=0o755, xattrs=(("security.capability", "\x01\0\0\x02\0\x04" + "\0" * 14),)),
    Entry("f/turns", data=b"file"), Entry("f/link", "symlink", link="../../../../etc/shadow"),
    Entry("h/one", data=b"1" * 4000), Entry("h/two", data=b"2"), Entry("h/alias", "hardlink", link="h/two"),
    Entry("h/moved", data=b"moved"), Entry("big/uid", data=b"u", uid=3_000_000, gid=2_500_000),
]  # fmt: skip


@pytest.fixture(scope="module")
def engine() -> docker.Docker:
    try:
        return docker.find()
    except UserError as error:
        pytest.skip(f"NOT_RUN: {error}")


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("context")
    for tool in TOOLS:
        program = Path(shutil.which(tool) or f"/bin/{tool}").resolve()
        libraries = [word for word in run.run(["ldd", program]).stdout.split() if word.startswith("/")]
        for source in (program, *map(Path, libraries)):
            name = f"bin/{tool}" if source == program else str(source).lstrip("/")
            (folder / "rootfs" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, folder / "rootfs" / name)
    for mount_point in (
        "dev",
        "etc",
        "proc",
        "sys",
    ):  # else BuildKit makes them in its first RUN layer, classic does not
        (folder / "rootfs" / mount_point).mkdir(exist_ok=True)
    (folder / "hostile.tar").write_bytes(made.layer(HOSTILE))
    (folder / "Dockerfile").write_text(DOCKERFILE)
    return folder


def build(engine: docker.Docker, context: Path, tag: str, *, buildkit: bool = True) -> str:
    argv: list[str | Path] = [engine.client.path, "build", "-q", "--no-cache", "--network=none", "-t", tag, context]
    run.run(argv, env={**engine.variables, "DOCKER_BUILDKIT": str(int(buildkit))})
    return tag


@pytest.fixture(scope="module")
def image(engine: docker.Docker, context: Path) -> Iterator[str]:
    yield build(engine, context, "kiln-test/hostile:one")
    engine.remove("kiln-test/hostile:one")


@pytest.fixture(scope="module")
def layout(engine: docker.Docker, image: str, tmp_path_factory: pytest.TempPathFactory) -> oci.Layout:
    with engine.save(image) as stream:
        return canon.canonicalise(stream, tmp_path_factory.mktemp("canon") / "image", epoch=EPOCH)


def exported(engine: docker.Docker, ref: str, folder: Path) -> dict[str, Entry]:
    """Return what a container of the image sees, without the paths that the canonical image leaves out."""
    client, file = engine.client.path, folder / "export.tar"
    container = run.run([client, "create", ref], env=engine.variables).stdout.strip()
    try:
        run.run([client, "export", "-o", file, container], env=engine.variables)
    finally:
        run.run([client, "rm", container], env=engine.variables)
    shown = made.stripped(made.tree([file.read_bytes()]))
    named = {path.rstrip("/"): replace(entry, path=path.rstrip("/")) for path, entry in shown.items()}
    return {path: entry for path, entry in named.items() if not is_volatile(os.fsencode(path))}


def test_a_container_of_the_canonical_image_sees_the_same_files(
    engine: docker.Docker, image: str, layout: oci.Layout, tmp_path: Path
) -> None:
    engine.load(layout.path, "kiln-test/hostile:canonical")
    try:
        assert engine.image_id("kiln-test/hostile:canonical") == layout.config_digest
        before = exported(engine, image, tmp_path)
        assert exported(engine, "kiln-test/hostile:canonical", tmp_path) == before
        assert {"h/three", "d/turns", "f/pipe", "d/caf\udce9", "d/cap"} <= before.keys()
        assert before["d/cap"].xattrs
        with engine.save("kiln-test/hostile:canonical") as stream:
            again = canon.canonicalise(stream, tmp_path / "again", epoch=EPOCH)
        assert again.manifest_digest == layout.manifest_digest
    finally:
        engine.remove("kiln-test/hostile:canonical")


@pytest.mark.parametrize("buildkit", [True, False], ids=["buildkit", "classic"])
def test_another_build_of_the_same_inputs_has_the_same_digest(
    buildkit: bool, engine: docker.Docker, context: Path, layout: oci.Layout, tmp_path: Path
) -> None:
    for file in context.rglob("*"):
        os.utime(file, (EPOCH + 5, EPOCH + 5))
    ref = build(engine, context, "kiln-test/hostile:two", buildkit=buildkit)
    try:
        with engine.save(ref) as stream:
            other = canon.canonicalise(stream, tmp_path / "image", epoch=EPOCH)
    finally:
        engine.remove(ref)
    assert [layer.diff_id for layer in other.layers] == [layer.diff_id for layer in layout.layers]
    assert other.manifest_digest == layout.manifest_digest


def test_docker_pulls_the_gzip_variant_from_a_registry_under_the_id_of_the_image(
    engine: docker.Docker, layout: oci.Layout, tmp_path: Path
) -> None:
    settings = from_env({"KILN_HOME": str(tmp_path / "home")})
    try:
        registry = Registry(services.registry_up(settings).address)
        small = recompress.recompress(layout.path, tmp_path / "gzip", "gzip")
        assert registry.push(layout.path, "hostile", "v1") == layout.manifest_digest
        assert registry.push(small.path, "hostile", "v1-gz") == small.manifest_digest
        ref = registry.ref("hostile", ":v1-gz")
        run.run([engine.client.path, "pull", ref], env=engine.variables)
        try:
            assert engine.image_id(ref) == layout.config_digest
        finally:
            engine.remove(ref)
        zstd = run.run([engine.client.path, "pull", registry.ref("hostile", ":v1")], env=engine.variables, check=False)
        assert zstd.returncode == 0 or "invalid tar header" in zstd.stderr
        if zstd.returncode == 0:
            assert engine.image_id(registry.ref("hostile", ":v1")) == layout.config_digest
            engine.remove(registry.ref("hostile", ":v1"))
    finally:
        services.registry_down(settings)


def test_skopeo_copies_the_layout_and_keeps_the_digest(layout: oci.Layout, tmp_path: Path) -> None:
    run.run(["skopeo", "copy", "--preserve-digests", f"oci:{layout.path}", f"dir:{tmp_path / 'copy'}"])
    assert oci.digest_of((tmp_path / "copy" / "manifest.json").read_bytes()) == layout.manifest_digest


def test_skopeo_unpacks_to_the_same_diff_ids(layout: oci.Layout, tmp_path: Path) -> None:
    archive, old = (
        tmp_path / "image.tar",
        tmp_path / "gzip",
    )  # Debian 12's skopeo makes no docker archive of zstd layers
    recompress.recompress(layout.path, old, "gzip")
    run.run(["skopeo", "copy", f"oci:{old}", f"docker-archive:{archive}"])
    with archive.open("rb") as file:
        again = canon.canonicalise(io.BytesIO(file.read()), tmp_path / "again", epoch=EPOCH)
    assert again.manifest_digest == layout.manifest_digest


def test_a_layer_that_an_engine_wrote_is_read_as_python_reads_it(layout: oci.Layout) -> None:
    names = [[entry.name for entry in entries] for entries in made.entries_of(layout.path)]
    assert "d/.wh.gone" in names[2]
    assert all(name == sorted(name, key=lambda path: path.split("/")) for name in names)
    assert tarfile.ENCODING == "utf-8"
