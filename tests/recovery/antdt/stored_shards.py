"""Shards in a store of the service, each call in a transaction of its own, at the time of a clock."""

from __future__ import annotations

import atexit
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from sqlalchemy import event

from rca.runtime.data_shards.leases import Checkpoint, LeaseProgress, Offer, ShardReceipt, ShardReport
from rca.runtime.data_shards.shard_plan import ShardPlan
from rca_api.data_shards import repository
from rca_api.data_shards.repository import StoredShards
from rca_api.data_shards.tables import ReturnedShardRow, ShardLeaseRow, ShardSetRow
from rca_api.shell.store.base import new_id, now
from rca_api.shell.store.database import Database


class InStore:
    """The shards of a data set, which exists."""

    def __init__(self, database: Database, plan: ShardPlan, clock: Callable[[], float], name: str) -> None:
        self.database, self.plan, self.clock, self.name = database, plan, clock, name

    def _call(self, method: str, *arguments: Any) -> Any:
        at = datetime.fromtimestamp(self.clock(), UTC)
        with self.database.session() as session:
            return getattr(StoredShards(session, self.name, at), method)(*arguments)

    def lease(self, worker: str, lease_id: str | None = None, samples: int | None = None) -> Offer:
        return self._call("lease", worker, lease_id, samples)

    def report(self, reports: Sequence[ShardReport]) -> list[ShardReceipt]:
        return self._call("report", reports)

    def release(self, worker: str) -> int:
        return self._call("release", worker)

    def progress(self) -> LeaseProgress:
        at = datetime.fromtimestamp(self.clock(), UTC)
        with self.database.reading() as session:
            return StoredShards(session, self.name, at, locked=False).progress()

    def checkpoint(self) -> Checkpoint:
        return self._call("checkpoint")

    def restore(self, checkpoint: Checkpoint) -> None:
        self._call("restore", checkpoint)


class NewShards(InStore):
    """The shards of a new data set, in a database that all tests of this process share."""

    def __init__(self, plan: ShardPlan, clock: Callable[[], float] = time.time) -> None:
        super().__init__(_database(), plan, clock, new_id())
        with self.database.session() as session:
            repository.create(session, self.name, plan, now())


@cache
def _database() -> Database:
    folder = tempfile.TemporaryDirectory()
    atexit.register(folder.cleanup)
    database = Database(f"sqlite:///{Path(folder.name) / 'shards.db'}")
    # No test cuts the power.
    event.listen(database.engine, "connect", lambda held, _: held.execute("PRAGMA synchronous=OFF"))
    for table in (ShardSetRow, ShardLeaseRow, ReturnedShardRow):
        table.metadata.create_all(database.engine, [table.__table__])  # type: ignore[list-item]
    return database
