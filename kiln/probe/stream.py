"""One generation over /generate as a stream, so that a stall shows while it lasts."""

from __future__ import annotations

import http.client
import json
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from . import health


@dataclass
class Answer:
    """What came of one request. `gap_s` is the longest wait for anything, the first token's included."""

    count: int = 0
    tokens: list[int] = field(default_factory=list)
    text: str = ""
    first_s: float = 0.0
    gap_s: float = 0.0
    seconds: float = 0.0
    not_finite: int = 0
    stalled: bool = False
    error: str = ""


def generate(
    words: Sequence[str], prompt: list[int] | str, tokens: int, stall_s: float, *,
    logprobs: bool = False, ignore_eos: bool = True, left_s: float = 3600.0,
) -> Answer:  # fmt: skip
    """Ask the launcher with these words for `tokens` tokens, greedily; a wait of `stall_s` ends the request."""
    sampling = {"max_new_tokens": tokens, "temperature": 0, "ignore_eos": ignore_eos}
    key = "text" if isinstance(prompt, str) else "input_ids"
    body = {key: prompt, "sampling_params": sampling, "return_logprob": logprobs, "stream": True}
    answer, began = Answer(), time.monotonic()
    connection = http.client.HTTPConnection(
        health.option(words, "127.0.0.1", "--host"), health.port_of(words), timeout=min(stall_s, left_s)
    )
    try:
        headers = {
            "Content-Type": "application/json",
            "Authorization": f"Bearer {health.option(words, '', '--api-key')}",
        }
        connection.request("POST", "/generate", json.dumps(body), headers)
        _read(connection.getresponse(), answer, began, began + left_s)
    except (OSError, ValueError, LookupError, TypeError, http.client.HTTPException) as error:
        answer.stalled = "timed out" in str(error)  # a type of its own before Python 3.10
        waited = min(stall_s, left_s)
        answer.gap_s = max(answer.gap_s, waited if answer.stalled else 0.0)
        answer.error = f"no token for {waited:.0f} s" if answer.stalled else f"{type(error).__name__}: {error}"[:200]
    finally:
        connection.close()
    answer.seconds = time.monotonic() - began
    if not answer.error and answer.count != tokens and ignore_eos:
        answer.error = f"{answer.count} tokens instead of {tokens}"
    return answer


def _read(response: http.client.HTTPResponse, answer: Answer, began: float, end: float) -> None:
    """Read events until the last; each tells all that came so far."""
    if response.status != 200:
        answer.error = f"status {response.status}: {response.read(200).decode(errors='replace')}"
        return
    last = began
    for line in response:
        if not line.startswith(b"data:"):
            continue
        if line[5:].strip() == b"[DONE]":
            return
        now = time.monotonic()
        answer.gap_s, last = max(answer.gap_s, now - last), now
        answer.first_s = answer.first_s or now - began
        _take(json.loads(line[5:]), answer)
        if answer.error or now > end:
            answer.error = answer.error or "the time was over"
            return


def _take(event: dict[str, Any], answer: Answer) -> None:
    if "error" in event:
        answer.error = str(event["error"])[:200]
        return
    meta = event["meta_info"]
    answer.count, answer.text = int(meta["completion_tokens"]), str(event.get("text") or "")
    rows = meta.get("output_token_logprobs") or []
    answer.tokens = [int(row[1]) for row in rows]
    answer.not_finite = sum(1 for row in rows if not isinstance(row[0], (int, float)) or not math.isfinite(row[0]))
