"""Every engine that there is: real builds, archives out and in again."""

from __future__ import annotations

import io
import shutil
import tarfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from kiln import canon, engines, host, services
from kiln.engines import Engine
from kiln.engines.buildah import Buildah
from kiln.engines.classic import Classic
from kiln.engines.docker import Docker
from kiln.engines.progress import Line
from kiln.engines.request import Request
from kiln.errors import KilnError
from kiln.settings import from_env

pytestmark = pytest.mark.engine

# A root file system with a shell, out of the host's own files: no image is fetched.
BASE = """\
FROM scratch AS base
COPY dash /bin/sh
COPY cat ls rm sleep /bin/
COPY lib /lib/x86_64-linux-gnu/
COPY ld-linux-x86-64.so.2 /lib64/
"""
FILES = {
    "/bin/dash": "", "/bin/cat": "", "/bin/ls": "", "/bin/rm": "", "/bin/sleep": "", "/lib64/ld-linux-x86-64.so.2": "",
    "/lib/x86_64-linux-gnu/libc.so.6": "lib", "/lib/x86_64-linux-gnu/libselinux.so.1": "lib",
    "/lib/x86_64-linux-gnu/libpcre2-8.so.0": "lib",
}  # fmt: skip
REF = "kiln-engine-test:one"


@pytest.fixture(scope="module", params=["docker", "classic", "buildah"])
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    settings = from_env({"KILN_HOME": str(tmp_path_factory.mktemp("home"))})
    found = engines.up(settings, services.silent, request.param)
    yield found
    if isinstance(found, Buildah):
        found.wipe()
    services.engine_down(settings)


@pytest.fixture
def mounts(engine: Engine) -> None:
    """For what the classic builder cannot do."""
    if isinstance(engine, Classic):
        pytest.skip("NOT_RUN: the classic builder has no cache that a mount could show, and no secrets")


@pytest.fixture(autouse=True)
def nothing_left(engine: Engine) -> Iterator[None]:
    """Remove a test's images before the next one takes their names, which would leave them without any."""
    yield
    for name in (REF, "kiln-engine-test:two"):
        engine.remove(name)


@pytest.fixture
def context(tmp_path: Path) -> Path:
    folder = tmp_path / "context"
    for path, place in FILES.items():
        (folder / place).mkdir(parents=True, exist_ok=True)
        shutil.copy(path, folder / place)
    return folder


def build(
    engine: Engine, context: Path, steps: str, *, lines: list[Line] | None = None, no_cache: bool = False,
    secrets: dict[str, Path] | None = None, tag: str = REF,
) -> str:  # fmt: skip
    (context / "Dockerfile").write_text(BASE + steps)
    request = Request(
        context, tag, context.parent / "logs" / "build.log", {"SOURCE_DATE_EPOCH": "1700000000"},
        {"org.example.plan": "abc"}, secrets or {}, no_cache,
    )  # fmt: skip
    return engine.build(request, (lines if lines is not None else []).append)


def said(lines: list[Line], kind: str) -> list[str]:
    return [line.text for line in lines if line.kind == kind]


def test_the_engine_says_what_it_is_and_where_it_keeps_images(engine: Engine) -> None:
    assert engine.version() in engine.describe()
    assert engine.version()[0].isdigit()
    root = engine.data_root()
    assert root is not None
    assert host.disk_free(root) > 0


@pytest.mark.usefixtures("mounts")
def test_a_build_passes_arguments_labels_and_secrets_and_keeps_its_log(engine: Engine, context: Path) -> None:
    secret = context.parent / "word"
    secret.write_text("open sesame\n")
    lines: list[Line] = []
    steps = (
        "FROM base\nARG SOURCE_DATE_EPOCH\n"
        "RUN --mount=type=secret,id=word,target=/run/kiln/word cat /run/kiln/word; echo epoch $SOURCE_DATE_EPOCH\n"
    )
    built = build(engine, context, steps, lines=lines, no_cache=True, secrets={"word": secret})
    assert built == engine.image_id(REF)
    assert "open sesame" in said(lines, "output")
    assert "epoch 1700000000" in said(lines, "output")
    assert any("RUN --mount" in text for text in said(lines, "start"))
    log = (context.parent / "logs" / "build.log").read_text()
    assert all(text in log for text in said(lines, "output"))


def test_the_same_build_again_gives_the_same_files(engine: Engine, context: Path) -> None:
    steps = "FROM base\nRUN echo once > /once\n"
    first = build(engine, context, steps)
    lines: list[Line] = []
    again = build(engine, context, steps, lines=lines)
    # buildah's cache of steps does not see what mounts show: it is never used.
    assert (again == first and bool(said(lines, "cached"))) or isinstance(engine, Buildah)


def test_a_mount_shows_the_context_of_now_and_the_stage_of_now(engine: Engine, context: Path) -> None:
    steps = (
        "FROM base AS made\nRUN --mount=type=bind,source=input,target=/run/kiln/input cat /run/kiln/input > /made\n"
        "FROM base\nRUN --mount=type=bind,from=made,source=/made,target=/run/kiln/made cat /run/kiln/made\n"
    )
    for word in (uuid.uuid4().hex, uuid.uuid4().hex):
        (context / "input").write_text(f"{word}\n")
        lines: list[Line] = []
        build(engine, context, steps, lines=lines)
        assert said(lines, "output")[-1] == word


def test_a_stage_has_the_arguments_of_the_one_that_it_starts_from(engine: Engine, context: Path) -> None:
    lines: list[Line] = []
    steps = "FROM base AS a\nARG SOURCE_DATE_EPOCH\nFROM a AS b\nFROM b\nRUN echo epoch $SOURCE_DATE_EPOCH\n"
    build(engine, context, steps, lines=lines, no_cache=True)
    assert said(lines, "output") == ["epoch 1700000000"]


