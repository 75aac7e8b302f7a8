"""Leases on shards: what is handed out, what is reported, and what a late report means.

A lease gives one worker a part of a shard. The worker reports the offset up to which it has trained. That
number only grows, so a report may come twice or late and changes nothing. When the lease ends before its
part, the next lease begins at the reported offset: each sample is counted once.

A part is the whole shard while much is left. When little is left, shards are split, so that all workers end
together: a part is at most a share of what is left to do, as in guided self-scheduling [1]_.

References
----------
.. [1] Polychronopoulos and Kuck, "Guided Self-Scheduling", IEEE Transactions on Computers, 1987.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Protocol

from rca.errors import InvalidInput
from rca.runtime.data_shards.shard_plan import Shard, ShardPlan

#: Most epochs of a `Progress`.
MAX_EPOCHS_SHOWN = 100
#: A lease has at most this part of a worker's equal share of what is left. A worker that is so many times
#: slower than the average still ends with the others.
SHARE_OF_REST = 4


class LeaseState(StrEnum):
    """State of a lease; all but `held` are final."""

    held = "held"
    finished = "finished"
    expired = "expired"
    released = "released"
    #: A restore has ended it. Its reports are answered as those of an unknown lease.
    dropped = "dropped"
    #: Unknown: never given, dropped by a restore, or forgotten long after its end.
    unknown = "unknown"


@dataclass(frozen=True)
class Lease:
    """A part of a shard in the hands of a worker.

    Attributes
    ----------
    start, stop, done : int
        Offsets in the shard: where this lease begins and ends, and up to where it has reported.
    expires_at : float
        Seconds of the clock of the shards.
    """

    id: str
    worker: str
    shard: Shard
    start: int
    stop: int
    done: int
    expires_at: float
    state: LeaseState = LeaseState.held

    def at(self, moment: float) -> Lease:
        """The lease at a moment: it may have expired."""
        if self.state is LeaseState.held and moment >= self.expires_at:
            return replace(self, state=LeaseState.expired)
        return self

    def reported(self, done: int, moment: float, lease_seconds: float) -> Lease:
        """The lease after a report.

        Parameters
        ----------
        done : int
            Offset up to which the worker has trained. A smaller one than before only renews the lease.
        lease_seconds : float
            The lease is renewed by so much.

        Raises
        ------
        InvalidInput
            If the offset is outside of the lease.
        """
        if not self.start <= done <= self.stop:
            raise InvalidInput(
                f"lease {self.id!r} covers the samples {self.start:,} to {self.stop:,} of its shard, "
                f"the report says {done:,}",
                hint="report the offset in the shard up to which all samples are trained",
            )
        now = self.at(moment)
        if now.state is not LeaseState.held:
            return now
        done = max(done, now.done)
        state = LeaseState.finished if done == now.stop else LeaseState.held
        return replace(now, done=done, state=state, expires_at=max(now.expires_at, moment + lease_seconds))


@dataclass(frozen=True)
class Offer:
    """Answer to a worker that wants a shard.

    Attributes
    ----------
    lease : Lease or None
        None if all that is left is in the hands of other workers, or if all epochs are done.
    finished : bool
        Whether all epochs are done.
    wait_seconds : float or None
        Without a lease: when to try again, because leases of others may have expired by then.
    """

    lease: Lease | None
    finished: bool = False
    wait_seconds: float | None = None


@dataclass(frozen=True)
class ShardReport:
    """Progress of a worker: all samples of the lease's shard before `done` are trained."""

    lease_id: str
    done: int


@dataclass(frozen=True)
class ShardReceipt:
    """Answer to a report.

    Attributes
    ----------
    accepted : bool
        Whether all reported samples count for this lease. Otherwise another worker trains the rest.
    done : int
        Offset up to which samples count for this lease.
    """

    lease_id: str
    accepted: bool
    done: int
    state: LeaseState

    @classmethod
    def of(cls, lease: Lease, done: int) -> ShardReceipt:
        """Answer a report of `done`, given the lease after it."""
        return cls(lease.id, done <= lease.done, lease.done, lease.state)

    @classmethod
    def unknown(cls, lease_id: str) -> ShardReceipt:
        """Answer a report of a lease that does not exist."""
        return cls(lease_id, accepted=False, done=0, state=LeaseState.unknown)


@dataclass(frozen=True)
class EpochProgress:
    """Numbers of shards of one epoch by state, and of trained samples."""

    epoch: int
    todo: int
    doing: int
    done: int
    samples: int


@dataclass(frozen=True)
class LeaseProgress:
    """Progress of all epochs.

    Attributes
    ----------
    epochs : tuple of EpochProgress
        Epochs that hand out shards or wait for open ones, in ascending order; the first `MAX_EPOCHS_SHOWN`.
    n_open, n_done : int
        Numbers of such epochs, and of epochs that are done. All others have not begun.
    samples : int
        Trained samples of all epochs.
    """

    epochs: tuple[EpochProgress, ...]
    n_open: int
    n_done: int
    samples: int
    finished: bool


