"""Rules on Dockerfiles and recipe scripts: nothing hides a failure, moves, or is forced without a reason."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from kiln.errors import Problem

_TOOLS = r"\b(?:pip3?|uv|git|patch)\b"
_SILENCED = r"(?:2|&)>>?\s*(?:/dev/null|&-)|>\s*/dev/null\s+2>&1"
# One simple command of a shell line, up to what joins it to the next.
_COMMAND = r"(?:(?!&&|\|\||;).)*"


@dataclass(frozen=True)
class Rule:
    """A pattern over one logical line (continuations joined, comments gone)."""

    name: str
    pattern: re.Pattern[str]
    hint: str


def _rule(name: str, pattern: str, hint: str) -> Rule:
    return Rule(name, re.compile(pattern, re.DOTALL), hint)


RULES = (
    _rule("an error that is swallowed", r"\|\|\s*(?:true|:|exit\s+0|echo\b[^&|;]*)\s*(?:[;&|)]|$)",
          "let it fail, or test for the one case that is meant"),
    _rule("errors of pip, git or patch sent away", rf"{_TOOLS}(?:(?!&&|\|\||;).)*?(?:{_SILENCED})",
          "leave its words in the log"),
    _rule("`;` after git", rf"\bgit\s{_COMMAND};", "join with &&: what follows runs although git failed"),
    _rule("an export that masks a failure", r"\bexport\s+\w+=[\"']?(?:\$\(|`)", "assign first, export after"),
    _rule("a tag that moves", r"(?:^|[\s=])[\w./-]+:(?:latest|main|master|nightly|edge|stable)(?![\w.-])",
          "name the digest: image@sha256:…"),
    _rule("a branch", r"\bgit\s+(?:checkout|switch|pull|clone\b.*(?:--branch|-b)|reset\s+--hard)\s+(?:origin/)?"
          r"(?:main|master|HEAD)\b|git\+\S+@(?:main|master|HEAD)\b|archive/(?:refs/heads/)?(?:main|master)\.",
          "name a commit, all forty digits of it"),
    _rule("a clone", r"\bgit\s+clone\b", "sources come from the store, by hash"),
    _rule("a script from the network", r"\b(?:curl|wget)\b[^|]*\|\s*(?:ba|da)?sh\b", "put the file into the store"),
    _rule("a package index", r"--(?:extra-)?index-url|--find-links[ =]http", "wheels come from the store"),
    _rule("FlashInfer's version check switched off", r"\bFLASHINFER_DISABLE_VERSION_CHECK\b",
          "make the versions agree: the check is what finds a foreign cubin or cache package"),
)  # fmt: skip
_FORCED = re.compile(r"--force-reinstall\b")
_FORCED_REASON = re.compile(r"#\s*force-reinstall: \S+")
_FROM = re.compile(r"FROM\s+(?:--\S+\s+)*(?P<image>\S+)(?:\s+(?:AS|as)\s+(?P<stage>\S+))?")


def problems(name: str, text: str) -> list[Problem]:
    """Return every breach of a rule with its line; `name` is the file's, for the messages."""
    found = [*_breaches(name, text), *_unpinned(name, text)]
    return sorted(found)


def _breaches(name: str, text: str) -> Iterator[Problem]:
    for number, line, comments in _logical(text):
        for rule in RULES:
            if match := rule.pattern.search(line):
                at = number + line[: match.start()].count("\n")
                yield Problem(f"{name}:{at}", f"{rule.name}: {match[0].strip()}", rule.hint)
        if (match := _FORCED.search(line)) and not _FORCED_REASON.search(comments):
            at = number + line[: match.start()].count("\n")
            hint = "say why above it: `# force-reinstall: …`"
            yield Problem(f"{name}:{at}", "a forced reinstallation without a reason: --force-reinstall", hint)


def _unpinned(name: str, text: str) -> Iterator[Problem]:
    """Yield each base that is neither a stage, a build argument nor a digest."""
    stages: set[str] = set()
    for number, line, _ in _logical(text):
        match = _FROM.match(line)
        if not match:
            continue
        image = match["image"]
        if (
            image not in stages
            and image != "scratch"
            and "$" not in image
            and "{{" not in image
            and "@sha256:" not in image
        ):
            yield Problem(f"{name}:{number}", f"a base without a digest: {image}", "name it: image@sha256:…")
        if match["stage"]:
            stages.add(match["stage"])


def _logical(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield each logical line: its first number, its text (physical lines kept apart), the comments above and in it."""
    start, parts, comments = 1, list[str](), ""
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("#"):
            comments += line + "\n"
            parts += [""] if parts else []
            continue
        start = start if parts else number
        parts.append(line.rstrip().removesuffix("\\"))
        if not line.rstrip().endswith("\\"):
            yield start, "\n".join(parts), comments
            parts, comments = [], ""
    if parts:
        yield start, "\n".join(parts), comments
