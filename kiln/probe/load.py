"""Load a server: the same prompt twice, rounds of mixed requests, known answers; how fast, and what it compiled."""

from __future__ import annotations

import argparse
import json
import random
import statistics
import threading
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from . import answers, compiling, health, nvml, sampler, stream

INPUTS = (1, 3, 17, 64, 129, 256, 511, 1024)
OUTPUTS = (1, 8, 16, 33, 64, 128)
SAME_TOKENS = 64
_INFO_S = 60.0
_EVERY_S = 0.5


def facts(argv: list[str], faults: list[dict[str, str]]) -> dict[str, Any]:
    """Return what came of it; `rounds` is empty if there is no server. Rates are output tokens per second."""
    options = _parse(argv)
    server = health.find_server(health.processes(), options.port)
    words = server.argv if server else ()
    info = _info(words, faults) if server else None
    end = time.monotonic() + options.deadline
    with compiling.watching(options.port) as compilers, _power(faults) as samples:
        same = _same(words, options.stall) if server else None
        rounds = [_round(words, number, options, end) for number in range(options.rounds)] if server else []
        known = answers.ask(words, info or {}, options.stall, end) if server and options.real else None
    return {
        "resolved": info and _scalars(info), "same": same, "rounds": rounds, "answers": known,
        "compiled": compilers.counted(), "samples": samples,
    }  # fmt: skip


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="load")
    parser.add_argument("--port", type=int)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--requests", type=int, default=64, help="of each round, all at once")
    parser.add_argument("--longest", type=int, default=max(INPUTS), help="tokens of the longest prompt")
    parser.add_argument("--stall", type=float, default=120.0, help="seconds that a request may be without a token")
    parser.add_argument("--deadline", type=float, default=900.0, help="no round begins after it")
    parser.add_argument("--real", action="store_true", help="the weights are real: ask what can be known")
    return parser.parse_args(argv)


def _info(words: Sequence[str], faults: list[dict[str, str]]) -> dict[str, Any] | None:
    status, text, _ = health.ask(words, "GET", "/server_info", None, _INFO_S)
    try:
        found = json.loads(text) if status == 200 else None
    except ValueError:
        found = None
    if not isinstance(found, dict):
        faults.append({"source": "/server_info", "error": f"status {status}"})
        return None
    return found


def _scalars(info: dict[str, Any]) -> dict[str, str]:
    """Return the settings that the server resolved, as text, without what is a secret or not one value."""
    plain = {key: str(value) for key, value in sorted(info.items()) if isinstance(value, (str, int, float, bool))}
    return {key: value for key, value in plain.items() if "key" not in key and key != "launch_command"}


def _prompt(dice: random.Random, length: int) -> list[int]:
    """Return token ids that every vocabulary of a thousand has."""
    return [dice.randrange(5, 1000) for _ in range(length)]


def _same(words: Sequence[str], stall_s: float) -> dict[str, Any]:
    """Send one prompt twice, the second time over the cached prefix; returns how many tokens agree from the start."""
    prompt = _prompt(random.Random(1), 96)
    first, second = (stream.generate(words, prompt, SAME_TOKENS, stall_s, logprobs=True) for _ in range(2))
    pairs = list(zip(first.tokens, second.tokens))
    agree = next((index for index, (one, other) in enumerate(pairs) if one != other), len(pairs))
    return {"tokens": SAME_TOKENS, "agree": agree, "error": first.error or second.error}


def _plan(number: int, requests: int, longest: int) -> list[tuple[list[int], int]]:
    """Return a round's prompts, each with the number of tokens to ask for: mixed, and the same in every run."""
    dice = random.Random(number)
    return [(_prompt(dice, min(dice.choice(INPUTS), longest)), dice.choice(OUTPUTS)) for _ in range(requests)]


def _round(words: Sequence[str], number: int, options: argparse.Namespace, end: float) -> dict[str, Any]:
    """Send a round's requests at once and wait for all."""
    plan = _plan(number, options.requests, options.longest)
    left_s = end - time.monotonic()
    if left_s <= 0:
        return {"requests": len(plan), "error": "the deadline had passed"}
    found: list[stream.Answer] = []
    began = time.monotonic()

    def one(index: int, prompt: list[int], tokens: int) -> None:
        found.append(stream.generate(words, prompt, tokens, options.stall, logprobs=index % 2 == 0, left_s=left_s))

    threads = [threading.Thread(target=one, args=(index, *each), daemon=True) for index, each in enumerate(plan)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, left_s + options.stall - (time.monotonic() - began)))
    return _counted(list(found), plan, time.monotonic() - began)


def _counted(found: list[stream.Answer], plan: list[tuple[list[int], int]], seconds: float) -> dict[str, Any]:
    good = [one for one in found if not one.error]
    first, gaps = sorted(one.first_s for one in good), [one.gap_s for one in found]
    errors = [one.error for one in found if one.error] + ["no end"] * (len(plan) - len(found))
    tokens = sum(one.count for one in found)
    return {
        "requests": len(plan), "completed": len(good), "seconds": round(seconds, 3),
        "input_tokens": sum(len(prompt) for prompt, _ in plan), "output_tokens": tokens,
        "tok_s": round(tokens / seconds, 1), "stalled": sum(one.stalled for one in found),
        "not_finite": sum(one.not_finite for one in found), "errors": sorted(set(errors))[:8],
        "first_token_median_s": round(statistics.median(first), 3) if first else None,
        "first_token_worst_s": round(first[-1], 3) if first else None,
        "longest_gap_s": round(max(gaps, default=0.0), 3), "error": None,
    }  # fmt: skip


def _power(faults: list[dict[str, str]]) -> Any:
    """Sample all GPUs of NVML until the block ends."""
    lib = nvml.connect(faults)
    count = (sampler.value(lib, lib.nvmlDeviceGetCount) or 0) if lib else 0
    handles = [sampler.value(lib, partial(lib.nvmlDeviceGetHandleByIndex, index)) for index in range(count)]
    uuids = [handle and sampler.value(lib, partial(lib.nvmlDeviceGetUUID, handle)) for handle in handles]
    gpus = [{"gpu": index, "uuid": uuid} for index, uuid in enumerate(uuids) if uuid]
    return sampler.sampling(lib, gpus, _EVERY_S, lambda _sample: None)
