"""Questions with known answers, for real weights: a server that computes wrong answers fluently, or in one letter."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from . import stream

TOKENS = 64
LONG_TOKENS = 32768
# Continuations that every language model of the last years makes, whether it was taught to chat or not.
KNOWN = (
    ("The capital of France is", "Paris"),
    ("Monday, Tuesday, Wednesday,", "Thursday"),
    ("1, 2, 3, 4, 5, 6, 7,", "8"),
    ("Question: What is 17 + 25?\nAnswer:", "42"),
    ("The chemical formula of water is", "H2O"),
    ("def add(a, b):\n    return", "a + b"),
)
_FILLER = "The train was late again, and nobody on the platform was surprised. "
_SECRET = "The code word of this text is marigold. "
_SUBSCRIPT = str.maketrans("₀₁₂₃₄₅₆₇₈₉", "0123456789")


def ask(words: Sequence[str], info: dict[str, Any], stall_s: float, end: float) -> list[dict[str, Any]]:
    """Ask each question, and one over 32k tokens where the context has room for it."""
    asked = [*KNOWN, *_long(info)]
    return [_one(words, prompt, wanted, stall_s) for prompt, wanted in asked if time.monotonic() < end]


def _long(info: dict[str, Any]) -> list[tuple[str, str]]:
    room = info.get("max_req_input_len")
    if not isinstance(room, int) or room < LONG_TOKENS * 1.25:
        return []
    sentences = LONG_TOKENS // 14  # the filler has about 14 tokens in every tokenizer, rather more than fewer
    text = _FILLER * (sentences // 3) + _SECRET + _FILLER * (2 * sentences // 3)
    return [(f"{text}\nQuestion: What is the code word of this text?\nAnswer: The code word is", "marigold")]


def _one(words: Sequence[str], prompt: str, wanted: str, stall_s: float) -> dict[str, Any]:
    found = stream.generate(words, prompt, TOKENS, stall_s, logprobs=True)
    return {
        "prompt": prompt[-60:], "prompt_length": len(prompt), "wanted": wanted, "got": found.text[:300],
        "found": wanted.lower() in found.text.translate(_SUBSCRIPT).lower(), "tokens": found.count,
        "repetition": repetition(found.tokens), "strange": strange(found.text), "not_finite": found.not_finite,
        "error": found.error or None,
    }  # fmt: skip


def repetition(tokens: Sequence[int]) -> float | None:
    """Return the share of the commonest token: 1.0 is one token for ever; None without tokens."""
    return round(Counter(tokens).most_common(1)[0][1] / len(tokens), 3) if tokens else None


def strange(text: str) -> float | None:
    """Return the share of characters that no text has: replacement and control characters; None without text."""
    bad = sum(1 for one in text if one == "\ufffd" or (not one.isprintable() and one not in "\n\t\r"))
    return round(bad / len(text), 3) if text else None
