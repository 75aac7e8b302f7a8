"""Tables of data sets that are handed out in shards."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import JSON, BigInteger, ForeignKey, ForeignKeyConstraint, Index, String
from sqlalchemy.orm import Mapped, mapped_column

from rca.runtime.data_shards.leases import Lease, LeaseState
from rca.runtime.data_shards.shard_plan import ShardPlan
from rca_api.shell.store.base import Base, UtcDateTime, now


class ShardSetRow(Base):
    """A data set, how it is cut, and the first shard that was never handed out."""

    __tablename__ = "data_shard_sets"
    __table_args__ = (Index("ix_data_shard_sets_newest", "updated_at", "name"),)

    name: Mapped[str] = mapped_column(String(128), primary_key=True)
    n_samples: Mapped[int] = mapped_column(BigInteger)
    shard_size: Mapped[int] = mapped_column(BigInteger)
    n_epochs: Mapped[int]
    seed: Mapped[int] = mapped_column(BigInteger)
    shuffle: Mapped[bool]
    lease_seconds: Mapped[float]
    next_position: Mapped[int] = mapped_column(BigInteger, default=0)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=now)
    #: Last request of a worker.
    updated_at: Mapped[datetime] = mapped_column(UtcDateTime, default=now)

    @property
    def plan(self) -> ShardPlan:
        """How the data set is cut."""
        return ShardPlan(
            self.n_samples, self.shard_size, self.n_epochs, self.seed, self.shuffle, self.lease_seconds
        )


class ReturnedShardRow(Base):
    """Parts of a shard that no worker has and that are not done, of a shard before `next_position`."""

    __tablename__ = "returned_data_shards"

    set_name: Mapped[str] = mapped_column(
        ForeignKey("data_shard_sets.name", ondelete="CASCADE"), primary_key=True
    )
    position: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    #: First sample that is not trained.
    done: Mapped[int] = mapped_column(BigInteger)
    #: First sample and end of each part, in ascending order; null is all from `done` on.
    parts: Mapped[list[list[int]] | None] = mapped_column(JSON)

    def read(self, plan: ShardPlan) -> list[tuple[int, int]]:
        """First sample and end of each part, in ascending order."""
        held = [[self.done, plan.size(self.position)]] if self.parts is None else self.parts
        return [(done, stop) for done, stop in held]

    def write(self, parts: Sequence[tuple[int, int]]) -> None:
        """Keep these parts, one or more."""
        self.parts = sorted(map(list, parts))
        self.done = self.parts[0][0]


class ShardLeaseRow(Base):
    """A lease, kept after its end: it says which worker has trained which samples.

    `stop` is null in rows of an earlier version: the end of the shard.
    """

    __tablename__ = "data_shard_leases"
    __table_args__ = (
        ForeignKeyConstraint(["set_name"], ["data_shard_sets.name"], ondelete="CASCADE"),
        Index("ix_data_shard_leases_state", "set_name", "state", "expires_at"),
    )

    set_name: Mapped[str] = mapped_column(String(128), primary_key=True)
    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    worker: Mapped[str] = mapped_column(String(256))
    position: Mapped[int] = mapped_column(BigInteger)
    #: Offsets in the shard: where the lease begins and ends, and up to where its samples are trained.
    start: Mapped[int] = mapped_column(BigInteger)
    stop: Mapped[int | None] = mapped_column(BigInteger)
    done: Mapped[int] = mapped_column(BigInteger)
    #: Unix seconds.
    expires_at: Mapped[float]
    #: held, finished, expired, released, dropped
    state: Mapped[str] = mapped_column(String(16))

    def read(self, plan: ShardPlan) -> Lease:
        """The lease as a value."""
        shard = plan.shard(self.position)
        return Lease(
            self.id,
            self.worker,
            shard,
            self.start,
            shard.size if self.stop is None else self.stop,
            self.done,
            self.expires_at,
            LeaseState(self.state),
        )
