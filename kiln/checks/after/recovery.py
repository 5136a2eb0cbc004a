"""After the load the driver asks for no recovery of a GPU."""

from __future__ import annotations

from kiln.checks.each import again
from kiln.checks.preflight import recovery

REQUIRED = recovery.REQUIRED
judge = again(recovery.judge)
