"""What could not be read of several GPUs, told once with the GPUs that it concerns."""

from __future__ import annotations


class Unread:
    """Collects faults by field; GPUs that lack the same thing for the same reason share one."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.gpus: dict[tuple[str, str], list[int]] = {}

    def add(self, gpu: int, field: str, error: str) -> None:
        """Note that a field of a GPU could not be read."""
        self.gpus.setdefault((field, error), []).append(gpu)

    def faults(self) -> list[dict[str, str]]:
        """Return the faults, in the order in which they came."""
        return [
            {"source": f"{self.source} {field}", "error": f"{error} (GPU {_numbers(gpus)})"}
            for (field, error), gpus in self.gpus.items()
        ]


def _numbers(gpus: list[int]) -> str:
    return ", ".join(str(gpu) for gpu in gpus)
