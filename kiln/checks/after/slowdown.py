"""After the load no GPU is slowed down by heat or power."""

from __future__ import annotations

from kiln.checks.each import again
from kiln.checks.preflight import slowdown

judge = again(slowdown.judge)
