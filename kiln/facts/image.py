"""Facts of an image, known before it is pulled: its labels, its digest, its size."""

from __future__ import annotations

from collections.abc import Mapping

from kiln.facts.reading import Fact


class ImageFacts(Fact):
    """What an image says of itself. `arch` is its GPU target as FlashInfer spells it: "12.0f"; `cuda` is the newest
    CUDA of its programs: that of the kernels, where another than torch's compiled them."""

    ref: str
    digest: str | None = None
    size_bytes: int | None = None
    plan: str | None = None
    gpu: str | None = None
    arch: str | None = None
    cuda: str | None = None
    labels: dict[str, str]

    @property
    def compute_capability(self) -> str | None:
        """Return the target without the letter of its form: "12.0"."""
        return self.arch.rstrip("abcdefghijklmnopqrstuvwxyz") if self.arch else None


def from_labels(
    labels: Mapping[str, str], *, ref: str, digest: str | None = None, size_bytes: int | None = None
) -> ImageFacts:
    """Read what kiln's labels say; an image of another maker has none of it."""
    return ImageFacts(
        ref=ref,
        digest=digest,
        size_bytes=size_bytes,
        plan=labels.get("kiln.plan"),
        gpu=labels.get("kiln.gpu"),
        arch=labels.get("kiln.arch"),
        cuda=labels.get("kiln.toolkit") or labels.get("kiln.cuda"),
        labels=dict(sorted(labels.items())),
    )
