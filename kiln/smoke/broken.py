"""The receipt of a node whose process wrote none: what it had found so far, and why it went no further."""

from __future__ import annotations

from pydantic import ValidationError

from kiln.receipt import Outcome, Receipt
from kiln.smoke.draft import PROCESS, Draft
from kiln.smoke.job import Job
from kiln.verdict import Verdict

_CURE = "run inv smoke again for this node; if it comes back, report it with the log"


def broken(job: Job, why: str, log: str) -> Receipt:
    """Return the draft, or an empty one, with a failure that says what happened to the process."""
    tail = " | ".join(line.strip() for line in log.strip().splitlines()[-3:])[-400:]
    cause = f"the process that looked at the node broke down, or hung: {tail or 'it said nothing'}"
    failure = Outcome(check=PROCESS, verdict=Verdict.FAIL, message=why, cause=cause, cure=_CURE)
    found = _draft(job)
    return found.model_copy(update={"verdict": Verdict.FAIL, "outcomes": (failure, *found.outcomes)})


def _draft(job: Job) -> Receipt:
    try:
        return Receipt.model_validate_json(job.draft.read_bytes())
    except (OSError, ValidationError):
        return Draft(job).receipt()
