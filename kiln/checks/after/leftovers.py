"""After the load no server and no shared memory of NCCL is left over."""

from __future__ import annotations

from kiln.checks.each import again
from kiln.checks.preflight import leftovers

judge = again(leftovers.judge)
