"""Updates with a parameter server: when x workers have reported, or when a group of workers has.

With x = n workers it is synchronous SGD, with x = 1 asynchronous SGD. A report that does not belong to an
update counts in a later one, or is dropped and counted if it is too stale. The rule may change between two
updates: only the server has to agree. A worker that ends is left out.

References
----------
.. [1] STAR, arXiv 2512.09685.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from rca.errors import InvalidInput
from rca.runtime.star.arrivals import MAX_STEPS
from rca.runtime.star.grouping import Choice, Grouping, SeenTimes, XOrder

#: An answer begins with whether training is over, and whether the last gradient of its worker was applied.
_HEADER = 2


@dataclass
class WorkerReports:
    """What the server has done with each gradient.

    Attributes
    ----------
    applied : list of list of (int, int)
        Of each update: worker and staleness in updates of each gradient in it.
    stale : int
        Gradients that were dropped as too old.
    left : int
        Gradients that came after the last update.
    groupings : list of (int, Grouping)
        Rules, each with the number of updates before it.
    lost : list of int
        Workers that ended before the training did.
    """

    applied: list[list[tuple[int, int]]] = field(default_factory=list)
    stale: int = 0
    left: int = 0
    groupings: list[tuple[int, Grouping]] = field(default_factory=list)
    lost: list[int] = field(default_factory=list)

    @property
    def n_gradients(self) -> int:
        """All gradients that have arrived."""
        return sum(map(len, self.applied)) + self.stale + self.left


def serve(
    parameters: Tensor,
    n_workers: int,
    grouping: Grouping,
    update: Callable[[Tensor, int], None],
    is_over: Callable[[int], bool],
    *,
    choose: Choice | None = None,
    most_staleness: int | None = None,
) -> WorkerReports:
    """Serve the workers, which are ranks 1 to `n_workers` of the default group, from rank 0.

    Parameters
    ----------
    parameters : Tensor of shape (n_parameters,)
        Changed by `update`; float32 or float64.
    grouping : Grouping
        Numbers of workers in it are ranks.
    update : callable
        Applies an average gradient of shape (n_parameters,) to the parameters. It gets the number of reports
        in it, too: lower the learning rate with it.
    is_over : callable
        Whether training ends, from the number of updates so far.
    choose : callable, optional
        The grouping from here on, after each update, such as `rca.runtime.star.calibration.CalibratedChoice`
        or `rca.runtime.star.grouping.DynamicGroups`. Its times have `n_workers` + 1 rows; that of rank 0 is
        NaN.
    most_staleness : int, optional
        Gradients whose parameters are more updates old are dropped; by default none.

    Raises
    ------
    InvalidInput
        If there are fewer workers than an update needs.
    ConnectionError
        If all workers have ended before the training is over.
    """
    if isinstance(grouping, XOrder) and grouping.order > n_workers:
        raise InvalidInput(f"{n_workers} workers cannot give updates of {grouping.order} reports")
    server = _Server(parameters, n_workers)
    reports = server.reports
    reports.groupings.append((0, grouping))
    waiting: dict[int, Tensor] = {}
    for worker in range(1, n_workers + 1):
        server.answer(worker, over=False)
    while not is_over(len(reports.applied)):
        worker, gradient = server.next_report()
        staleness = len(reports.applied) - server.version[worker]
        if gradient is not None and most_staleness is not None and staleness > most_staleness:
            reports.stale += 1
            server.answer(worker, over=False, applied=False)
        elif gradient is not None:
            waiting[worker] = gradient
        # The end of a worker may complete an update that waited for it.
        while not is_over(len(reports.applied)):
            chosen = tuple(reports.groupings[-1][1].next_update(tuple(waiting), server.alive))
            if not chosen:
                break
            update(torch.stack([waiting.pop(each) for each in chosen]).mean(dim=0), len(chosen))
            server.note_update(chosen, choose)
            for each in chosen:
                server.answer(each, over=is_over(len(reports.applied)))
    reports.left += len(waiting)
    for worker in waiting:
        server.answer(worker, over=True, applied=False)
    server.end()
    return reports


class _Server:
    """Messages of the server: a thread for each worker, as gloo says only to who waits that one is there."""

    def __init__(self, parameters: Tensor, n_workers: int) -> None:
        self.parameters, self.reports = parameters, WorkerReports()
        workers = range(1, n_workers + 1)
        self.alive = set(workers)
        self._n_applied = 0
        self.version = dict.fromkeys(workers, 0)
        self._told: set[int] = set()
        self._answered = dict.fromkeys(workers, 0.0)
        self._times: dict[int, deque[float]] = {each: deque(maxlen=MAX_STEPS) for each in workers}
        # Work of this thread since the first report that no update has, and of the last updates by report.
        self._work, self._in_update = 0.0, 0
        self._report_seconds: deque[float] = deque(maxlen=MAX_STEPS)
        self._took = time.monotonic()
        self._inbox: queue.Queue[tuple[int, Tensor | None, float]] = queue.Queue()
        self._free = {each: threading.Semaphore(0) for each in workers}
        for each in workers:
            threading.Thread(target=self._receive, args=(each,), name=f"worker-{each}", daemon=True).start()

    def _receive(self, worker: int) -> None:
        while True:
            # A worker sends only after an answer.
            self._free[worker].acquire()
            if worker in self._told:
                return
            message = torch.empty_like(self.parameters)
            try:
                dist.recv(message, src=worker)
            except Exception:
                self._inbox.put((worker, None, time.monotonic()))
                return
            self._inbox.put((worker, message, time.monotonic()))

    def next_report(self) -> tuple[int, Tensor | None]:
        """The next worker and its gradient; None for one that has ended."""
        if not self.alive:
            raise ConnectionError("all workers have ended before the training was over")
        self._note_work()
        worker, gradient, at = self._inbox.get()
        self._took = time.monotonic()
        if gradient is None:
            self._lose(worker)
        else:
            self._times[worker].append(at - self._answered[worker])
        return worker, gradient

    def answer(self, worker: int, *, over: bool, applied: bool = True) -> None:
        """Send the parameters; the last ones if training is over. `applied` is about its last gradient."""
        if worker not in self.alive:
            return
        header = self.parameters.new_tensor([float(over), float(applied)])
        self.version[worker], self._answered[worker] = len(self.reports.applied), time.monotonic()
        if over:
            self._told.add(worker)
        try:
            dist.send(torch.cat((header, self.parameters.detach())), dst=worker)
        except RuntimeError:
            self._lose(worker)
        self._free[worker].release()

    def note_update(self, workers: Sequence[int], choose: Choice | None) -> None:
        """Count an update from some workers, and take the rule from here on."""
        reports = self.reports
        reports.applied.append([(each, len(reports.applied) - self.version[each]) for each in workers])
        self._n_applied += len(workers)
        self._in_update += len(workers)
        other = None if choose is None else choose(len(reports.applied), self._n_applied, self._seen())
        if other is not None and other != reports.groupings[-1][1]:
            reports.groupings.append((len(reports.applied), other))

    def _seen(self) -> SeenTimes:
        steps = np.full((max(self._times) + 1, MAX_STEPS), np.nan)
        for worker, times in self._times.items():
            if times and worker in self.alive:
                steps[worker, -len(times) :] = times
        return SeenTimes(steps, float(np.median(self._report_seconds)) if self._report_seconds else 0.0)

    def _note_work(self) -> None:
        """Count what this thread has done since it has taken a report."""
        self._work += time.monotonic() - self._took
        if self._in_update:
            self._report_seconds.append(self._work / self._in_update)
            self._work, self._in_update = 0.0, 0

    def end(self) -> None:
        """Tell all workers that training is over, each when it reports."""
        while self.alive - self._told:
            worker, gradient = self.next_report()
            if gradient is not None:
                self.reports.left += 1
                self.answer(worker, over=True, applied=False)

    def _lose(self, worker: int) -> None:
        if worker in self.alive:
            self.alive.discard(worker)
            self.reports.lost.append(worker)


def work(
    parameters: Tensor, gradient: Callable[[], Tensor], answered: Callable[[bool], None] = lambda _: None
) -> int:
    """Train on a worker until the server ends; gives the number of gradients that it has sent.

    Parameters
    ----------
    parameters : Tensor of shape (n_parameters,)
        Overwritten with those of the server before each gradient.
    gradient : callable
        Computes a gradient of shape (n_parameters,) at the parameters.
    answered : callable
        Called after each gradient with whether an update has applied it. With shards of the data it calls
        `ShardSampler.confirm` or `give_back`.
    """
    message, sent = parameters.new_empty(_HEADER + parameters.numel()), 0
    while True:
        dist.recv(message, src=0)
        with torch.no_grad():
            parameters.copy_(message[_HEADER:])
        if sent:
            answered(bool(message[1]))
        if message[0]:
            return sent
        dist.send(gradient(), dst=0)
        sent += 1
