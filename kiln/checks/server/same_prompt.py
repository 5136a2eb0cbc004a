"""The same prompt twice gives the same tokens, although the second time its prefix is cached."""

from __future__ import annotations

from collections.abc import Iterator

from kiln.facts import Facts, known
from kiln.topologies import Topology
from kiln.verdict import Finding, failed, passed, warned


def judge(facts: Facts, topology: Topology) -> Iterator[Finding]:
    """Judge from where on the two differ. Made-up weights have many tokens of nearly the same probability."""
    server = known(facts.server, "the server")
    load = known(server.load, "the load", "the server did not become ready")
    same = known(load.same, "the answer to one prompt twice")
    if same.error:
        yield failed(f"no answer: {same.error}", cause="see server/requests", cure="read the server's log")
    elif same.agree == same.tokens or not server.weights:
        kind = "" if server.weights else ", with made-up weights, of which nothing follows"
        yield passed(f"{same.agree} of {same.tokens} tokens agree{kind}", agree=same.agree)
    elif same.agree == 0:
        yield failed(
            "the first token already differs",
            cause="the cached prefix is read wrong: FP8 scales of the KV cache, or an attention backend",
            cure="--disable-radix-cache must mend it; then choose another KV cache type or attention backend",
            agree=0,
        )
    else:
        yield warned(
            f"{same.agree} of {same.tokens} tokens agree",
            cause="batches of other sizes are summed in another order; a wrong cached prefix looks the same",
            cure="compare with --disable-radix-cache",
            agree=same.agree,
        )
