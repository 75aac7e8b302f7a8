"""Leases on shards: what is handed out, what is reported, and what a late report means.

A lease gives one worker the samples of a shard from an offset on. The worker reports the offset up to which
it has trained. That number only grows, so a report may come twice or late and changes nothing. When the lease
ends before the shard, the next lease begins at the reported offset: each sample is counted once.
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
    """A shard in the hands of a worker.

    Attributes
    ----------
    start, done : int
        Offsets in the shard: where this lease began, and up to where it has reported.
    expires_at : float
        Seconds of the clock of the shards.
    """

    id: str
    worker: str
    shard: Shard
    start: int
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
        if not self.start <= done <= self.shard.size:
            raise InvalidInput(
                f"lease {self.id!r} covers the samples {self.start:,} to {self.shard.size:,} of its shard, "
                f"the report says {done:,}",
                hint="report the offset in the shard up to which all samples are trained",
            )
        now = self.at(moment)
        if now.state is not LeaseState.held:
            return now
        done = max(done, now.done)
        state = LeaseState.finished if done == now.shard.size else LeaseState.held
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


@dataclass(frozen=True)
class Checkpoint:
    """All that is to be kept: every earlier shard that is not open is done.

    Attributes
    ----------
    next_position : int
        First shard that was never handed out.
    open : tuple of (int, int)
        Position and trained samples of each shard before it that is not done.
    """

    next_position: int
    open: tuple[tuple[int, int], ...]

    def check(self, plan: ShardPlan) -> None:
        """Raise `InvalidInput` unless it is a state of `plan`."""
        if not 0 <= self.next_position <= plan.n_positions:
            raise InvalidInput(f"next_position is {self.next_position:,}, the plan has {plan.n_positions:,}")
        positions = [position for position, _ in self.open]
        if positions != sorted(set(positions)):
            raise InvalidInput("open shards are not in ascending order, or one is given twice")
        for position, done in self.open:
            if not 0 <= position < self.next_position:
                raise InvalidInput(f"open shard {position:,} is not before next_position")
            if not 0 <= done < plan.size(position):
                raise InvalidInput(f"open shard {position:,} has {done:,} trained samples")

    def progress(self, plan: ShardPlan, held: Sequence[int] = ()) -> LeaseProgress:
        """Count shards and samples.

        Parameters
        ----------
        held : sequence of int
            Positions of open shards that have a lease.
        """
        handed, size = self.next_position, plan.n_shards
        doing = set(held)
        opened: dict[int, list[tuple[int, int]]] = {}
        for position, done in self.open:
            opened.setdefault(position // size, []).append((position, done))
        current, n_current = divmod(handed, size)
        waiting = set(opened) | ({current} if handed < plan.n_positions else set())
        epochs = []
        for epoch in sorted(waiting)[:MAX_EPOCHS_SHOWN]:
            begun = size if epoch < current else n_current
            mine = opened.get(epoch, [])
            n_doing = sum(position in doing for position, _ in mine)
            left = sum(plan.size(position) - done for position, done in mine)
            epochs.append(
                EpochProgress(
                    epoch,
                    todo=size - begun + len(mine) - n_doing,
                    doing=n_doing,
                    done=begun - len(mine),
                    samples=plan.n_handed_out(epoch, begun) - left,
                )
            )
        begun_now = plan.n_handed_out(current, n_current) if n_current else 0
        left = sum(plan.size(position) - done for position, done in self.open)
        return LeaseProgress(
            tuple(epochs),
            n_open=len(waiting),
            # Epochs before the current one have no shard to hand out: they are done unless one is open.
            n_done=current - sum(epoch < current for epoch in opened),
            samples=current * plan.n_samples + begun_now - left,
            finished=not waiting,
        )


class ShardService(Protocol):
    """What hands out shards: `Shards` in this process, or `ShardClient` of a service."""

    @property
    def plan(self) -> ShardPlan:
        """How the data set is cut."""

    def lease(self, worker: str, lease_id: str | None = None) -> Offer:
        """Give a shard to a worker; a call that repeats a `lease_id` gets the same lease."""

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
