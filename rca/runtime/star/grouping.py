"""Which reports make an update on a parameter server: by their number, or by groups of workers.

A grouping sees the workers that wait with a report, and names those whose reports are the next update. A
server may change its grouping between two updates: reports that wait then count by the new one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from rca.arrays import FloatArray
from rca.errors import InvalidInput
from rca.runtime.star.modes import GROUP_DISTANCE, clustered
from rca.runtime.star.price import Mode, partial_updates
from rca.runtime.star.usual_step import LOOK_BACK, usual_seconds

#: Updates of all workers after which dynamic groups are formed again.
EVERY = 8


class Grouping(Protocol):
    """A rule for updates."""

    def next_update(self, waiting: Sequence[int], alive: Collection[int]) -> Sequence[int]:
        """Workers whose reports are the next update; empty if it must wait for more.

        Parameters
        ----------
        waiting : sequence of int
            Workers that wait with a report, in the order of arrival.
        alive : collection of int
            Workers that train. A rule does not wait for others.
        """
        ...


@dataclass(frozen=True)
class XOrder:
    """An update from the first `order` reports: 1 is asynchronous, all workers are synchronous training."""

    order: int

    def __post_init__(self) -> None:
        if self.order < 1:
            raise InvalidInput(f"an update from {self.order} reports is none")

    def next_update(self, waiting: Sequence[int], alive: Collection[int]) -> Sequence[int]:
        """The first `order` workers, or all that are left if there are fewer."""
        needed = min(self.order, len(alive))
        return waiting[:needed] if 0 < needed <= len(waiting) else ()


@dataclass(frozen=True)
class Groups:
    """An update from a group when all of its workers have reported; workers in no group are alone."""

    groups: tuple[tuple[int, ...], ...]

    def next_update(self, waiting: Sequence[int], alive: Collection[int]) -> Sequence[int]:
        """The complete group whose last report came first."""
        place = {worker: number for number, worker in enumerate(waiting)}
        members = [[worker for worker in group if worker in alive] for group in self.groups]
        members += [[worker] for worker in waiting if not any(worker in group for group in self.groups)]
        complete = [group for group in members if group and all(worker in place for worker in group)]
        return min(complete, key=lambda group: max(place[worker] for worker in group), default=())


def of_mode(mode: Mode, ranks: Sequence[int] | None = None) -> Grouping:
    """The grouping of a mode of `rca.runtime.star.modes`.

    Parameters
    ----------
    ranks : sequence of int, optional
        Of its workers, if they are not 0, 1, 2 and so on.
    """
    if mode.kind in ("synchronous", "x-order"):
        return XOrder(mode.order)
    if ranks is None:
        return Groups(mode.groups)
    return Groups(tuple(tuple(ranks[worker] for worker in group) for group in mode.groups))


@dataclass(frozen=True)
class SeenTimes:
    """What a server has measured.

    Attributes
    ----------
    steps : ndarray of shape (n_ranks, n_steps), seconds
        From an answer to a worker to its report, the newest last; NaN where no step has ended.
    report_seconds : float
        Its own time for a report.
    """

    steps: FloatArray
    report_seconds: float = 0.0

    @cached_property
    def usual(self) -> FloatArray:
        """Usual step of each worker, shape (n_ranks,), seconds; NaN where no step has ended."""
        return usual_seconds(self.steps[:, -LOOK_BACK:])


#: A choice of the grouping from the updates and the reports in them so far, and from measured times. None
#: keeps the grouping.
Choice = Callable[[int, int, SeenTimes], Grouping | None]


@dataclass(frozen=True)
class FirstReports:
    """A `Choice`: an update waits for all but the last few workers, AntDT's `BACKUP_WORKERS`.

    Use it with ``serve(..., most_staleness=0)``, which drops what the others send later. `work` says so to
    each worker. With shards of the data it calls `ShardSampler.give_back`, so that no sample is lost.

    Parameters
    ----------
    most : int
        Most workers that an update does not wait for. As many as make most progress are chosen.
    batch, noise : float, optional
        Samples of all workers in a step, and the gradient noise scale in samples. Without them every sample
        counts alike.
    every : int
        Updates between two choices.
    """

    most: int
    batch: float | None = None
    noise: float | None = None
    every: int = EVERY

    def __post_init__(self) -> None:
        if self.every < 1 or self.most < 1:
            raise InvalidInput(f"{self.most} backup workers cannot be chosen every {self.every} updates")

    def __call__(self, n_updates: int, n_reports: int, seen: SeenTimes) -> Grouping | None:  # noqa: ARG002
        times = np.sort(seen.usual[np.isfinite(seen.usual)])
        if n_updates % self.every or not times.size:
            return None
        n = times.size
        orders = range(max(n - self.most, 1), n + 1)
        return XOrder(
            min(orders, key=lambda x: float(times[x - 1]) * partial_updates(x / n, self.noise, self.batch))
        )


class DynamicGroups:
    """A `Choice`: groups of workers with like times, formed again as the times change.

    Parameters
    ----------
    distance : float
        Largest difference between the usual steps of two members, seconds.
    every : int
        Updates between two divisions.
    """

    def __init__(self, distance: float = GROUP_DISTANCE, every: int = EVERY) -> None:
        if every < 1:
            raise InvalidInput(f"groups cannot be formed every {every} updates")
        self.distance, self.every = distance, every

    def __call__(self, n_updates: int, n_reports: int, seen: SeenTimes) -> Grouping | None:  # noqa: ARG002
        known = np.flatnonzero(np.isfinite(seen.usual))
        if n_updates % self.every or not known.size:
            return None
        # Workers without a time are in no group, and so alone.
        groups = clustered(seen.usual[known], self.distance)
        return Groups(tuple(tuple(int(known[place]) for place in group) for group in groups))
