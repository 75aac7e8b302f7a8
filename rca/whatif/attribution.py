"""What each component of a job costs: the values that a what-if result is made of."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np

from rca.arrays import FloatArray, IntArray

Pattern = Literal["worker", "stage", "sequence_length", "garbage_collection"]


@dataclass(frozen=True)
class Decomposition:
    """Step times of scenarios in which one component keeps its trace times and the rest is ideal.

    Attributes
    ----------
    labels : tuple
        Name or number of each component.
    seconds : ndarray of shape (n_components, n_steps)
    """

    labels: tuple[str | int, ...]
    seconds: FloatArray

    def slowdown(self, ideal: FloatArray) -> dict[str | int, float]:
        """Ratio of means over steps, largest first."""
        ratios = self.seconds.mean(axis=1) / ideal.mean()
        order = np.argsort(-ratios, kind="stable")
        return {self.labels[k]: float(ratios[k]) for k in order}

    def step_slowdown(self, ideal: FloatArray, step: int) -> dict[str | int, float]:
        """Ratio at one step (by position), largest first."""
        ratios = self.seconds[:, step] / ideal[step]
        order = np.argsort(-ratios, kind="stable")
        return {self.labels[k]: float(ratios[k]) for k in order}


@dataclass(frozen=True)
class SlowdownFinding:
    """A named pattern of a slow job.

    Attributes
    ----------
    ranks : tuple of int
        Affected ranks; empty if the whole job is affected.
    share : float
        Share of the slowdown that disappears without the pattern.
    text : str
        One sentence for the report.
    """

    pattern: Pattern
    ranks: tuple[int, ...]
    share: float
    seconds_per_step: float
    evidence: dict[str, float] = field(default_factory=dict)
    text: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self) | {"ranks": list(self.ranks)}


@dataclass(frozen=True)
class WorkerSlowdowns:
    """Slowdown that each worker alone causes.

    Attributes
    ----------
    rank, data_rank, stage : ndarray of shape (n_workers,), int
    seconds : ndarray of shape (n_workers, n_steps)
        Step time with only this worker at its trace times.
    approximate : ndarray of shape (n_workers,)
        The published approximation, min(S of its data rank, S of its stage).
    """

    rank: IntArray
    data_rank: IntArray
    stage: IntArray
    seconds: FloatArray = field(repr=False)
    approximate: FloatArray = field(repr=False)

    def slowdown(self, ideal: FloatArray) -> FloatArray:
        """Exact slowdown S_w of every worker."""
        ratios: FloatArray = self.seconds.mean(axis=1) / ideal.mean()
        return ratios


@dataclass(frozen=True)
class Share:
    """Share of the slowdown that a set of workers causes.

    Attributes
    ----------
    published, exact : float or None
        Share of the set chosen by the published scores, and of the set chosen by exact scores.
        None if the loss is zero or within noise.
    ranks : tuple of int
        Ranks of the exact set.
    without : ndarray of shape (n_steps,), seconds, or None
        Step times with the exact set ideal and all other workers as traced.
    """

    published: float | None
    exact: float | None
    ranks: tuple[int, ...]
    without: FloatArray | None = field(default=None, repr=False, compare=False)
