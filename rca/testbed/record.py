"""What a capture saw, before it becomes a window and a label."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from rca.arrays import FloatArray
from rca.robust import nan_median
from rca.testbed.probe import Capabilities
from rca.testbed.process import Exit
from rca.testbed.ranks.shared import Row
from rca.testbed.sampling.gpu_watch import GpuSeen
from rca.testbed.sampling.series import Sample
from rca.testbed.scenario import Fault


@dataclass(frozen=True)
class Acted:
    """What really happened of a fault.

    Attributes
    ----------
    first_step : int
        The step in which it was fully there.
    last_step : int or None
        The last step it touched; None where it lasted to the end.
    """

    fault: Fault
    first_step: int
    last_step: int | None


@dataclass(frozen=True)
class Record:
    """Raw results of a run.

    Attributes
    ----------
    rows : list of ndarray of shape (n_steps, len(Row))
        Per rank, on the monotonic clock; NaN where not reached.
    samples : list of Sample
    exits : list of Exit
        Processes of ranks that ended before their time, in order.
    acted : list of Acted
    unix_offset : float
        Unix time minus monotonic time, seconds.
    stranger_share : float
        Share of all CPU time that processes outside the testbed used.
    gpus : list of GpuSeen
        One per GPU rank.
    pace : ndarray of shape (len(Pace),) or None
        What the first GPU rank found out before the job; None without one.
    """

    rows: list[FloatArray]
    samples: list[Sample]
    exits: list[Exit]
    acted: list[Acted]
    unix_offset: float
    stranger_share: float
    permitted: Capabilities
    gpus: list[GpuSeen] = field(default_factory=list)
    pace: FloatArray | None = None

    def step_seconds(self) -> FloatArray:
        """Length of each step, shape (n_steps,): median over ranks, NaN where nobody finished it."""
        return nan_median(np.array([rows[:, Row.STEP] for rows in self.rows]))
