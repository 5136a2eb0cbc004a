"""Known answers come, in a readable text that does not repeat itself."""

from __future__ import annotations

from collections.abc import Iterator

from kiln.facts import Facts, known
from kiln.facts.server import KnownAnswer
from kiln.topologies import Topology
from kiln.verdict import Finding, failed, not_run, passed, warned

REQUIRED = False
# One token for ever, `!!!!`, is 1.0; prose of 64 tokens stays below 0.2, a list of numbers below 0.5.
MOST_REPETITION = 0.7
MOST_STRANGE = 0.05


def judge(facts: Facts, topology: Topology) -> Iterator[Finding]:
    """Judge what a model with real weights said; wrong kernels, P2P or KV scales make word salad of it (D5, E14)."""
    server = known(facts.server, "the server")
    load = known(server.load, "the load", "the server did not become ready")
    if load.answers is None:
        yield not_run("the weights are made up", cure="--weights DIR", required=False)
        return
    if not load.answers:
        yield not_run("no question was asked before the deadline", cure="a longer --deadline", required=True)
        return
    bad = [(one, fault) for one in load.answers if (fault := _fault(one))]
    for one, fault in bad:
        yield failed(
            f"{fault}: {one.got[:120]!r}", f"…{one.prompt}",
            cause="kernels, peer copies or the scales of the KV cache compute wrong",
            cure="inv smoke --phases fabric,numerics; --disable-custom-all-reduce; a bf16 KV cache where the model can",
        )  # fmt: skip
    missed = [one for one in load.answers if not one.found and not _fault(one)]
    for one in missed:
        yield warned(
            f"{one.wanted!r} is not in {one.got[:120]!r}", f"…{one.prompt}",
            cause="the model does not know it, or computes slightly wrong",
            cure="compare with another backend; of several misses the second is likely",
        )  # fmt: skip
    if len(missed) * 2 > len(load.answers):
        yield failed(f"{len(missed)} of {len(load.answers)} known answers did not come",
                     cause="a readable text of wrong content", cure="inv smoke --phases fabric,numerics")  # fmt: skip
    if not bad and not missed:
        yield passed(f"{len(load.answers)} known answers", answers=len(load.answers))


def _fault(one: KnownAnswer) -> str:
    if one.error:
        return one.error
    if one.not_finite:
        return f"{one.not_finite} log probabilities are not finite"
    if (one.repetition or 0) > MOST_REPETITION:
        return f"one token makes {one.repetition:.0%} of the answer"
    return f"{one.strange:.0%} of the characters are none" if (one.strange or 0) > MOST_STRANGE else ""
