"""Run one probe by name and print what it found: `python3 probe.pyz node --cache /models`."""

from __future__ import annotations

import importlib
import json
import sys
import time

VERSION = 1


def main(argv: list[str]) -> int:
    """Print {"probe", "version", "seconds", "faults", "facts"}; a probe is a module with `facts(argv, faults)`."""
    name, rest = argv[0], argv[1:]
    began = time.monotonic()
    faults: list[dict[str, str]] = []
    module = importlib.import_module(f"{__package__}.{name}")
    found = module.facts(rest, faults)
    seconds = round(time.monotonic() - began, 3)
    print(json.dumps({"probe": name, "version": VERSION, "seconds": seconds, "faults": faults, "facts": found}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
