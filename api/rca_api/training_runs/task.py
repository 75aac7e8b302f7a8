"""What a worker hands to the process that trains."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict

FILE = "task.json"


class Task(BaseModel):
    """One run, with everything looked up: paths instead of names, defaults filled in.

    Attributes
    ----------
    id : str
        The run's; the version that comes of it has it as a tag, so that it is registered once.
    folder : Path
        The task's own, for what it writes.
    collections : dict of str to Path
        To learn from and be tested on.
    available : dict of str to Path
        Every collection there is; the gate takes those that a version was tested on.
    version : str
        Number of the version to promote.
    patience_seconds : float
        How long a registry that is away is waited for.
    """

    model_config = ConfigDict(frozen=True)

    id: str
    kind: str
    folder: Path
    tracking_uri: str
    processes: int
    cache: Path
    windows: int = 0
    seed: int = 0
    collections: dict[str, Path] = {}
    available: dict[str, Path] = {}
    gate_windows: int
    auto_promote: bool = False
    version: str = ""
    patience_seconds: float

    def write(self) -> None:
        """Put it where `read` finds it."""
        (self.folder / FILE).write_text(self.model_dump_json(), encoding="utf-8")

    @classmethod
    def read(cls, folder: Path) -> Task:
        """Read what `write` wrote."""
        return cls.model_validate_json((folder / FILE).read_bytes())
