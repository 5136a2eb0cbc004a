"""A job: everything that the process of one node needs to know, as one JSON file."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict

# Phases that put load on GPUs or start containers; preflight goes before them and `after` follows them in any case.
LOADING = ("container", "fabric", "numerics", "server")
PORT = 30000


class Job(BaseModel):
    """One node's run. An empty string means "not given"; `host` empty: this machine. `root`: where topologies and
    receipts lie.

    `kiln`: the commit of this checkout. `labels`, `size_bytes`: of the image, as its registry tells them. `seconds`:
    after that long no further check is begun.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    root: Path
    folder: Path
    host: str = ""
    ssh_config: Path | None = None
    kiln: str = ""
    image: str = ""
    digest: str = ""
    labels: dict[str, str] = {}
    size_bytes: int | None = None
    image_fault: str = ""
    preset: str = ""
    topology: str = ""
    weights: str = ""
    python: str = ""
    phases: tuple[str, ...]
    seconds: float

    @property
    def node(self) -> str:
        """The node's name for people."""
        return self.host or "this node"

    @property
    def draft(self) -> Path:
        """The receipt as far as it has come."""
        return self.folder / "draft.json"

    @property
    def now(self) -> Path:
        """One line: what is being done."""
        return self.folder / "now"

    @property
    def receipt(self) -> Path:
        """One line: where the receipt was written."""
        return self.folder / "receipt"

    @property
    def junit(self) -> Path:
        return self.folder / "junit.xml"

    @property
    def log(self) -> Path:
        return self.folder / "pytest.log"

    def write(self) -> Path:
        """Write the job's file; returns it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        file = self.folder / "job.json"
        file.write_text(self.model_dump_json(indent=1) + "\n")
        return file


def read(file: Path) -> Job:
    """Read a job's file."""
    return Job.model_validate_json(file.read_text())
