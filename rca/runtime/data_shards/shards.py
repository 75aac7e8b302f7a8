"""Stateful dynamic data sharding in memory: shards are to do, in the hands of a worker, or done.

Fast workers come back sooner, so they train more shards. A shard whose worker died, or whose lease has
expired, is handed out again from the offset that was reported. Shards of the next epoch follow at once.

References
----------
.. [1] Xiao et al., "AntDT: A Self-Adaptive Distributed Training Framework for Leader and Straggler Nodes",
   arXiv 2404.09679, 2024.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace

from rca.errors import InvalidInput
from rca.runtime.data_shards.leases import (
    Checkpoint,
    Lease,
    LeaseProgress,
    LeaseState,
    Offer,
    ShardReceipt,
    ShardReport,
    end_of_lease,
)
from rca.runtime.data_shards.shard_plan import ShardPlan

#: Ended leases that are remembered, so that a repeated report gets the same answer.
REMEMBERED = 10_000


class Shards:
    """The shards of a data set; safe to use from several threads.

    Parameters
    ----------
    clock : callable
        Gives seconds.

    Notes
    -----
    The whole state is the first position that was never handed out, and the parts of shards before it that
    are returned or leased. All others before it are done.
    """

    def __init__(self, plan: ShardPlan, clock: Callable[[], float] = time.monotonic) -> None:
        self._plan = plan
        self._clock = clock
        self._lock = threading.Lock()
        self._next = 0
        #: End of each part that came back, by its position and first sample.
        self._returned: dict[tuple[int, int], int] = {}
        self._held: dict[str, Lease] = {}
        self._ended: OrderedDict[str, Lease] = OrderedDict()

    @property
    def plan(self) -> ShardPlan:
        """How the data set is cut."""
        return self._plan

    def lease(self, worker: str, lease_id: str | None = None, samples: int | None = None) -> Offer:
        """Give the first shard that is to do to a worker.

        Parameters
        ----------
        lease_id : str, optional
            Chosen by the caller, so that it can repeat a call whose answer was lost.
        samples : int, optional
            When little is left, a part of the shard of so many samples or more. Without it, all of it.

        Returns
        -------
        Offer

        Raises
        ------
        InvalidInput
            If another worker has a lease of this id.
        """
        with self._lock:
            at = self._now()
            if lease_id is not None and (known := self._known(lease_id)):
                if known.worker != worker:
                    raise InvalidInput(f"lease {lease_id!r} belongs to another worker")
                if known.state is LeaseState.held:
                    return Offer(known)
                raise InvalidInput(f"lease {lease_id!r} has ended: {known.state}", hint="use a new lease_id")
            left = self._n_left()
            if self._returned:
                position, start = min(self._returned)
                end = self._returned.pop((position, start))
            elif self._next < self._plan.n_positions:
                position, start, end = self._next, 0, self._plan.size(self._next)
                self._next += 1
            elif self._held:
                first = min(lease.expires_at for lease in self._held.values())
                return Offer(None, wait_seconds=max(first - at, 0.0))
            else:
                return Offer(None, finished=True)
            workers = {worker, *(lease.worker for lease in self._held.values())}
            stop = end_of_lease(start, end, samples, left, len(workers))
            if stop < end:
                self._returned[position, stop] = end
            shard = self._plan.shard(position)
            expires_at = at + self._plan.lease_seconds
            lease = Lease(lease_id or uuid.uuid4().hex, worker, shard, start, stop, start, expires_at)
            self._held[lease.id] = lease
            return Offer(lease)

    def report(self, reports: Sequence[ShardReport]) -> list[ShardReceipt]:
        """Count trained samples, and renew the leases.

        Parameters
        ----------
        reports : sequence of Report
            None of them counts if one is outside of its lease.

        Returns
        -------
        list of Receipt
            One for each report. Reports of leases that have ended are not accepted and change nothing.

        Raises
        ------
        InvalidInput
            If an offset is outside of its lease.
        """
        with self._lock:
            at = self._now()
            after: dict[str, Lease] = {}
            receipts = []
            for each in reports:
                lease = after.get(each.lease_id) or self._known(each.lease_id)
                if lease is None or lease.state is LeaseState.dropped:
                    receipts.append(ShardReceipt.unknown(each.lease_id))
                    continue
                after[lease.id] = lease = lease.reported(each.done, at, self._plan.lease_seconds)
                receipts.append(ShardReceipt.of(lease, each.done))
            for lease in after.values():
                if lease.state is LeaseState.held:
                    self._held[lease.id] = lease
                elif lease.id in self._held:
                    self._end(lease)
            return receipts

    def release(self, worker: str) -> int:
        """Take all shards of a worker back; gives their number."""
        with self._lock:
            self._now()
            mine = [lease for lease in self._held.values() if lease.worker == worker]
            for lease in mine:
                self._end(replace(lease, state=LeaseState.released))
            return len(mine)

    def progress(self) -> LeaseProgress:
        """Count shards and samples."""
        with self._lock:
            self._now()
            held = [lease.shard.position for lease in self._held.values()]
            return self._state().progress(self._plan, held)

    def checkpoint(self) -> Checkpoint:
        """The state to keep beside a checkpoint of the model."""
        with self._lock:
            self._now()
            return self._state()

    def restore(self, checkpoint: Checkpoint) -> None:
        """Go back to a checkpoint. Reports of earlier leases are ignored, and their ids are not used again.

        Raises
        ------
        InvalidInput
            If it is not a checkpoint of this plan.
        """
        checkpoint.check(self._plan)
        with self._lock:
            dropped = [*self._ended.values(), *self._held.values()]
            self._held.clear()
            self._ended.clear()
            for lease in dropped[-REMEMBERED:]:
                self._ended[lease.id] = replace(lease, state=LeaseState.dropped)
            self._next = checkpoint.next_position
            self._returned = {
                (position, done): self._plan.size(position) if stop is None else stop
                for position, done, stop in checkpoint.open
            }

    def _now(self) -> float:
        """The time; leases that have expired by now are ended."""
        at = self._clock()
        for lease in [each.at(at) for each in self._held.values()]:
            if lease.state is not LeaseState.held:
                self._end(lease)
        return at

    def _known(self, lease_id: str) -> Lease | None:
        return self._held.get(lease_id) or self._ended.get(lease_id)

    def _end(self, lease: Lease) -> None:
        del self._held[lease.id]
        if lease.state is not LeaseState.finished:
            self._returned[lease.shard.position, lease.done] = lease.stop
        self._ended[lease.id] = lease
        if len(self._ended) > REMEMBERED:
            self._ended.popitem(last=False)

    def _n_left(self) -> int:
        """Samples that no worker has; shards never handed out count as full ones."""
        returned = sum(stop - done for (_, done), stop in self._returned.items())
        return returned + (self._plan.n_positions - self._next) * self._plan.shard_size

    def _state(self) -> Checkpoint:
        held = [(lease.shard.position, lease.done, lease.stop) for lease in self._held.values()]
        returned = [(*place, stop) for place, stop in self._returned.items()]
        return Checkpoint(self._next, tuple(sorted(held + returned)))
