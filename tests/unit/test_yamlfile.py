"""The YAML reader: strings only, a line for everything, all problems at once."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kiln import yamlfile
from kiln.errors import Problem, Problems, UserError

pytestmark = pytest.mark.unit


def problems_of(text: str) -> list[str]:
    with pytest.raises(UserError) as caught:
        yamlfile.parse(text, "f.yaml")
    return [str(problem) for problem in caught.value.problems]


def test_every_scalar_is_a_string_and_mappings_are_sorted() -> None:
    document = yamlfile.parse('b: ["1", word]\na: {y: "no", x: "1.0"}\nc: |\n  12\n', "f.yaml")
    assert document.value == {"a": {"x": "1.0", "y": "no"}, "b": ["1", "word"], "c": "12\n"}
    assert [*document.value] == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("", 2),
        ("gpus", 2),
        ("gpus.sm120", 3),
        ("gpus.sm120.names[1]", 6),
        ("gpus.sm120.cuda", 7),
        ("gpus.sm120.missing.deeper[3].still", 3),
        ("gpus.sm120.names[7]", 4),
        ("nothing.like.this", 2),
    ],
)
def test_a_path_has_its_line_or_that_of_its_nearest_parent(path: str, line: int) -> None:
    text = '# comment\ngpus:\n  sm120:\n    names:\n      - "a"\n      - "b"\n    cuda: "13.0"\n'
    document = yamlfile.parse(text, "f.yaml")
    assert document.line(path) == line
    assert document.at(path) == f"f.yaml:{line}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: 0.6", 'f.yaml:1: a: 0.6 is read as a number\n  hint: quote it: "0.6"'),
        ("a: 120", 'f.yaml:1: a: 120 is read as a number\n  hint: quote it: "120"'),
        ("a: 1234567", 'f.yaml:1: a: 1234567 is read as a number\n  hint: quote it: "1234567"'),
        ("a: 1:30", 'f.yaml:1: a: 1:30 is read as a number\n  hint: quote it: "1:30"'),
        ("a: no", 'f.yaml:1: a: no is read as a boolean\n  hint: quote it: "no"'),
        ("a: [on]", 'f.yaml:1: a[0]: on is read as a boolean\n  hint: quote it: "on"'),
        ("a: 2026-02-25", 'f.yaml:1: a: 2026-02-25 is read as a date\n  hint: quote it: "2026-02-25"'),
        ("a: null", 'f.yaml:1: a: null is read as nothing\n  hint: quote it: "null"'),
        ("12: x", 'f.yaml:1: 12 is read as a number\n  hint: quote it: "12"'),
        ("a:\nb: x", 'f.yaml:1: a: has no value\n  hint: write a value, or "" for an empty one'),
        (
            'a:\n  x: "1"\n  y: "2"\n  x: "3"',
            "f.yaml:4: a: duplicate key 'x', first on line 2\n  hint: keep one of the two",
        ),
        ("a: &n x", "f.yaml:1: a: an anchor or alias\n  hint: write the value out where it is used"),
        ("a: !!int x", "f.yaml:1: a: a tag, tag:yaml.org,2002:int\n  hint: remove the tag"),
        ("a: x\n---\nb: y", "f.yaml:2: a second document\n  hint: keep one document in a file, without `---`"),
        ("? [a]\n: b", "f.yaml:1: a key that is not a word\n  hint: write `key: value`"),
        ("- a", "f.yaml:1: is not a mapping\n  hint: start with `key:`"),
        ("", "f.yaml:1: is not a mapping\n  hint: start with `key:`"),
        ("# only a comment\n", "f.yaml:1: is not a mapping\n  hint: start with `key:`"),
        ("a:\n\tb: x", "f.yaml:2: a tab in the indentation\n  hint: indent with spaces"),
        ("a:\n  b:\t\t\tx\n  c: [\tx\n", "f.yaml:2: a tab between two words\n  hint: use spaces"),
        (
            'a: "x"\nb: [x\nc: y',
            "f.yaml:3: not YAML: expected ',' or ']', but got ':'\n  hint: look at this line and the one above it",
        ),
        (
            'a: "x\nb: y\n',
            "f.yaml:3: not YAML: found unexpected end of stream\n  hint: look at this line and the one above it",
        ),
        ("a: *b", "f.yaml:1: a: an anchor or alias\n  hint: write the value out where it is used"),
        ("a: \x07", "f.yaml: unacceptable character #x0007: special characters are not allowed\n"
         "  hint: remove the character"),
    ],
)  # fmt: skip
def test_bad_input_is_refused_with_its_line_and_a_hint(text: str, expected: str) -> None:
    assert problems_of(text) == [expected]


def test_every_problem_of_a_file_is_reported_at_once() -> None:
    assert [line.splitlines()[0] for line in problems_of("a: 1\nb: yes\nc: {d: 2.5, d: x}\n")] == [
        "f.yaml:1: a: 1 is read as a number",
        "f.yaml:2: b: yes is read as a boolean",
        "f.yaml:3: c.d: 2.5 is read as a number",
        "f.yaml:3: c: duplicate key 'd', first on line 3",
    ]


def test_all_tabs_of_a_file_are_reported_at_once() -> None:
    assert [line.partition(": ")[0] for line in problems_of("a:\n\tb: x\n\tc: y\n")] == ["f.yaml:2", "f.yaml:3"]


def test_a_problem_before_a_syntax_error_is_kept() -> None:
    assert [line.partition(": ")[0] for line in problems_of("a: 1\nb: [x\nc: y")] == ["f.yaml:1", "f.yaml:3"]


def test_problems_sort_by_line_number() -> None:
    found = problems_of("".join(f"k{number}: {number}\n" for number in range(1, 13)))
    assert [line.split(":")[1] for line in found] == [str(number) for number in range(1, 13)]


def test_tabs_inside_text_and_comments_are_fine() -> None:
    assert yamlfile.parse('a: "x\ty"  #\tnote\n', "f.yaml").value == {"a": "x\ty"}


def test_a_missing_file_is_named_relative_to_the_root(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^images/x/image\.yaml does not exist"):
        yamlfile.read(tmp_path / "images/x/image.yaml", tmp_path)


def test_bytes_that_are_not_utf8_are_refused(tmp_path: Path) -> None:
    (tmp_path / "f.yaml").write_bytes(b'a: "\xff"\n')
    with pytest.raises(UserError, match=r"^f\.yaml: byte 4 is not UTF-8"):
        yamlfile.read(tmp_path / "f.yaml", tmp_path)


def test_problems_is_what_is_raised_for_more_than_one() -> None:
    with pytest.raises(Problems) as caught:
        yamlfile.parse("a: 1\nb: 2\n", "f.yaml")
    assert caught.value.problems[0] == Problem("f.yaml:1", "a: 1 is read as a number", 'quote it: "1"')


@given(st.text(alphabet="ab01:-?[]{},&*!|>'\"#%@` \n\t.~<\x00\xe9", max_size=60))
def test_any_text_is_either_read_or_refused_with_a_line(text: str) -> None:
    assert all(problem.source.startswith("f.yaml") and problem.hint for problem in faults(text))


def faults(text: str) -> tuple[Problem, ...]:
    try:
        yamlfile.parse(text, "f.yaml")
    except UserError as error:
        return error.problems
    return ()
