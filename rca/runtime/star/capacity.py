"""Reports that a machine can take from workers beside its other tasks.

Asynchronous modes send more reports per second, and so need more CPU and bandwidth of the parameter server
than synchronous training. On a busy machine they would make stragglers of the tasks beside it. STAR leaves
those tasks what they use.

References
----------
.. [1] STAR, arXiv 2512.09685: overload of servers and co-located tasks.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from rca.errors import InvalidInput


@dataclass(frozen=True)
class TaskLoad:
    """What a task takes of a machine, or a machine has.

    Attributes
    ----------
    cpu : float
        Busy processors; of a report, processor-seconds.
    bandwidth : float
        Bytes per second of the link, in its busier direction; of a report, bytes.
    """

    cpu: float
    bandwidth: float

    def __post_init__(self) -> None:
        for value in (self.cpu, self.bandwidth):
            if not (np.isfinite(value) and value >= 0):
                raise InvalidInput(
                    f"a task takes {self.cpu} processors and {self.bandwidth} bytes per second"
                )


def max_reports(machine: TaskLoad, others: Iterable[TaskLoad], report: TaskLoad) -> float:
    """Reports per second that a server can take without slowing the tasks beside it.

    Parameters
    ----------
    machine : TaskLoad
        All that it has.
    others : iterable of TaskLoad
        Tasks on it, without the server.
    report : TaskLoad
        What the server needs for one report, its answer included.

    Returns
    -------
    float
        0 if the other tasks leave nothing; infinite if a report needs nothing.
    """
    taken = list(others)
    left = []
    for name in ("cpu", "bandwidth"):
        free = getattr(machine, name) - sum(getattr(task, name) for task in taken)
        need = getattr(report, name)
        left.append(max(free, 0.0) / need if need else np.inf)
    return float(min(left))
