"""x-order updates with a parameter server: the model is updated when x workers have reported.

With x = n workers it is synchronous SGD, with x = 1 asynchronous SGD. A report that comes after an update
counts in the next one, or is dropped and counted if it is too stale.

References
----------
.. [1] STAR, arXiv 2512.09685.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor

from rca.errors import InvalidInput

#: A report and an answer begin with the number of updates of their parameters, and whether training is over.
_HEADER = 2


@dataclass
class Reports:
    """What the server has done with each gradient.

    Attributes
    ----------
    applied : list of list of (int, int)
        Of each update: worker and staleness in updates of each gradient in it.
    stale : int
        Gradients that were dropped as too old.
    left : int
        Gradients that came after the last update.
    """

    applied: list[list[tuple[int, int]]] = field(default_factory=list)
    stale: int = 0
    left: int = 0

    @property
    def n_gradients(self) -> int:
        """All gradients that have arrived."""
        return sum(map(len, self.applied)) + self.stale + self.left


def serve(
    parameters: Tensor,
    n_workers: int,
    order: int,
    update: Callable[[Tensor], None],
    is_over: Callable[[int], bool],
    *,
    most_staleness: int | None = None,
) -> Reports:
    """Serve the workers, which are ranks 1 to `n_workers` of the default group, from rank 0.

    Parameters
    ----------
    parameters : Tensor of shape (n_parameters,)
        Changed by `update`; float32 or float64.
    n_workers, order : int
        An update takes `order` reports.
    update : callable
        Applies an average gradient of shape (n_parameters,) to the parameters.
    is_over : callable
        Whether training ends, from the number of updates so far.
    most_staleness : int, optional
        Gradients whose parameters are more updates old are dropped; by default none.

    Raises
    ------
    InvalidInput
        If `order` workers cannot report.
    """
    if not 1 <= order <= n_workers:
        raise InvalidInput(f"{n_workers} workers cannot give updates of {order} reports")
    reports, waiting = Reports(), []
    batch: list[tuple[int, int]] = []
    total, message = torch.zeros_like(parameters), parameters.new_empty(_HEADER + parameters.numel())
    for worker in range(1, n_workers + 1):
        _answer(parameters, worker, 0, over=False)
    while not is_over(len(reports.applied)):
        worker = dist.recv(message)
        n_updates = len(reports.applied)
        staleness = n_updates - int(message[0])
        if most_staleness is not None and staleness > most_staleness:
            reports.stale += 1
            _answer(parameters, worker, n_updates, over=False)
            continue
        total += message[_HEADER:]
        batch.append((worker, staleness))
        waiting.append(worker)
        if len(batch) < order:
            continue
        update(total / order)
        reports.applied.append(batch)
        batch, reporters, waiting = [], waiting, []
        total.zero_()
        if not is_over(n_updates + 1):
            for worker in reporters:
                _answer(parameters, worker, n_updates + 1, over=False)
        else:
            waiting = reporters
    reports.left += len(batch)
    for worker in waiting:
        _answer(parameters, worker, len(reports.applied), over=True)
    for _ in range(n_workers - len(waiting)):
        worker = dist.recv(message)
        reports.left += 1
        _answer(parameters, worker, len(reports.applied), over=True)
    return reports


def work(parameters: Tensor, gradient: Callable[[], Tensor]) -> int:
    """Train on a worker until the server ends; gives the number of gradients that it has sent.

    Parameters
    ----------
    parameters : Tensor of shape (n_parameters,)
        Overwritten with those of the server before each gradient.
    gradient : callable
        Computes a gradient of shape (n_parameters,) at the parameters.
    """
    message, sent = parameters.new_empty(_HEADER + parameters.numel()), 0
    while True:
        dist.recv(message, src=0)
        with torch.no_grad():
            parameters.copy_(message[_HEADER:])
        if message[1]:
            return sent
        message[_HEADER:] = gradient()
        dist.send(message, dst=0)
        sent += 1


def _answer(parameters: Tensor, worker: int, n_updates: int, *, over: bool) -> None:
    header = parameters.new_tensor([float(n_updates), float(over)])
    dist.send(torch.cat((header, parameters.detach())), dst=worker)
