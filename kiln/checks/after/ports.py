"""After the load the ports are free again."""

from __future__ import annotations

from kiln.checks.each import again
from kiln.checks.preflight import ports

judge = again(ports.judge)
