"""After the load the GPUs are idle again."""

from __future__ import annotations

from kiln.checks.each import again
from kiln.checks.preflight import idle

judge = again(idle.judge)
