"""A sampler that trains what a `ShardService` hands out, in batches of any size.

`ShardSampler` is an iterable of batches of sample numbers, as `torch.utils.data.DataLoader` takes for its
`batch_sampler`. Training code that changes its batch size calls `take` and `confirm` itself::

    numbers = sampler.take(decision.samples[rank])
    train(numbers)
    sampler.confirm()
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from rca.arrays import IntArray
from rca.errors import InvalidInput
from rca.recovery.antdt.leases import Lease, LeaseState, Report, ShardService

#: A share of the lease after which progress is reported, so that several reports may be lost.
REPORT_SHARE = 0.25
#: Longest pause before a worker without a shard tries again.
LONGEST_PAUSE_SECONDS = 1.0


@dataclass
class _Held:
    """A lease, its samples in order, and offsets: samples before `taken` are in training or trained."""

    lease: Lease
    samples: IntArray
    taken: int
    trained: int
    reported: int

    @property
    def is_taken(self) -> bool:
        return self.taken == self.lease.shard.size


class ShardSampler:
    """Samples of shards, for one worker.

    Parameters
    ----------
    service : ShardService
    worker : str
        Name of this worker. After a restart it is another worker, or its old shards are released first.
    batch_size : int or callable
        Samples of a batch when iterating; a callable gives the present size.
    report_seconds : float, optional
        Progress is reported after so long; a quarter of the lease if not given.
    clock : callable
        Gives seconds.

    Attributes
    ----------
    finished : bool
        Whether all epochs are done, by all workers.
    repeated : int
        Samples that were trained after their lease had ended: another worker trains them again. It stays 0
        while steps are shorter than the lease.
    """

    def __init__(
        self,
        service: ShardService,
        worker: str,
        batch_size: int | Callable[[], int] = 1,
        *,
        report_seconds: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._service, self._worker = service, worker
        self._batch_size = batch_size
        self._every = REPORT_SHARE * service.plan.lease_seconds if report_seconds is None else report_seconds
        self._clock = clock
        self._held: list[_Held] = []
        self._reported_at = clock()
        self._wait = 0.0
        self.finished = False
        self.repeated = 0

    def take(self, n_samples: int) -> IntArray:
        """Take the next samples; they may come from several shards.

        Parameters
        ----------
        n_samples : int

        Returns
        -------
        ndarray of shape (at most n_samples,), int
            Fewer if no shard is free: the rest is with other workers, or all epochs are done.
        """
        if n_samples < 0:
            raise InvalidInput(f"a batch of {n_samples} samples is not possible")
        parts: list[IntArray] = []
        wanted = n_samples
        while wanted and not self.finished:
            held = next((each for each in self._held if not each.is_taken), None) or self._lease()
            if held is None:
                break
            part = held.samples[held.taken - held.lease.start :][:wanted]
            held.taken += part.size
            wanted -= part.size
            parts.append(part)
        return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)

    def confirm(self) -> None:
        """Say that all samples that were taken are trained; reports them when it is time."""
        for held in self._held:
            held.trained = held.taken
        is_due = self._clock() - self._reported_at >= self._every
        if is_due or any(held.trained == held.lease.shard.size for held in self._held):
            self.flush()

    def flush(self) -> None:
        """Report now, as before a checkpoint. It also renews the leases."""
        self._reported_at = self._clock()
        if not self._held:
            return
        reports = [Report(held.lease.id, held.trained) for held in self._held]
        left = []
        for held, receipt in zip(self._held, self._service.report(reports), strict=True):
            if not receipt.accepted:
                self.repeated += held.trained - max(receipt.done, held.lease.start)
            elif receipt.state is LeaseState.held:
                left.append(held)
        self._held = left

    def close(self) -> None:
        """Report, and give back what is not trained."""
        self.flush()
        self._held = []
        self._service.release(self._worker)

    def __iter__(self) -> Iterator[list[int]]:
        """Yield batches until all epochs are done. A batch counts as trained when the next is asked for.

        A loader that prefetches asks too early: use `take` and `confirm` with it.
        """
        while True:
            size = self._batch_size() if callable(self._batch_size) else self._batch_size
            batch = self.take(size)
            if batch.size:
                yield batch.tolist()
            elif not self.finished:
                time.sleep(min(max(self._wait, 0.01), LONGEST_PAUSE_SECONDS))
            self.confirm()
            if self.finished:
                return

    def _lease(self) -> _Held | None:
        if any(held.trained == held.lease.shard.size for held in self._held):
            self.flush()
        offer = self._service.lease(self._worker, uuid.uuid4().hex)
        self.finished = offer.finished
        self._wait = offer.wait_seconds or 0.0
        if offer.lease is None:
            return None
        lease = offer.lease
        numbers = self._service.plan.samples(lease.shard, lease.start)
        held = _Held(lease, numbers, lease.start, lease.start, lease.start)
        self._held.append(held)
        return held
