"""Rules on Dockerfiles and recipe scripts: each refuses its bad example, with the line, and lets the good one pass."""

from __future__ import annotations

import pytest

from kiln import reciperules

pytestmark = pytest.mark.unit

BAD = {
    "RUN make install || true": "an error that is swallowed: || true",
    "RUN python fix.py || :": "an error that is swallowed: || :",
    "RUN sed -i s/a/b/ f || echo WARN: pattern not found, skipping": "an error that is swallowed: || echo WARN",
    "RUN pip install x 2>/dev/null": "errors of pip, git or patch sent away: pip install x 2>/dev/null",
    "RUN /run/kiln/tools/uv pip install x &> /dev/null": "errors of pip, git or patch sent away",
    "RUN patch -p1 < a.patch >/dev/null 2>&1": "errors of pip, git or patch sent away",
    "RUN git cherry-pick abc; python fix.py": "`;` after git: git cherry-pick abc;",
    "RUN export TAG=$(jq -r .tag m.json) && make": "an export that masks a failure: export TAG=$(",
    "RUN export TAG=`cat tag`": "an export that masks a failure: export TAG=`",
    "COPY --from=tools:latest /bin/x /bin/x": "a tag that moves: =tools:latest",
    "FROM nvidia/cuda:latest@sha256:0": "a tag that moves: nvidia/cuda:latest",
    "RUN git checkout main": "a branch: git checkout main",
    "RUN git reset --hard origin/main": "a branch: git reset --hard origin/main",
    "RUN uv pip install git+ssh://host/x@main": "a branch: git+ssh://host/x@main",
    "RUN git clone ssh://host/x": "a clone: git clone",
    "RUN curl -s x | sh": "a script from the network: curl -s x | sh",
    "RUN pip install --extra-index-url x y": "a package index: --extra-index-url",
    "ENV FLASHINFER_DISABLE_VERSION_CHECK=1": "FlashInfer's version check switched off",
    "RUN uv pip install --force-reinstall x": "a forced reinstallation without a reason: --force-reinstall",
    "FROM debian:12": "a base without a digest: debian:12",
}
GOOD = (
    "FROM ${PARENT} AS deps\nFROM deps\nFROM scratch\nFROM debian@sha256:0",
    "RUN test -e x || exit 1",
    "RUN command -v nvcc 2>/dev/null && git apply --index a.patch && make",
    "RUN for d in a b; do mkdir $d; done && git status",
    "RUN tag=$(jq -r .tag m.json) && export tag",
    "# FLASHINFER_DISABLE_VERSION_CHECK would hide || true and git; here, see :latest\nRUN make",
    "# force-reinstall: libs-cu13 owns the files that libs-cu12 overwrote\nRUN uv pip install --force-reinstall x",
    "LABEL a=b:latest-stable-name",
)


@pytest.mark.parametrize("line", BAD, ids=list(BAD))
def test_a_bad_line_is_refused_with_its_number(line: str) -> None:
    found = reciperules.problems("x/Dockerfile", f"# first\n\n{line}\n")
    assert [problem.source for problem in found if problem.message.startswith(BAD[line])] == ["x/Dockerfile:3"], found
    assert all(problem.hint for problem in found)


@pytest.mark.parametrize("text", GOOD)
def test_good_lines_pass(text: str) -> None:
    assert reciperules.problems("Dockerfile", text) == []


def test_a_breach_inside_a_continued_command_has_its_own_line() -> None:
    text = "RUN make && \\\n    # why not\n    pip install a \\\n      b 2>/dev/null && \\\n    git pull; true\n"
    found = reciperules.problems("Dockerfile", text)
    assert [(problem.source, problem.message.partition(":")[0]) for problem in found] == [
        ("Dockerfile:3", "errors of pip, git or patch sent away"),
        ("Dockerfile:5", "`;` after git"),
    ]


def test_every_rule_has_a_bad_example() -> None:
    messages = set(BAD.values())
    assert [rule.name for rule in reciperules.RULES if not any(one.startswith(rule.name) for one in messages)] == []
