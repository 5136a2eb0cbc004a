"""Every GPU can copy to every other one, and the bytes arrive as they were sent."""

from __future__ import annotations

from collections.abc import Iterator

from kiln.checks import parts
from kiln.checks.each import plural
from kiln.facts import Facts, known
from kiln.facts.fabric import PairCopies, PeersFacts
from kiln.topologies import Topology
from kiln.verdict import Finding, failed, passed, warned

_HOST = (
    "boot with iommu=pt (or iommu=off), switch ACS off on the bridges above the GPUs, "
    "set `options nvidia-uvm uvm_disable_hmm=1`; until then start servers with NCCL_P2P_DISABLE=1 "
    "and --disable-custom-all-reduce"
)


def judge(facts: Facts, topology: Topology) -> Iterator[Finding]:
    """Judge each pair, then all at once; copies that are wrong make models talk nonsense without an error (case D5)."""
    found = parts.peers(facts)
    if found.gpus == 1:
        yield passed("one GPU copies to no other")
        return
    bad = [*_pairs(found), *_at_once(found)]
    if bad:
        yield from bad
        return
    yield passed(f"{plural(len(found.pairs), 'ordered pair')}, and all at once: {_moved(found) / 1e9:.1f} GB verified")
    yield from _access(found)


def _pairs(found: PeersFacts) -> Iterator[Finding]:
    for pair in found.pairs:
        if pair.ended:
            yield _ended(pair)
        elif known(pair.wrong_words, f"the bytes of {pair.label}"):
            share = 4 * (pair.wrong_words or 0) / (pair.bytes or 1)
            yield failed(
                f"{share:.2%} of the bytes arrive wrong",
                pair.label,
                cause="peer copies are damaged or dropped on their way: IOMMU, ACS, a switch, or a broken link",
                cure=_HOST,
                wrong_words=pair.wrong_words or 0,
            )


def _ended(pair: PairCopies) -> Finding:
    assert pair.ended
    known(None if pair.ended.not_run else 1, "peer copies", pair.ended.not_run or "")
    words = f"the copy does not end: {pair.ended.error}" if pair.ended.hung else f"the copy fails: {pair.ended.error}"
    cause = "peer access is redirected to where it never arrives (IOMMU translation, ACS), or a GPU hangs"
    return failed(words, pair.label, cause=cause, cure=_HOST)


def _at_once(found: PeersFacts) -> Iterator[Finding]:
    many = known(found.concurrent, "concurrent peer copies")
    if many.ended and not many.ended.not_run:
        yield failed(
            f"all pairs at once do not end well: {many.ended.error}",
            cause="copies that work one by one collide: a PCIe switch or root complex gives up under load",
            cure="read the kernel log for AER and Xid; update the firmware of the switches; " + _HOST,
        )
    elif many.wrong_words:
        yield failed(
            f"bytes arrive wrong when all pairs copy at once: {', '.join(many.wrong_pairs)}",
            cause="copies that are right one by one are damaged under load: a PCIe switch or root complex",
            cure="update the firmware of the board and of the switches; " + _HOST,
            wrong_words=many.wrong_words,
        )


def _moved(found: PeersFacts) -> int:
    return sum(pair.bytes or 0 for pair in found.pairs)


def _access(found: PeersFacts) -> Iterator[Finding]:
    closed = [pair for pair in found.pairs if pair.access is False]
    if closed:
        yield warned(
            f"no peer access for {plural(len(closed), 'pair')}: " + ", ".join(pair.label for pair in closed[:4]),
            cause="the driver lets these copies go through host memory: BAR1 too small, another chipset, or its option",
            cure="switch Resizable BAR on in the BIOS; look at `nvidia-smi topo -p2p w`",
        )
