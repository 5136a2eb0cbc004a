"""The engine that answers here, or ours: real BuildKit builds, archives out and in again."""

from __future__ import annotations

import io
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from kiln import engines, host, services
from kiln.engines import Engine, progress
from kiln.errors import KilnError
from kiln.run import CommandFailed
from kiln.settings import from_env

pytestmark = pytest.mark.engine

# A root file system with a shell, out of the host's own files: no image is fetched.
BASE = """\
FROM scratch AS base
COPY dash /bin/sh
COPY cat ls sleep /bin/
COPY lib /lib/x86_64-linux-gnu/
COPY ld-linux-x86-64.so.2 /lib64/
"""
FILES = {
    "/bin/dash": "", "/bin/cat": "", "/bin/ls": "", "/bin/sleep": "", "/lib64/ld-linux-x86-64.so.2": "",
    "/lib/x86_64-linux-gnu/libc.so.6": "lib", "/lib/x86_64-linux-gnu/libselinux.so.1": "lib",
    "/lib/x86_64-linux-gnu/libpcre2-8.so.0": "lib",
}  # fmt: skip
REF = "kiln-engine-test:one"


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    settings = from_env({"KILN_HOME": str(tmp_path_factory.mktemp("home"))})
    found = engines.up(settings, services.silent)
    yield found
    services.engine_down(settings)


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
    engine: Engine, context: Path, steps: str, *, lines: list[str] | None = None, no_cache: bool = False,
    secrets: dict[str, Path] | None = None, tag: str = REF,
) -> str:  # fmt: skip
    (context / "Dockerfile").write_text(BASE + steps)
    return engine.build(
        context=context, dockerfile=context / "Dockerfile", tag=tag, args={"SOURCE_DATE_EPOCH": "1700000000"},
        labels={"org.example.plan": "abc"}, secrets=secrets or {}, no_cache=no_cache,
        log=context.parent / "logs" / "build.log", on_line=(lines if lines is not None else []).append,
    )  # fmt: skip


def events(lines: list[str], kind: str) -> list[progress.Line]:
    return [found for line in lines if (found := progress.parse(line)) and found.kind == kind]


def test_the_engine_says_which_client_it_uses_and_where_it_keeps_images(engine: Engine) -> None:
    assert "with BuildKit of dockerd" in engine.describe()
    assert engine.version()[0].isdigit()
    root = engine.data_root()
    assert root is not None
    assert host.disk_free(root) > 0


def test_a_build_passes_arguments_labels_and_secrets_and_keeps_its_log(engine: Engine, context: Path) -> None:
    secret = context.parent / "word"
    secret.write_text("open sesame\n")
    lines: list[str] = []
    steps = (
        "FROM base\nARG SOURCE_DATE_EPOCH\n"
        "RUN --mount=type=secret,id=word,target=/run/kiln/word cat /run/kiln/word; echo epoch $SOURCE_DATE_EPOCH\n"
    )
    built = build(engine, context, steps, lines=lines, no_cache=True, secrets={"word": secret})
    assert built == engine.image_id(REF)
    said = [event.text for event in events(lines, "output")]
    assert "open sesame" in said
    assert "epoch 1700000000" in said
    assert any(event.text.startswith("[stage-1 1/1] RUN") for event in events(lines, "start"))
    assert (context.parent / "logs" / "build.log").read_text().splitlines() == lines


def test_a_second_build_is_all_cache(engine: Engine, context: Path) -> None:
    steps = "FROM base\nRUN echo once > /once\n"
    first = build(engine, context, steps)
    lines: list[str] = []
    assert build(engine, context, steps, lines=lines) == first
    assert events(lines, "cached")
    assert not events(lines, "output")


def test_a_build_step_has_no_network(engine: Engine, context: Path) -> None:
    lines: list[str] = []
    build(engine, context, "FROM base\nRUN ls /sys/class/net\n", lines=lines, no_cache=True)
    assert [event.text for event in events(lines, "output")] == ["lo"]


def test_a_failed_build_names_its_log_and_shows_the_last_lines(engine: Engine, context: Path) -> None:
    before = engine.image_id(REF)
    lines: list[str] = []
    with pytest.raises(CommandFailed) as caught:
        build(engine, context, "FROM base\nRUN echo about to fail; no-such-program\n", lines=lines, no_cache=True)
    assert "logs/build.log" in str(caught.value)
    assert "exit code: 127" in str(caught.value)
    assert events(lines, "error")
    assert engine.image_id(REF) == before


def test_an_interrupt_ends_the_build_and_leaves_no_image(engine: Engine, context: Path) -> None:
    name = "kiln-engine-test:interrupted"
    (context / "Dockerfile").write_text(BASE + "FROM base\nRUN echo started; sleep 60\n")

    def interrupt(line: str) -> None:
        found = progress.parse(line)
        if found and found.kind == "output":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        engine.build(
            context=context, dockerfile=context / "Dockerfile", tag=name, args={}, labels={}, secrets={},
            no_cache=True, log=context.parent / "log", on_line=interrupt,
        )  # fmt: skip
    assert engine.image_id(name) is None


def names(archive: bytes) -> set[str]:
    with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
        return set(opened.getnames())


def test_an_image_goes_out_as_an_archive_and_comes_back_the_same(engine: Engine, context: Path) -> None:
    built = build(engine, context, "FROM base\nRUN echo x > /x\n")
    with engine.save(REF) as stream:
        archive = stream.read()
    assert "manifest.json" in names(archive)
    engine.remove(REF)
    assert engine.image_id(REF) is None
    engine.remove(REF)
    with engine.load() as sink:
        sink.write(archive)
    assert engine.image_id(REF) == built


def test_a_reader_that_stops_early_does_not_hang(engine: Engine, context: Path) -> None:
    build(engine, context, "FROM base\nRUN echo y > /y\n")
    with engine.save(REF) as stream:
        assert len(stream.read(1024)) == 1024


def test_a_second_name_keeps_the_image_when_the_first_goes(engine: Engine, context: Path) -> None:
    built = build(engine, context, "FROM base\nRUN echo z > /z\n")
    engine.tag(REF, "kiln-engine-test:two")
    engine.remove(REF)
    assert engine.image_id("kiln-engine-test:two") == built


def test_a_broken_archive_is_an_error_and_a_writers_own_error_passes(engine: Engine) -> None:
    with pytest.raises(KilnError, match="the engine did not load the image"), engine.load() as sink:
        sink.write(b"no archive at all" * 1000)
    with pytest.raises(ZeroDivisionError), engine.load() as sink:
        sink.write(b"%d" % (1 // 0))


def test_what_is_not_there_has_no_id_and_no_archive(engine: Engine) -> None:
    assert engine.image_id("kiln-engine-test:never") is None
    with pytest.raises(KilnError, match="kiln-engine-test:never"), engine.save("kiln-engine-test:never") as stream:
        stream.read()
