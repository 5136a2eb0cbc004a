"""Leave the node as it was, and say what could not be removed and how to do it by hand."""

from __future__ import annotations

from testinfra.host import Host

from kiln.smoke.connection import NodeLost, TimedOut, of
from kiln.smoke.node import REAPER_EXTRA_S, Opened, close_node
from kiln.verdict import Finding, failed, passed


def tear_down(host: Host, opened: Opened, seconds: float) -> Finding:
    """Remove folder and containers; `seconds` is the run's deadline, after which the node removes them itself."""
    by_hand = f"by hand there: sh {opened.dir}/clean"
    try:
        left = close_node(host, opened)
    except (NodeLost, TimedOut) as error:
        cause = f"the node itself removes folder and containers within {seconds + REAPER_EXTRA_S:.0f} s of its start"
        return failed(f"not removed: {error}", cause=cause, cure=by_hand)
    if left:
        return failed(f"left on the node: {left}", cause="the node refuses to remove it", cure=by_hand)
    counts = of(host).counts
    message = "folder and containers are removed"
    return passed(message, round_trips=counts.round_trips, sent_bytes=counts.sent_bytes)
