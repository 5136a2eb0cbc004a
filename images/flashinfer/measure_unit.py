#!/usr/bin/env python3
"""A compiler launcher that appends CPU seconds and peak memory to a file: `measure_unit.py FILE COMMAND…`."""

import json
import resource
import subprocess
import sys
import time
from pathlib import Path

log, command = sys.argv[1], sys.argv[2:]
started = time.monotonic()
status = subprocess.call(command)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
line = {
    "output": command[command.index("-o") + 1],
    "core_s": round(used.ru_utime + used.ru_stime, 2),
    "wall_s": round(time.monotonic() - started, 2),
    "peak_mb": used.ru_maxrss // 1024,
    "status": status,
}
with Path(log).open("a", encoding="utf-8") as out:
    out.write(json.dumps(line) + "\n")
sys.exit(status if status >= 0 else 128 - status)
