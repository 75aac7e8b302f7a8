"""Shards in the database; every method works in the caller's transaction.

A transaction that writes locks the row of the data set first, so requests for one data set follow each other.
The rules of leases and reports are those of `rca.runtime.data_shards.leases`.

The state of a data set is the first position that was never handed out, and the parts of shards before it
that are returned or leased. All others before it are done.

References
----------
.. [1] Xiao et al., "AntDT: A Self-Adaptive Distributed Training Framework for Leader and Straggler Nodes",
   arXiv 2404.09679, 2024.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from datetime import datetime
from itertools import groupby

from sqlalchemy import ColumnElement, Select, and_, delete, func, not_, select, update
from sqlalchemy.orm import Session

from rca.errors import InvalidInput
from rca.runtime.data_shards.leases import (
    SHARE_OF_REST,
    Checkpoint,
    Lease,
    LeaseProgress,
    LeaseState,
    Offer,
    OpenPart,
    ShardReceipt,
    ShardReport,
    end_of_lease,
)
from rca.runtime.data_shards.shard_plan import ShardPlan
from rca_api.data_shards.tables import ReturnedShardRow, ShardLeaseRow, ShardSetRow
from rca_api.shell.requests.problems import ProblemError
from rca_api.shell.store.base import new_id
from rca_api.shell.store.deletion import delete_rows, insert_if_absent
from rca_api.shell.store.waits import furthest_seconds

_HELD, _DROPPED = LeaseState.held.value, LeaseState.dropped.value


def create(session: Session, name: str, plan: ShardPlan, at: datetime) -> bool:
    """Create a data set; False if it exists.

    Raises
    ------
    ProblemError
        ``conflict`` if it exists and is cut in another way.
    """
    new = insert_if_absent(
        session, ShardSetRow, name=name, **asdict(plan), next_position=0, created_at=at, updated_at=at
    )
    if not new and session.get_one(ShardSetRow, name).plan != plan:
        raise ProblemError(
            "conflict",
            f"data set {name!r} exists and is cut in another way",
            hint="choose another name, or delete it first",
        )
    return new


def remove(session: Session, name: str) -> None:
    """Delete a data set.

    Raises
    ------
    ProblemError
        ``not-found`` if there is none.
    """
    if not delete_rows(session, ShardSetRow, [(name,)]):
        raise _unknown(name)


def plan_of(session: Session, name: str) -> ShardPlan:
    """How a data set is cut; locks nothing.

    Raises
    ------
    ProblemError
        ``not-found`` if there is none.
    """
    row = session.get(ShardSetRow, name)
    if row is None:
        raise _unknown(name)
    return row.plan


class StoredShards:
    """The shards of one data set.

    Parameters
    ----------
    at : datetime
        Leases that have expired by then are ended.
    locked : bool
        False for reading only: then expired leases are not ended, but shown as expired.

    Raises
    ------
    ProblemError
        ``not-found`` if there is no such data set.
    """

    def __init__(self, session: Session, name: str, at: datetime, *, locked: bool = True) -> None:
        # Readers lock the row as well, so that what they read in several queries belongs together.
        lock = True if locked else {"read": True}
        row = session.get(ShardSetRow, name, with_for_update=lock, populate_existing=True)
        if row is None:
            raise _unknown(name)
        self._session = session
        self._row = row
        self._at = at.timestamp()
        self.plan = row.plan
        if locked:
            row.updated_at = at
            for lease in self._held(not_(self._lasts())):
                self._store(replace(lease.read(self.plan), state=LeaseState.expired), lease)
            session.flush()

    def lease(self, worker: str, lease_id: str | None = None, samples: int | None = None) -> Offer:
        """Give the first shard that is to do to a worker.

        Parameters
        ----------
        lease_id : str, optional
            Chosen by the caller, so that it can repeat a call whose answer was lost.
        samples : int, optional
            When little is left, a part of the shard of so many samples or more. Without it, all of it.

        Raises
        ------
        InvalidInput
            If another worker has a lease of this id, or it has ended.
        """
        known = None if lease_id is None else self._find([lease_id]).get(lease_id)
        if known is not None:
            return self._again(known, worker)
        taken = self._take(worker, samples)
        if taken is None:
            ends = select(func.min(ShardLeaseRow.expires_at)).where(*self._is_held())
            first = self._session.scalar(ends)
            return Offer(None, first is None, None if first is None else max(first - self._at, 0.0))
        position, start, stop = taken
        expires_at = self._at + self.plan.lease_seconds
        row = ShardLeaseRow(
            set_name=self._row.name,
            id=lease_id or new_id(),
            worker=worker,
            position=position,
            start=start,
            stop=stop,
            done=start,
            expires_at=expires_at,
            state=_HELD,
        )
        self._session.add(row)
        return Offer(row.read(self.plan))

    def report(self, reports: Sequence[ShardReport]) -> list[ShardReceipt]:
        """Count trained samples, and renew the leases; gives a receipt for each report.

        Reports of leases that have ended are not accepted and change nothing.

        Raises
        ------
        InvalidInput
            If an offset is outside of its lease; the caller's transaction must not commit then.
        """
        rows = self._find({each.lease_id for each in reports})
        receipts = []
        for each in reports:
            row = rows.get(each.lease_id)
            if row is None or row.state == _DROPPED:
                receipts.append(ShardReceipt.unknown(each.lease_id))
                continue
            lease = row.read(self.plan).reported(each.done, self._at, self.plan.lease_seconds)
            receipts.append(ShardReceipt.of(lease, each.done))
            if row.state == _HELD:
                self._store(lease, row)
        self._session.flush()
        return receipts

    def release(self, worker: str) -> int:
        """Take all shards of a worker back; gives their number."""
        mine = self._held(ShardLeaseRow.worker == worker)
        for row in mine:
            self._store(replace(row.read(self.plan), state=LeaseState.released), row)
        self._session.flush()
        return len(mine)

    def checkpoint(self) -> Checkpoint:
        """The state to keep beside a checkpoint of the model."""
        rows = self._session.scalars(self._returned())
        returned: list[OpenPart] = [(row.position, *part) for row in rows for part in row.read(self.plan)]
        fields = ShardLeaseRow.position, ShardLeaseRow.done, ShardLeaseRow.stop
        held: list[OpenPart] = [
            (position, done, stop)
            for position, done, stop in self._session.execute(select(*fields).where(*self._is_held()))
        ]
        open_ = sorted(returned + held, key=lambda part: part[:2])
        return Checkpoint(self._row.next_position, tuple(open_))

    def held_positions(self) -> list[int]:
        """Shards in the hands of workers."""
        mine = select(ShardLeaseRow.position).where(*self._is_held(), self._lasts())
        return list(self._session.scalars(mine))

    def progress(self) -> LeaseProgress:
        """Count shards and samples."""
        return self.checkpoint().progress(self.plan, self.held_positions())

    def samples_of_workers(self) -> dict[str, int]:
        """Trained samples of each worker since the last restore."""
        trained = func.sum(ShardLeaseRow.done - ShardLeaseRow.start)
        mine = select(ShardLeaseRow.worker, trained).where(
            ShardLeaseRow.set_name == self._row.name, ShardLeaseRow.state != _DROPPED
        )
        found = self._session.execute(mine.group_by(ShardLeaseRow.worker).order_by(ShardLeaseRow.worker))
        return {worker: int(samples) for worker, samples in found}

    def restore(self, checkpoint: Checkpoint, checked: ShardPlan | None = None) -> None:
        """Go back to a checkpoint. Reports of earlier leases are ignored, and their ids are not used again.

        Parameters
        ----------
        checked : ShardPlan, optional
            The checkpoint fits it, and is not checked again.

        Raises
        ------
        InvalidInput
            If it is not a checkpoint of this plan.
        """
        if checked != self.plan:
            checkpoint.check(self.plan)
        name = self._row.name
        # Their rows stay, so that a late report is never taken for that of a newer lease with the same id.
        earlier = update(ShardLeaseRow).where(ShardLeaseRow.set_name == name, ShardLeaseRow.state != _DROPPED)
        self._session.execute(earlier.values(state=_DROPPED))
        self._session.execute(delete(ReturnedShardRow).where(ReturnedShardRow.set_name == name))
        # The rows that this session has read are gone.
        self._session.expire_all()
        self._row.next_position = checkpoint.next_position
        for position, parts in groupby(checkpoint.open, key=lambda part: part[0]):
            size = self.plan.size(position)
            self._keep(position, [(done, size if stop is None else stop) for _, done, stop in parts])

    def _again(self, row: ShardLeaseRow, worker: str) -> Offer:
        if row.worker != worker:
            raise InvalidInput(f"lease {row.id!r} belongs to another worker")
        if row.state != _HELD:
            raise InvalidInput(f"lease {row.id!r} has ended: {row.state}", hint="use a new lease_id")
        return Offer(row.read(self.plan))

    def _take(self, worker: str, samples: int | None) -> tuple[int, int, int] | None:
        """Position, first sample and end of what is to do first."""
        n_new = self.plan.n_positions - self._row.next_position
        others = select(ShardLeaseRow.worker).where(*self._is_held()).distinct()
        n_workers = len({worker, *self._session.scalars(others)})
        # With more shards than this, none is split.
        rows = self._session.scalars(self._returned().limit(2 * SHARE_OF_REST * n_workers)).all()
        returned = sum(stop - done for row in rows for done, stop in row.read(self.plan))
        left = returned + n_new * self.plan.shard_size
        if rows:
            position, parts = rows[0].position, rows[0].read(self.plan)
        elif n_new:
            position = self._row.next_position
            parts = [(0, self.plan.size(position))]
            self._row.next_position += 1
        else:
            return None
        (start, end), *rest = parts
        stop = end_of_lease(start, end, samples, left, n_workers)
        self._keep(position, [(stop, end), *rest] if stop < end else rest)
        return position, start, stop

    def _returned(self) -> Select[ReturnedShardRow]:
        mine = select(ReturnedShardRow).where(ReturnedShardRow.set_name == self._row.name)
        return mine.order_by(ReturnedShardRow.position)

    def _keep(self, position: int, parts: Sequence[tuple[int, int]]) -> None:
        """Keep the parts of a shard that no worker has: first sample and end of each."""
        row = self._session.get(ReturnedShardRow, (self._row.name, position))
        if parts:
            row = row or ReturnedShardRow(set_name=self._row.name, position=position)
            row.write(parts)
            self._session.add(row)
        elif row is not None:
            self._session.delete(row)
        self._session.flush()

    def _is_held(self) -> tuple[ColumnElement[bool], ...]:
        return ShardLeaseRow.set_name == self._row.name, ShardLeaseRow.state == _HELD

    def _lasts(self) -> ColumnElement[bool]:
        """The condition that a lease has not expired, by a clock that may have been put back."""
        furthest = self._at + furthest_seconds(self.plan.lease_seconds)
        return and_(ShardLeaseRow.expires_at > self._at, ShardLeaseRow.expires_at <= furthest)

    def _held(self, condition: ColumnElement[bool]) -> Sequence[ShardLeaseRow]:
        return self._session.scalars(select(ShardLeaseRow).where(*self._is_held(), condition)).all()

    def _find(self, ids: Iterable[str]) -> dict[str, ShardLeaseRow]:
        mine = select(ShardLeaseRow).where(ShardLeaseRow.set_name == self._row.name)
        found = self._session.scalars(mine.where(ShardLeaseRow.id.in_(list(ids))))
        return {row.id: row for row in found}

    def _store(self, lease: Lease, row: ShardLeaseRow) -> None:
        """Write a held lease as it is now; a shard that is not done comes back with its end."""
        row.done, row.expires_at, row.state = lease.done, lease.expires_at, lease.state.value
        if lease.state in (LeaseState.expired, LeaseState.released):
            known = self._session.get(ReturnedShardRow, (self._row.name, row.position))
            parts = [] if known is None else known.read(self.plan)
            self._keep(row.position, [*parts, (lease.done, lease.stop)])


def _unknown(name: str) -> ProblemError:
    return ProblemError("not-found", f"there is no data set {name!r}")
