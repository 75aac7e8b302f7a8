"""The register of incidents: where their figures are from, how their windows are made, and what is right."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.retold_incidents.expected import Expected
from benchmarks.retold_incidents.jobs import ReportedJob, Timers
from rca.window import Window

#: What is timed and exported in the variants that most incidents have; in others, all is.
TIMERS = {
    "poor": "few, joint",
    "overlapped": "few, backward",
    "events": "few, split",
    "earlier": "few, split",
    "bare": "none, untimed, exporters",
    "steps": "none, untimed, exporters",
    "none": "absent, untimed, exporters",
}


class RetoldReport:
    """One variant of an incident in the making."""

    def __init__(self, name: str, variant: str, timers: Timers, rng: np.random.Generator) -> None:
        self.name, self.variant, self.timers, self.rng = name, variant, timers, rng
        self.retold: ReportedJob | None = None

    def job(self, ranks: int, steps: int, seconds: dict[str, float], **options: Any) -> ReportedJob:
        """The job that the report is about; options are the further fields of `ReportedJob`."""
        self.retold = ReportedJob(self.rng, self.name, self.timers, ranks, steps, seconds, **options)
        return self.retold


@dataclass(frozen=True)
class Retold:
    """One window of an incident with the answers that are right."""

    window: Window
    expected: Expected
    earlier: Window | None = None


@dataclass(frozen=True)
class ReportedIncident:
    """A public report, retold as one window per variant.

    The variants are ``rich`` (with exporters), ``poor`` (step times and few phases), ``events`` (what ended
    the job), ``bare`` (exporters and step times without phases) and others that the maker describes. If it is
    to be ``refused``, an error is the right answer.
    """

    id: str
    source: str
    variants: tuple[str, ...]
    timers: dict[str, str]
    make: Callable[[RetoldReport], Expected]
    refused: bool

    @property
    def held_out(self) -> bool:
        """Half of the incidents, by a hash of the id: no threshold may be tuned on them."""
        return hashlib.sha256(self.id.encode()).digest()[0] % 2 == 1

    @property
    def kind(self) -> str:
        """The module that retells it, such as ``fabric``."""
        return self.make.__module__.rsplit(".", 1)[-1]

    def retell(self, variant: str, seed: int = 0) -> Retold:
        """The window of one variant, the same for the same seed."""
        entropy = int.from_bytes(hashlib.sha256(f"{self.id}/{variant}".encode()).digest()[:8], "big")
        timers = Timers.of(self.timers.get(variant, "all, split, exporters"))
        report = RetoldReport(self.id, variant, timers, np.random.default_rng([seed, entropy]))
        expected = self.make(report)
        job = report.retold
        assert job is not None
        return Retold(job.window(), expected, job.earlier)


#: Every incident by its id, in the order of the modules.
INCIDENTS: dict[str, ReportedIncident] = {}


def incident(
    source: str, variants: str = "rich", *, refused: bool = False, **timers: str
) -> Callable[[Callable[[RetoldReport], Expected]], Callable[[RetoldReport], Expected]]:
    """Register the function below as an incident, whose id is the function's name.

    Parameters
    ----------
    variants : str
        Separated by spaces.
    timers : str
        By variant, what is timed and exported where it differs from `TIMERS`, as `Timers.of` reads it.
    """

    def register(make: Callable[[RetoldReport], Expected]) -> Callable[[RetoldReport], Expected]:
        name = make.__name__.replace("_", "-")
        if name in INCIDENTS:
            raise ValueError(f"two incidents have the id {name}")
        held = TIMERS | timers
        INCIDENTS[name] = ReportedIncident(name, source, tuple(variants.split()), held, make, refused)
        return make

    return register
