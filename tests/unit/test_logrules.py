"""rules/log.yaml: each line has one meaning, healthy lines have none, and recorded logs are explained."""

from __future__ import annotations

from pathlib import Path

import pytest

from kiln import logrules
from kiln.errors import UserError
from kiln.settings import ROOT

pytestmark = pytest.mark.unit

RULES = logrules.load(ROOT)
LOGS = ROOT / "tests/data/logs"
HEALTHY = [
    "[2026-11-29 14:42:33] Fail to set RLIMIT_NOFILE: current limit exceeds maximum limit",
    "[2026-11-29 14:44:20] Init parallel begin.",
    "[2026-11-29 14:44:22] Ignore import error when loading sglang.srt.models.mamba: cannot import name 'x' from 'y'",
    "[2026-11-29 14:44:29] Memory pool end. avail mem=18.05 GB",
    "[2026-11-29 14:44:29] INFO:     Uvicorn running on 127.0.0.1:31012 (Press CTRL+C to quit)",
    '[2026-11-29 14:44:42] INFO:     127.0.0.1:40424 - "GET /health HTTP/1.1" 200 OK',
    "Running FlashInfer autotune with cache: /cache/sglang/flashinfer/autotune",
    "Capture cuda graph begin. This can take up to several minutes.",
    "Prefill batch, #new-seq: 1, #new-token: 29, #cached-token: 0, token usage: 0.01",
    "SIGTERM received. signum=None frame=None. Draining requests and shutting down...",
    "Scheduler soft watchdog timeout (self.watchdog_timeout=300, self.soft=True)",
    "The server is fired up and ready to roll!",
]
GOOD = """\
one:
  pattern: "broke"
  blames: "host"
  means: "it broke"
  cure: "mend it"
  sample: "it broke"
two:
  pattern: "burnt"
  blames: "image"
  means: "it burnt"
  cure: "put it out"
  sample: "it burnt"
"""


def test_there_are_rules_for_all_known_cases() -> None:
    assert len(RULES) >= 35
    assert len({rule.name for rule in RULES}) == len(RULES)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: str(rule.name))
def test_a_rule_finds_its_own_line_and_no_other_s(rule: logrules.Rule) -> None:
    assert [other.name for other in RULES if other.finds(rule.sample)] == [rule.name]


@pytest.mark.parametrize("line", HEALTHY)
def test_a_healthy_line_means_nothing(line: str) -> None:
    assert [rule.name for rule in RULES if rule.finds(line)] == []


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        ("sglang-0.5.23-boot-then-kill", [("child-died", 2)]),
        ("sglang-0.5.9-tp1-stop-cont-kill-term", [("no-token-for-20-s", 4)]),
        ("sglang-0.5.9-tp2-boot-then-kill-rank1", [("scheduler-exception", 1), ("child-died", 1)]),
    ],
)
def test_recorded_logs_are_explained(log: str, expected: list[tuple[str, int]]) -> None:
    found = logrules.explain(RULES, (LOGS / f"{log}.log").read_text(encoding="utf-8"))
    assert [(one.rule.name, one.count) for one in found] == expected


def test_a_boot_until_it_is_ready_needs_no_explanation() -> None:
    for log in LOGS.glob("*.log"):
        boot = log.read_text(encoding="utf-8").partition("fired up and ready")[0]
        assert logrules.explain(RULES, boot) == ()


def test_what_kills_comes_first_and_a_repeated_line_is_counted() -> None:
    text = "\n".join(rule.sample for rule in RULES for _ in range(3))
    found = logrules.explain(RULES, text)
    assert {one.count for one in found} == {3}
    assert (found[0].rule.blames, found[-1].rule.blames) == ("death", "nothing")


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ('"broke"', '"bro(ke"',
         "rules/log.yaml:2: one: the pattern cannot be read: missing ), unterminated subpattern at position 3\n"
         "  hint: Python's syntax, \\\\ for a \\"),
        ('sample: "it broke"', 'sample: "fine"',
         "rules/log.yaml:6: one: the pattern does not find the sample\n  hint: correct one of the two"),
        ('"burnt"', '"it"', "rules/log.yaml:8: two: finds the sample of one, too\n  hint: make it narrower"),
        ('blames: "image"', 'blames: "fate"',
         "rules/log.yaml:9: two: blames: 'fate' is not one of the choices\n  hint: choices: "),
        ('  cure: "put it out"\n', "", "rules/log.yaml:7: two: the key 'cure' is missing\n  hint: add `cure:`"),
        ('two:\n', 'two: "x"\nthree:\n', "rules/log.yaml:7: two: must be a mapping\n  hint: write `key: value`"),
    ],
)  # fmt: skip
def test_a_bad_rule_is_told_with_its_line(tmp_path: Path, old: str, new: str, expected: str) -> None:
    assert old in GOOD
    (tmp_path / "rules").mkdir()
    (tmp_path / logrules.FILE).write_text(GOOD.replace(old, new), encoding="utf-8")
    found = [str(problem) for problem in logrules.problems(tmp_path)]
    assert found
    assert found[0].startswith(expected)
    with pytest.raises(UserError):
        logrules.load(tmp_path)


def test_good_rules_have_no_problem(tmp_path: Path) -> None:
    (tmp_path / "rules").mkdir()
    (tmp_path / logrules.FILE).write_text(GOOD, encoding="utf-8")
    assert logrules.problems(tmp_path) == []
