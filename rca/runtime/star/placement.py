"""Where to put workers and parameter servers, so that no node's CPU or link is overloaded up front.

The placement minimises the largest relative load: demand over capacity, of CPU and of bandwidth, over all
nodes. Small cases are solved exactly by branch and bound. Larger ones are placed greedily, and improved by
moves and swaps.

References
----------
.. [1] STAR, arXiv 2512.09685.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rca.arrays import FloatArray, IntArray
from rca.errors import InvalidInput

#: Branches after which the exact search gives up: less than half a second.
MAX_BRANCHES = 10_000
#: With more tasks there is no exact search.
MAX_TASKS = 64
_EQUAL = 1e-12


@dataclass(frozen=True)
class PlacedTask:
    """A worker or a parameter server.

    Parameters
    ----------
    cpu : float
        Processors that it keeps busy.
    bandwidth : float
        Bytes per second of its transfers, or any one unit.
    devices : int
        GPUs that it needs: 0 for a parameter server on the CPU.
    """

    cpu: float
    bandwidth: float
    devices: int = 1


@dataclass(frozen=True)
class ClusterNode:
    """What a machine has left for the job: the load of other jobs is subtracted before.

    Parameters
    ----------
    cpu, bandwidth : float
        In the units of the tasks.
    """

    cpu: float
    bandwidth: float
    devices: int


@dataclass(frozen=True)
class TaskPlacement:
    """Where each task goes.

    Attributes
    ----------
    nodes : tuple of int
        Node of each task.
    load : float
        Largest relative load; above 1 some node is overloaded whatever the placement, if `exact`.
    cpu, bandwidth : ndarray of shape (n_nodes,)
        Relative loads.
    exact : bool
        Whether no placement has a smaller largest load.
    """

    nodes: tuple[int, ...]
    load: float
    cpu: FloatArray
    bandwidth: FloatArray
    exact: bool

    @property
    def overloaded(self) -> tuple[int, ...]:
        """Nodes whose CPU or link is asked for more than it has."""
        return tuple(int(node) for node in np.flatnonzero(np.maximum(self.cpu, self.bandwidth) > 1 + 1e-9))


def place(tasks: Sequence[PlacedTask], nodes: Sequence[ClusterNode]) -> TaskPlacement:
    """Place all tasks on nodes with enough devices.

    Raises
    ------
    InvalidInput
        If a demand or capacity is not usable, or the devices do not suffice.

    Examples
    --------
    >>> tasks = [PlacedTask(4, 1), PlacedTask(4, 1), PlacedTask(2, 6, devices=0)]
    >>> place(tasks, [ClusterNode(8, 10, 2), ClusterNode(8, 5, 2)]).load
    0.75
    """
    _check(tasks, nodes)
    search = _Search(tasks, nodes)
    placed = search.greedy(pack=False) or search.greedy(pack=True)
    if placed:
        search.improve()
    exact = search.exact()
    if (search.best < 0).any():
        raise InvalidInput(
            "the devices of the nodes do not suffice for the tasks",
            hint="give more nodes, or tasks that need fewer devices",
        )
    relative = search.loads(search.best)
    return TaskPlacement(
        nodes=tuple(int(node) for node in search.best),
        load=float(relative.max()),
        cpu=relative[:, 0],
        bandwidth=relative[:, 1],
        exact=exact,
    )


class _Search:
    """The best placement so far, shape (n_tasks,), and ways to a better one."""

    def __init__(self, tasks: Sequence[PlacedTask], nodes: Sequence[ClusterNode]) -> None:
        self.demand: FloatArray = np.array([(task.cpu, task.bandwidth) for task in tasks], dtype=np.float64)
        self.capacity: FloatArray = np.array([(node.cpu, node.bandwidth) for node in nodes], dtype=np.float64)
        self.needs: IntArray = np.array([task.devices for task in tasks], dtype=np.int64)
        self.devices: IntArray = np.array([node.devices for node in nodes], dtype=np.int64)
        self.best: IntArray = np.full(len(tasks), -1, dtype=np.int64)
        # The largest first. Tasks of several devices come before: they have the fewest places.
        share = (self.demand / self.capacity.mean(axis=0)).max(axis=1)
        self.order: IntArray = np.lexsort((-share, -self.needs))

    def totals(self, placed: IntArray) -> FloatArray:
        """Demand of the tasks on each node, shape (n_nodes, 2)."""
        total = np.zeros(self.capacity.shape)
        np.add.at(total, placed, self.demand)
        return total

    def loads(self, placed: IntArray) -> FloatArray:
        """Relative load of each node and resource, shape (n_nodes, 2)."""
        relative: FloatArray = self.totals(placed) / self.capacity
        return relative

    def lower_bound(self) -> float:
        """No placement has a smaller largest load."""
        spread = float((self.demand.sum(axis=0) / self.capacity.sum(axis=0)).max())
        fits = self.needs[:, None] <= self.devices
        alone = (self.demand[:, None] / self.capacity).max(axis=2)
        return max(spread, float(np.where(fits, alone, np.inf).min(axis=1).max()))

    def greedy(self, *, pack: bool) -> bool:
        """Place each task, the largest first; whether all have devices.

        Parameters
        ----------
        pack : bool
            Prefer the node with the fewest free devices over the one with the least load afterwards.
        """
        total, free = np.zeros(self.capacity.shape), self.devices.copy()
        placed = self.best.copy()
        for task in self.order:
            after = ((total + self.demand[task]) / self.capacity).max(axis=1)
            badness = free.astype(np.float64) if pack else after
            node = int(np.argmin(np.where(free >= self.needs[task], badness, np.inf)))
            if free[node] < self.needs[task]:
                return False
            placed[task] = node
            total[node] += self.demand[task]
            free[node] -= self.needs[task]
        self.best = placed
        return True

    def improve(self) -> None:
        """Move or swap tasks of the most loaded node until neither lowers its load and the other's."""
        while self._improved():
            pass

    def _improved(self) -> bool:
        total = self.totals(self.best)
        relative = (total / self.capacity).max(axis=1)
        worst = int(relative.argmax())
        free = self.devices - np.bincount(self.best, self.needs, self.devices.size).astype(np.int64)
        others = np.flatnonzero(self.best != worst)
        theirs = self.best[others]
        least = float(relative[worst]) * (1 - _EQUAL)
        change: dict[int, int] = {}
        for task in np.flatnonzero(self.best == worst):
            demand, needs = self.demand[task], self.needs[task]
            left = ((total[worst] - demand) / self.capacity[worst]).max()
            moved = np.maximum(((total + demand) / self.capacity).max(axis=1), left)
            moved[(free < needs) | (np.arange(free.size) == worst)] = np.inf
            here = (total[worst] - demand + self.demand[others]) / self.capacity[worst]
            there = (total[theirs] - self.demand[others] + demand) / self.capacity[theirs]
            swapped = np.maximum(here.max(axis=1), there.max(axis=1))
            gain = self.needs[others] - needs
            swapped[(free[worst] < gain) | (free[theirs] < -gain)] = np.inf
            if moved.min() < least:
                least, change = float(moved.min()), {int(task): int(moved.argmin())}
            if others.size and swapped.min() < least:
                other = int(others[swapped.argmin()])
                least, change = float(swapped.min()), {int(task): int(self.best[other]), other: worst}
        for moved_task, node in change.items():
            self.best[moved_task] = node
        return bool(change)

    def exact(self) -> bool:
        """Branch and bound from the best placement; whether none is better."""
        placed = bool((self.best >= 0).all())
        self._least = float(self.loads(self.best).max()) if placed else np.inf
        self._bound, self._left = self.lower_bound(), MAX_BRANCHES
        if self.order.size <= MAX_TASKS:
            self._branch(0, np.zeros(self.capacity.shape), self.devices.copy(), self.best.copy())
            return self._left > 0
        return self._is_optimal()

    def _is_optimal(self) -> bool:
        return self._least <= self._bound * (1 + _EQUAL)

    def _branch(self, depth: int, total: FloatArray, free: IntArray, placed: IntArray) -> None:
        if depth == self.order.size:
            self.best, self._least = placed.copy(), float((total / self.capacity).max())
            return
        task = self.order[depth]
        after = ((total + self.demand[task]) / self.capacity).max(axis=1)
        seen = set()
        for node in np.argsort(after, kind="stable"):
            # Nodes come in the order of their load: the rest is no better either.
            if after[node] >= self._least * (1 - _EQUAL) or self._is_optimal() or self._left <= 0:
                return
            # Nodes in the same state lead to the same placements.
            state = (*self.capacity[node], *total[node], free[node])
            if free[node] < self.needs[task] or state in seen:
                continue
            seen.add(state)
            self._left -= 1
            before = total[node].copy()
            total[node] += self.demand[task]
            free[node] -= self.needs[task]
            placed[task] = node
            self._branch(depth + 1, total, free, placed)
            total[node] = before
            free[node] += self.needs[task]


def _check(tasks: Sequence[PlacedTask], nodes: Sequence[ClusterNode]) -> None:
    if not tasks or not nodes:
        raise InvalidInput("there is no task or no node")
    for number, task in enumerate(tasks):
        if not (np.isfinite([task.cpu, task.bandwidth]).all() and min(task.cpu, task.bandwidth) >= 0):
            raise InvalidInput(
                f"task {number} needs {task.cpu} processors and a bandwidth of {task.bandwidth}"
            )
        if task.devices < 0:
            raise InvalidInput(f"task {number} needs {task.devices} devices")
    for number, node in enumerate(nodes):
        if not (np.isfinite([node.cpu, node.bandwidth]).all() and min(node.cpu, node.bandwidth) > 0):
            raise InvalidInput(
                f"node {number} has {node.cpu} processors and a bandwidth of {node.bandwidth}",
                hint="leave out nodes that have nothing left",
            )
        if node.devices < 0:
            raise InvalidInput(f"node {number} has {node.devices} devices")