def test_each_step_that_changes_files_is_a_layer(engine: Engine, context: Path) -> None:
    build(engine, context, "FROM base\nENV A=b\nRUN echo a > /a\nRUN echo b > /b\nUSER 1000\n")
    assert engine.layer_count(REF) == 4 + 2


@pytest.mark.usefixtures("mounts")
def test_a_cache_mount_keeps_its_files_unless_no_cache_is_wanted(engine: Engine, context: Path) -> None:
    def seen(word: str, *, no_cache: bool = False) -> list[str]:
        lines: list[Line] = []
        mount = "--mount=type=cache,id=kiln-engine-test,target=/run/kiln/c"
        step = f"RUN {mount} echo {word} >> /run/kiln/c/words; cat /run/kiln/c/words"
        build(engine, context, f"FROM base\n{step}\n", lines=lines, no_cache=no_cache)
        return said(lines, "output")

    words = [uuid.uuid4().hex for _ in range(3)]
    seen(words[0])
    assert seen(words[1])[-2:] == words[:2]
    assert seen(words[2], no_cache=True) == words[2:]


def test_a_build_step_has_no_network(engine: Engine, context: Path) -> None:
    lines: list[Line] = []
    build(engine, context, "FROM base\nRUN ls /sys/class/net\n", lines=lines, no_cache=True)
    assert said(lines, "output") == ["lo"]


def test_a_failed_build_names_its_log_and_shows_the_last_lines(engine: Engine, context: Path) -> None:
    before = engine.image_id(REF)
    lines: list[Line] = []
    with pytest.raises(KilnError) as caught:
        build(engine, context, "FROM base\nRUN echo about to fail; no-such-program\n", lines=lines, no_cache=True)
    assert "logs/build.log" in str(caught.value)
    assert "127" in str(caught.value)
    assert said(lines, "error")
    assert engine.image_id(REF) == before


def test_an_interrupt_ends_the_build_and_leaves_no_image(engine: Engine, context: Path) -> None:
    name = "kiln-engine-test:interrupted"
    (context / "Dockerfile").write_text(BASE + "FROM base\nRUN echo started; sleep 61.25\n")

    def interrupt(line: Line) -> None:
        if line.kind == "output":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        engine.build(Request(context, name, context.parent / "log", no_cache=True), interrupt)
    assert engine.image_id(name) is None
    assert not until_gone("sleep\x0061.25")


def until_gone(argv: str) -> list[str]:
    """Return the processes with these arguments that are still there after a while."""
    for _ in range(100):
        left = [str(file.parent) for file in Path("/proc").glob("[0-9]*/cmdline") if argv in text_of(file)]
        if not left:
            return []
        time.sleep(0.1)
    return left


def text_of(file: Path) -> str:
    try:
        return file.read_text(errors="replace")
    except OSError:
        return ""


def names(archive: bytes) -> set[str]:
    with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
        return set(opened.getnames())


def test_an_image_goes_out_as_an_archive_and_its_layout_comes_back(
    engine: Engine, context: Path, tmp_path: Path
) -> None:
    build(engine, context, "FROM base\nRUN echo x > /x\nUSER 1000\n")
    with engine.save(REF) as stream:
        archive = stream.read()
    assert "manifest.json" in names(archive)
    made = canon.canonicalise(io.BytesIO(archive), tmp_path / "layout", epoch=1_700_000_000)
    engine.remove(REF)
    assert engine.image_id(REF) is None
    engine.remove(REF)
    engine.load(made.path, REF)
    assert engine.image_id(REF) == made.config_digest
    assert engine.images("kiln-engine-test:") == (REF,)
    if isinstance(engine, Buildah):
        return  # 1.28 writes no archive of layers that came in as zstd; a loaded image is tested, never saved
    with engine.save(REF) as stream:
        again = canon.canonicalise(stream, tmp_path / "again", epoch=1_700_000_000)
    assert again.manifest_digest == made.manifest_digest


def test_a_reader_that_stops_early_does_not_hang(engine: Engine, context: Path) -> None:
    build(engine, context, "FROM base\nRUN echo y > /y\n")
    with engine.save(REF) as stream:
        assert len(stream.read(1024)) == 1024


def test_a_second_name_keeps_the_image_when_the_first_goes(engine: Engine, context: Path) -> None:
    built = build(engine, context, "FROM base\nRUN echo z > /z\n")
    engine.tag(REF, "kiln-engine-test:two")
    engine.remove(REF)
    assert engine.image_id("kiln-engine-test:two") == built


def test_a_broken_layout_is_an_error(engine: Engine, tmp_path: Path) -> None:
    (tmp_path / "index.json").write_text("{}")
    with pytest.raises(KilnError):
        engine.load(tmp_path, REF)
    assert engine.image_id(REF) is None


def test_a_broken_archive_is_an_error_and_a_writers_own_error_passes(engine: Engine) -> None:
    if not isinstance(engine, Docker):
        pytest.skip("NOT_RUN: a sink is Docker's")
    with pytest.raises(KilnError, match="the engine did not load the image"), engine.sink() as sink:
        sink.write(b"no archive at all" * 1000)
    with pytest.raises(ZeroDivisionError), engine.sink() as sink:
        sink.write(b"%d" % (1 // 0))


def test_what_is_not_there_has_no_id_and_no_archive(engine: Engine) -> None:
    assert engine.image_id("kiln-engine-test:never") is None
    with pytest.raises(KilnError, match="kiln-engine-test:never"), engine.save("kiln-engine-test:never") as stream:
        stream.read()
