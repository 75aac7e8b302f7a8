"""Raw results of a capture, from which its window and its label are built."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from rca.arrays import FloatArray
from rca.lab.testbed.probe import Capabilities
from rca.lab.testbed.process import Exit
from rca.lab.testbed.ranks.shared import Row
from rca.lab.testbed.sampling.gpu_watch import GpuObservation
from rca.lab.testbed.sampling.series import Sample
from rca.lab.testbed.scenario import TestbedFault
from rca.robust import nan_median


@dataclass(frozen=True)
class Acted:
    """The steps in which a fault really acted.

    Attributes
    ----------
    first_step : int
        The fastest rank's step when the fault started.
    last_step : int or None
        The last affected step; None if the fault lasted to the end.
    """

    fault: TestbedFault
    first_step: int
    last_step: int | None


@dataclass(frozen=True)
class CaptureRecord:
    """Raw results of a run.

    Attributes
    ----------
    rows : list of ndarray of shape (n_steps, len(Row))
        Per rank, on the monotonic clock; NaN if not reached.
    exits : list of Exit
        Processes of ranks that ended early, in order.
    unix_offset : float
        Unix time minus monotonic time, seconds.
    foreign_cpu_share : float
        Share of all CPU time that processes outside the testbed used.
    gpus : list of GpuSeen
        One per GPU rank.
    pace : ndarray of shape (len(DevicePace),) or None
        Calibration by the first GPU rank; None without GPUs.
    """

    rows: list[FloatArray]
    samples: list[Sample]
    exits: list[Exit]
    acted: list[Acted]
    unix_offset: float
    foreign_cpu_share: float
    permitted: Capabilities
    gpus: list[GpuObservation] = field(default_factory=list)
    pace: FloatArray | None = None

    def step_seconds(self) -> FloatArray:
        """Seconds of each step, shape (n_steps,): median over ranks, NaN if no rank finished it."""
        return nan_median(np.array([rows[:, Row.STEP] for rows in self.rows]))
