"""README.md and docs/: every command, link and variable in them is real."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from invoke import Program
from invoke.parser import ParseError, Parser, ParserContext

from kiln.settings import ROOT
from tasks import namespace

pytestmark = pytest.mark.unit

PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
FENCE = re.compile(r"^(?P<indent> *)```\w*\n(?P<text>.*?)^(?P=indent)```", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"`([^`]+)`")
# What stands before the words of a command: a prompt, variables for this one command.
COMMAND = re.compile(r"(?:\$ +)?(?:[A-Z_]+=\S* +)*(?:(?:\./)?inv|invoke) +(?P<words>\S.*)")
LINK = re.compile(r"\[[^\]\n]*\]\((?P<target>[^)\s]+)\)")
VARIABLE = re.compile(r"\bKILN_[A-Z][A-Z_]*[A-Z]\b")


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def commands(text: str) -> Iterator[str]:
    """Yield the words after `inv` of each command in a page's code: blocks line by line, then spans in the text."""
    blocks = [found["text"].replace("\\\n", " ") for found in FENCE.finditer(text)]
    spans = SPAN.findall(FENCE.sub("", text))
    for line in [*(line for block in blocks for line in block.splitlines()), *spans]:
        if found := COMMAND.fullmatch(" ".join(line.split())):
            yield found["words"]


def fault(words: str) -> str:
    """Return what Invoke's own parser says against a command; empty if it would run it."""
    program = Program(namespace=namespace)
    initial = ParserContext(args=program.core_args() + program.task_args())
    try:
        Parser(initial=initial, contexts=namespace.to_contexts()).parse_argv(shlex.split(words, comments=True))
    except (ParseError, ValueError) as error:
        return str(error)
    return ""


def slugs(page: Path) -> set[str]:
    """Return the anchors of a page's headings."""
    headings = re.findall(r"^#+ +(.+)$", FENCE.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def used_variables() -> set[str]:
    files = [ROOT / "inv", *(ROOT / "kiln").rglob("*.py")]
    return {name for file in files for name in VARIABLE.findall(file.read_text(encoding="utf-8"))}


def test_there_are_pages_with_commands() -> None:
    assert sum(1 for page in PAGES for _ in commands(page.read_text(encoding="utf-8"))) > 20


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_command_names_a_task_and_its_options(page: Path) -> None:
    faults = {words: fault(words) for words in commands(page.read_text(encoding="utf-8"))}
    assert {words: text for words, text in faults.items() if text} == {}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("```sh\n$ ./inv build --gpu sm120   # the main job\n```\n", ["build --gpu sm120 # the main job"]),
        ("1. Lock:\n\n   ```sh\n   ./inv lock --apt \\\n       --stack ci\n   ```\n", ["lock --apt --stack ci"]),
        ("Then `inv lock\n--apt`, or `KILN_HOME=x inv gc`.\n", ["lock --apt", "gc"]),
        (
            "```\ninv: making .venv\n  hint: inv lock --apt\n```\nWith `./inv`, `inventory` and `kiln/inventory.py`.\n",
            [],
        ),
    ],
)
def test_commands_are_found_in_blocks_and_spans(text: str, found: list[str]) -> None:
    assert list(commands(text)) == found


@pytest.mark.parametrize(
    "words",
    ["check", "build --gpu sm120 --jobs 4 --no-push", "fetch --import=x.tar", "engine.down", "-l", "build --help"],
)
def test_a_good_command_is_accepted(words: str) -> None:
    assert fault(words) == ""


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("bild --gpu sm120", "No idea what 'bild' is!"),
        ("build --gpus sm120", "No idea what '--gpus' is!"),
        ("build sm120", "No idea what 'sm120' is!"),
        ("build --gpu", "needed value"),
        ("build --jobs many", "invalid literal for int"),
    ],
)
def test_a_command_that_would_not_run_is_found(words: str, message: str) -> None:
    assert message in fault(words)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_relative_links_and_their_anchors_resolve(page: Path) -> None:
    targets = [found["target"] for found in LINK.finditer(FENCE.sub("", page.read_text(encoding="utf-8")))]
    broken = []
    for target in (target for target in targets if not re.match(r"[a-z]+:", target)):
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists() or (anchor and anchor not in slugs(file)):
            broken.append(target)
    assert broken == []


def test_the_settings_page_has_every_variable_and_no_other() -> None:
    page = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
    assert set(VARIABLE.findall(" ".join(rows))) == used_variables()
    assert set(VARIABLE.findall(page)) <= used_variables()
