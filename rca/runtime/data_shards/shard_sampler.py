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
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from rca.arrays import IntArray
from rca.errors import InvalidInput, RcaError, SourceError
from rca.runtime.data_shards.leases import Lease, LeaseState, Offer, ShardReceipt, ShardReport, ShardService

Answer = TypeVar("Answer")
#: A share of the lease after which progress is reported, so that several reports may be lost.
REPORT_SHARE = 0.25
#: The next shard is asked for when so many batches are left. More would keep shards from faster workers.
BATCHES_AHEAD = 2
#: Longest pause before a worker without a shard tries again.
MAX_PAUSE_SECONDS = 1.0


@dataclass(eq=False)
class _Held:
    """A lease, its samples in order, and offsets: samples before `taken` are in training or trained."""

    lease: Lease
    samples: IntArray
    taken: int
    trained: int
    reported: int

    @property
    def is_taken(self) -> bool:
        return self.taken == self.lease.stop


class ShardSampler:
    """Samples of shards, for one worker.

    Parameters
    ----------
    worker : str
        Name of this worker. After a restart it is another worker, or its old shards are released first.
    batch_size : int or callable
        Samples of a batch when iterating; a callable gives the present size.
    report_seconds : float, optional
        Progress is reported after so long; a quarter of the lease if not given.
    background : bool
        Whether a thread asks for the next shard ahead of time and reports, so that training does not wait
        for the service.
    clock : callable
        Gives seconds.

    Attributes
    ----------
    finished : bool
        Whether all epochs are done, by all workers.
    repeated : int
        Samples that were trained after their lease had ended: another worker trains them again. It stays 0
        while steps are shorter than the lease.
    waited_seconds : float
        Time in `take`, in which training waits for the service.
    """

    def __init__(
        self,
        service: ShardService,
        worker: str,
        batch_size: int | Callable[[], int] = 1,
        *,
        report_seconds: float | None = None,
        background: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._service, self._worker = service, worker
        self._batch_size = batch_size
        self._every = REPORT_SHARE * service.plan.lease_seconds if report_seconds is None else report_seconds
        self._clock = clock
        self._is_ahead = background
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="shards") if background else None
        self._held: list[_Held] = []
        self._coming: Future[Offer] | None = None
        #: Id of a lease that was asked for without an answer.
        self._unanswered: str | None = None
        self._reports: tuple[list[_Held], Future[list[ShardReceipt]]] | None = None
        self._reported_at = clock()
        self._wait = 0.0
        #: Samples of the last batch that was asked for.
        self._size = 1
        self.finished = False
        self.repeated = 0
        self.waited_seconds = 0.0

    def take(self, n_samples: int) -> IntArray:
        """Take the next samples; they may come from several shards.

        Returns
        -------
        ndarray of shape (at most n_samples,), int
            Fewer if no shard is free: the rest is with other workers, or all epochs are done.
        """
        if n_samples < 0:
            raise InvalidInput(f"a batch of {n_samples} samples is not possible")
        parts: list[IntArray] = []
        wanted, self._size, began = n_samples, max(n_samples, 1), self._clock()
        while wanted and not self.finished:
            held = next((each for each in self._held if not each.is_taken), None) or self._lease()
            if held is None:
                break
            part = held.samples[held.taken - held.lease.start :][:wanted]
            held.taken += part.size
            wanted -= part.size
            parts.append(part)
        left = sum(each.lease.stop - each.taken for each in self._held)
        is_low = left <= BATCHES_AHEAD * n_samples and not self.finished
        if self._is_ahead and is_low and self._coming is None:
            self._coming = self._ask()
        self.waited_seconds += self._clock() - began
        return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)

    def confirm(self) -> None:
        """Say that all samples that were taken are trained; reports them when it is time."""
        for held in self._held:
            held.trained = held.taken
        if self._coming is not None and self._coming.done():
            self._arrived()
        if self._reports is not None and self._reports[1].done():
            self._settle()
        is_due = self._clock() - self._reported_at >= self._every
        ended = any(each.trained == each.lease.stop > each.reported for each in self._held)
        if self._reports is None and (is_due or ended):
            self._report()
            if not self._is_ahead:
                self._settle()

    def give_back(self) -> None:
        """Say that what was taken since `confirm` is not trained, and leave it and the rest to other workers.

        For a worker whose update was not applied. What it has trained before is reported.
        """
        self.flush()
        if self._coming is not None:
            self._arrived()
        self._held = []
        self._service.release(self._worker)

    def flush(self) -> None:
        """Report now and wait for the answer, as before a checkpoint. It also renews the leases."""
        self._settle()
        self._report()
        self._settle()

    def close(self) -> None:
        """Report, and give back what is not trained."""
        self.give_back()
        if self._thread is not None:
            self._thread.shutdown()

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
                time.sleep(min(max(self._wait, 0.01), MAX_PAUSE_SECONDS))
            self.confirm()
            if self.finished:
                return

    def _lease(self) -> _Held | None:
        """The next shard; waits for the answer of the service."""
        if self._coming is not None:
            held = self._arrived()
            if held is not None or self.finished:
                return held
        # Asked again: what was not free some time ago may be free now, and what is trained must be known.
        if any(each.trained == each.lease.stop > each.reported for each in self._held):
            self.flush()
        return self._hold(self._ask().result())

    def _ask(self) -> Future[Offer]:
        return self._submit(self._leased)

    def _leased(self) -> Offer:
        """Ask for a lease; after a failure with the same id, because the service may have given it."""
        repeated, self._unanswered = self._unanswered, None
        if repeated is not None:
            # It may have ended before its answer arrived.
            with suppress(InvalidInput):
                return self._leased_as(repeated)
        return self._leased_as(uuid.uuid4().hex)

    def _leased_as(self, lease_id: str) -> Offer:
        try:
            return self._service.lease(self._worker, lease_id, self._size)
        except SourceError:
            self._unanswered = lease_id
            raise

    def _arrived(self) -> _Held | None:
        """Read the answer that was asked for ahead; if that has failed, the next `_lease` asks again."""
        coming, self._coming = self._coming, None
        assert coming is not None  # noqa: S101  (the callers have checked it)
        return None if coming.exception() is not None else self._hold(coming.result())

    def _hold(self, offer: Offer) -> _Held | None:
        self.finished = offer.finished
        self._wait = offer.wait_seconds or 0.0
        if offer.lease is None:
            return None
        lease = offer.lease
        numbers = self._service.plan.samples(lease.shard, lease.start, lease.stop)
        held = _Held(lease, numbers, lease.start, lease.start, lease.start)
        self._held.append(held)
        return held

    def _report(self) -> None:
        self._reported_at = self._clock()
        if not self._held:
            return
        reports = [ShardReport(held.lease.id, held.trained) for held in self._held]
        for held in self._held:
            held.reported = held.trained
        self._reports = (list(self._held), self._submit(self._service.report, reports))

    def _settle(self) -> None:
        """Read the answer to the last report."""
        if self._reports is None:
            return
        (sent, answer), self._reports = self._reports, None
        if answer.exception() is not None:
            # Reported again at the next occasion.
            for held in sent:
                held.reported = held.lease.start
        for held, receipt in zip(sent, answer.result(), strict=True):
            if not receipt.accepted:
                self.repeated += held.trained - max(receipt.done, held.lease.start)
            if not receipt.accepted or receipt.state is not LeaseState.held:
                self._held.remove(held)

    def _submit(self, call: Callable[..., Answer], *arguments: object) -> Future[Answer]:
        """Call the service, in the thread if there is one: one call at a time, in this order."""
        if self._thread is not None:
            return self._thread.submit(call, *arguments)
        done: Future[Answer] = Future()
        try:
            done.set_result(call(*arguments))
        except RcaError as error:
            done.set_exception(error)
        return done
