"""Dockerfiles for builders that know less than BuildKit: what is said instead, and what is refused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kiln.engines import dockerfile, mounts
from kiln.errors import UserError
from kiln.settings import ROOT

pytestmark = pytest.mark.unit
RENDERED = sorted(ROOT.glob("images/*/rendered/*.Dockerfile"))


def test_a_bind_mount_is_copied_before_the_step_and_removed_after_it() -> None:
    text = (
        "FROM base\n"
        "RUN --mount=type=bind,source=wheels,target=/run/kiln/wheels \\\n"
        "    # a comment inside\n"
        "    --mount=type=bind,from=kernels,src=/out,dst=/run/kiln/out \\\n"
        "    install /run/kiln/wheels \\\n"
        "        --all\n"
    )
    assert mounts.translate(text).text == (
        "FROM base\n"
        "COPY wheels /run/kiln/wheels\n"
        "COPY --from=kernels /out /run/kiln/out\n"
        "RUN install /run/kiln/wheels \\\n"
        "        --all\n"
        'RUN ["/bin/rm", "-rf", "/run/kiln/wheels", "/run/kiln/out"]\n'
    )


def test_a_cache_is_an_empty_folder_and_a_missing_secret_is_nothing() -> None:
    step = (
        "RUN --mount=type=cache,id=kiln-ccache,target=/run/kiln/ccache "
        "--mount=type=secret,id=kiln-jobs,target=/run/kiln/jobs make\n"
    )
    removed = 'RUN ["/bin/rm", "-rf", "/run/kiln/ccache", "/run/kiln/jobs"]\n'
    assert mounts.translate(step).text == f"COPY .kiln-empty /run/kiln/ccache\nRUN make\n{removed}"
    assert mounts.translate(step, secrets=["kiln-jobs"]).text == (
        f"COPY .kiln-empty /run/kiln/ccache\nCOPY .kiln-secrets/kiln-jobs /run/kiln/jobs\nRUN make\n{removed}"
    )


def test_a_mode_moves_from_the_copy_into_the_context() -> None:
    made = mounts.translate("COPY --chmod=0755 recipe/serve /bin/serve\n")
    assert made.text == "COPY recipe/serve /bin/serve\n"
    assert made.modes == {"recipe/serve": 0o755}


@pytest.mark.parametrize(
    "text",
    [
        "# a comment\n\nFROM scratch\n", "ADD rootfs.tar /\n", "COPY --from=a /b /c\n", "RUN a \\\n  && b\n", "RUN\n",
        'ENV A="--mount=x" \\\n    B=c\n', "RUN echo --mount=type=ssh\n",
    ],
)  # fmt: skip
def test_what_every_builder_understands_stays_as_it_is(text: str) -> None:
    assert mounts.translate(text) == mounts.Translated(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("RUN --mount=type=ssh x", "--mount=type=ssh: type ssh takes BuildKit"),
        ("RUN --mount=type=tmpfs,target=/run/kiln/x x", "type tmpfs takes BuildKit"),
        ("RUN --mount=type=bind,target=/run/kiln/x x", "option source is missing"),
        ("RUN --mount=type=bind,source=a,target=/run/kiln/x,rw x", "option rw is not known"),
        ("RUN --mount=type=cache,id=a,sharing=locked,target=/run/kiln/x x", "option sharing is not known"),
        ("RUN --mount=source=a,target=/opt/x x", "only targets below /run/kiln leave no trace"),
        ("RUN --mount=source=a,target=/run/kiln/../../opt x", "only targets below /run/kiln leave no trace"),
        ("RUN --network=none x", "RUN --network=none takes BuildKit"),
        ("RUN --mount=source=a,target=/run/kiln/a cat <<EOF\nx\nEOF", "a here-document takes BuildKit"),
        ("COPY --link a /b", "cannot do this: 'COPY --link a /b'"),
        ("COPY --chmod=u+x a /b", "cannot do this"),
        ("COPY --chmod=755 a /b\nCOPY --chmod=644 a /c", "a is copied with two modes"),
        ("ADD --checksum=sha256:1 a /b", "cannot do this"),
        ("# syntax=some/frontend:1\nFROM a", "the directive '# syntax=some/frontend:1' takes BuildKit"),
        ("# escape=`\nFROM a", "takes BuildKit"),
        ("RUN a \\", "ends inside an instruction: 'RUN a"),
    ],
)
def test_what_cannot_be_said_without_buildkit_is_refused(text: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        mounts.translate(text + "\n")
    assert message in str(caught.value)


def test_a_secret_never_enters_a_layer() -> None:
    with pytest.raises(UserError, match="secret token would stay in a layer"):
        mounts.translate("RUN --mount=type=secret,id=token,target=/run/kiln/token x\n", secrets=["token"])


@pytest.mark.parametrize("file", RENDERED, ids=lambda file: f"{file.parent.parent.name}/{file.stem}")
def test_every_dockerfile_of_ours_can_be_said_without_mounts(file: Path) -> None:
    made = mounts.translate(file.read_text(), secrets=mounts.PUBLIC)
    assert "--mount" not in made.text
    assert "--chmod" not in made.text
    assert mounts.translate(made.text).text == made.text


def test_a_stage_declares_the_arguments_of_the_one_that_it_starts_from() -> None:
    text = (
        "ARG PARENT\nFROM ${PARENT} AS deps\nARG SOURCE_DATE_EPOCH\nFROM deps AS kernels\nARG LOCAL_VERSION\n"
        "RUN make\nFROM other\nRUN x\nFROM deps\nRUN y\n"
    )
    assert dockerfile.inherit_args(text) == (
        "ARG PARENT\nFROM ${PARENT} AS deps\nARG SOURCE_DATE_EPOCH\nFROM deps AS kernels\nARG SOURCE_DATE_EPOCH\n"
        "ARG LOCAL_VERSION\nRUN make\nFROM other\nRUN x\nFROM deps\nARG SOURCE_DATE_EPOCH\nRUN y\n"
    )


@pytest.mark.parametrize("file", RENDERED, ids=lambda file: f"{file.parent.parent.name}/{file.stem}")
def test_every_stage_of_ours_that_runs_something_knows_the_epoch(file: Path) -> None:
    stages = re.split(r"^FROM ", dockerfile.inherit_args(file.read_text()), flags=re.MULTILINE)[1:]
    assert all("ARG SOURCE_DATE_EPOCH" in stage.partition("\nRUN ")[0] for stage in stages if "\nRUN " in stage)