#: Samples of a shard that are not trained: its position, and offsets of the first one and of the end. None is
#: the end of the shard. Plain values, which checkpoints of models can hold.
OpenPart = tuple[int, int, int | None]


@dataclass(frozen=True)
class Checkpoint:
    """All that is to be kept: every sample of an earlier shard that is not open is trained.

    Attributes
    ----------
    next_position : int
        First shard that was never handed out.
    open : tuple of OpenPart
        Of the shards before it, in ascending order. A shard that was split may have several.
    """

    next_position: int
    open: tuple[OpenPart, ...]

    def __post_init__(self) -> None:
        # Checkpoints of an earlier version have pairs, without an end.
        object.__setattr__(self, "open", tuple((*each, None)[:3] for each in self.open))

    def check(self, plan: ShardPlan) -> None:
        """Raise `InvalidInput` unless it is a state of `plan`."""
        if not 0 <= self.next_position <= plan.n_positions:
            raise InvalidInput(f"next_position is {self.next_position:,}, the plan has {plan.n_positions:,}")
        before = (-1, 0)
        for position, done, stop in self.open:
            if not 0 <= position < self.next_position:
                raise InvalidInput(f"open shard {position:,} is not before next_position")
            end = plan.size(position) if stop is None else stop
            if not 0 <= done < end <= plan.size(position):
                raise InvalidInput(f"open shard {position:,} has no samples from {done:,} to {end:,}")
            if (position, done) < before:
                raise InvalidInput("open shards are not in ascending order, or one is given twice")
            before = (position, end)

    def progress(self, plan: ShardPlan, held: Sequence[int] = ()) -> LeaseProgress:
        """Count shards and samples.

        Parameters
        ----------
        held : sequence of int
            Positions of open shards that have a lease.
        """
        handed, size = self.next_position, plan.n_shards
        doing = set(held)
        opened: dict[int, dict[int, int]] = {}
        for part in self.open:
            lefts = opened.setdefault(part[0] // size, {})
            lefts[part[0]] = lefts.get(part[0], 0) + _n_samples(part, plan)
        current, n_current = divmod(handed, size)
        waiting = set(opened) | ({current} if handed < plan.n_positions else set())
        epochs = []
        for epoch in sorted(waiting)[:MAX_EPOCHS_SHOWN]:
            begun = size if epoch < current else n_current
            mine = opened.get(epoch, {})
            n_doing = sum(position in doing for position in mine)
            epochs.append(
                EpochProgress(
                    epoch,
                    todo=size - begun + len(mine) - n_doing,
                    doing=n_doing,
                    done=begun - len(mine),
                    samples=plan.n_handed_out(epoch, begun) - sum(mine.values()),
                )
            )
        begun_now = plan.n_handed_out(current, n_current) if n_current else 0
        left = sum(_n_samples(part, plan) for part in self.open)
        return LeaseProgress(
            tuple(epochs),
            n_open=len(waiting),
            # Epochs before the current one have no shard to hand out: they are done unless one is open.
            n_done=current - sum(epoch < current for epoch in opened),
            samples=current * plan.n_samples + begun_now - left,
            finished=not waiting,
        )


def _n_samples(part: OpenPart, plan: ShardPlan) -> int:
    position, done, stop = part
    return (plan.size(position) if stop is None else stop) - done


def end_of_lease(done: int, stop: int, samples: int | None, left: int, n_workers: int) -> int:
    """Where a lease on the open part from `done` to `stop` ends.

    Parameters
    ----------
    samples : int or None
        Fewer would not fill a batch of the worker. None for a worker that cannot have a part of a shard.
    left : int
        Samples that no worker has, this part included.
    n_workers : int
        Workers that train.
    """
    if samples is None:
        return stop
    return min(stop, done + max(samples, left // (SHARE_OF_REST * n_workers)))


class ShardService(Protocol):
    """What hands out shards: `ShardClient` of a service."""

    @property
    def plan(self) -> ShardPlan:
        """How the data set is cut."""

    def lease(self, worker: str, lease_id: str | None = None, samples: int | None = None) -> Offer:
        """Give a shard, or a part of it of `samples` or more; a repeated `lease_id` gets the same lease."""

    def report(self, reports: Sequence[ShardReport]) -> list[ShardReceipt]:
        """Count trained samples, and renew the leases."""

    def release(self, worker: str) -> int:
        """Take all shards of a worker back, because it has died or ended; gives their number."""

    def progress(self) -> LeaseProgress:
        """Count shards and samples."""

    def checkpoint(self) -> Checkpoint:
        """The state to keep beside a checkpoint of the model."""

    def restore(self, checkpoint: Checkpoint) -> None:
        """Go back to a checkpoint. Reports of earlier leases are ignored from then on."""
