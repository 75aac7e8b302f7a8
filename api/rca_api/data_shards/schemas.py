"""Data sets in shards, in requests and answers."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from rca.runtime.data_shards.leases import (
    MAX_EPOCHS_SHOWN,
    Checkpoint,
    Lease,
    LeaseProgress,
    LeaseState,
    Offer,
    ShardReceipt,
    ShardReport,
)
from rca.runtime.data_shards.shard_plan import (
    MAX_EPOCHS,
    MAX_LEASE_SECONDS,
    MAX_SAMPLES,
    MAX_SEED,
    MAX_SHARD,
    ShardPlan,
)
from rca_api.data_shards.tables import ShardSetRow
from rca_api.shell.requests.parameters import GivenBody, Name

#: Most reports in one request, and most open shards of a checkpoint.
MAX_REPORTS, MAX_OPEN = 1000, 20_000

SetName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")]
LeaseId = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
Count = Annotated[int, Field(ge=0, le=MAX_SAMPLES)]


class NewShardSet(GivenBody):
    """A data set that is to be handed out in shards."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"name": "llama-17", "n_samples": 1_000_000, "shard_size": 2048, "n_epochs": 2}]
        }
    )

    name: SetName = Field(description="Chosen by the caller: all workers may create it.")
    n_samples: int = Field(ge=1, le=MAX_SAMPLES)
    shard_size: int = Field(ge=1, le=MAX_SHARD, description="Samples of a shard.")
    n_epochs: int = Field(1, ge=1, le=MAX_EPOCHS)
    seed: int = Field(0, ge=0, le=MAX_SEED)
    shuffle: bool = Field(True, description="Whether shards and their samples have a random order.")
    lease_seconds: float = Field(
        60.0,
        gt=0,
        le=MAX_LEASE_SECONDS,
        description="A worker that reports nothing for so long loses its shards.",
    )

    @property
    def plan(self) -> ShardPlan:
        """How the data set is cut."""
        return ShardPlan(**self.model_dump(exclude={"name"}))


class WantedLease(GivenBody):
    """A worker that wants a shard."""

    worker: Name = Field(description="Name of the worker, such as its rank.")
    lease_id: LeaseId | None = Field(
        None,
        description="Chosen by the worker, new for each lease, also after a restore. "
        "A request that repeats it gets the same lease.",
    )
    samples: Annotated[int, Field(ge=1, le=MAX_SHARD)] | None = Field(
        None,
        description="When little is left, the lease is a part of a shard, of so many samples or more. "
        "Without it, a lease goes to the end of its shard.",
    )


class GivenReport(GivenBody):
    """Progress in one shard."""

    lease_id: LeaseId
    done: Count = Field(description="Offset in the shard up to which all samples are trained.")

    def read(self) -> ShardReport:
        """The report as a value."""
        return ShardReport(self.lease_id, self.done)


class Reports(GivenBody):
    """Progress in several shards. Each report also renews its lease."""

    reports: list[GivenReport] = Field(min_length=1, max_length=MAX_REPORTS)


class EndedWorker(GivenBody):
    """A worker that has died or ended."""

    worker: Name


class OpenShard(GivenBody):
    """A part of a shard that has begun and is not done."""

    position: Count
    done: Count = Field(description="Offset of the first sample that is not trained.")
    stop: Count | None = Field(None, description="Where the part ends; null is the end of the shard.")


class ShardCheckpoint(GivenBody):
    """State of a data set, to be kept beside a checkpoint of the model."""

    next_position: Count = Field(description="First shard that was never handed out.")
    open: list[OpenShard] = Field(
        max_length=MAX_OPEN, description="Parts before it that are not done, in ascending order."
    )

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> ShardCheckpoint:
        """Read a value."""
        shards = [
            OpenShard(position=position, done=done, stop=stop) for position, done, stop in checkpoint.open
        ]
        return cls(next_position=checkpoint.next_position, open=shards)

    def read(self) -> Checkpoint:
        """The checkpoint as a value."""
        return Checkpoint(
            self.next_position, tuple((each.position, each.done, each.stop) for each in self.open)
        )


class ShardLease(BaseModel):
    """A shard in the hands of a worker."""

    id: str
    worker: str
    position: int = Field(description="Number of the shard through all epochs.")
    epoch: int
    first: int = Field(description="Number of the shard's first sample in the data set.")
    size: int
    start: int = Field(description="Offset in the shard where this lease begins.")
    stop: int = Field(description="Offset in the shard where this lease ends.")
    done: int
    expires_at: float = Field(description="Unix seconds.")

    @classmethod
    def of(cls, lease: Lease) -> ShardLease:
        """Read a value."""
        return cls.model_validate(asdict(lease.shard) | asdict(lease))


class ShardOffer(BaseModel):
    """Answer to a worker that wants a shard."""

    lease: ShardLease | None
    finished: bool = Field(description="Whether all epochs are done.")
    wait_seconds: float | None = Field(
        description="Without a lease: try again after so long, when leases of others may have expired."
    )

    @classmethod
    def of(cls, offer: Offer) -> ShardOffer:
        """Read a value."""
        lease = None if offer.lease is None else ShardLease.of(offer.lease)
        return cls(lease=lease, finished=offer.finished, wait_seconds=offer.wait_seconds)


class ReportReceipt(BaseModel):
    """Answer to a report."""

    lease_id: str
    accepted: bool = Field(description="False if the lease had ended: the report changes nothing.")
    done: int = Field(description="Offset up to which samples count for this lease.")
    state: LeaseState

    @classmethod
    def of(cls, receipt: ShardReceipt) -> ReportReceipt:
        """Read a value."""
        return cls.model_validate(receipt, from_attributes=True)


class Receipts(BaseModel):
    """One receipt for each report, in their order."""

    receipts: list[ReportReceipt]


class Returned(BaseModel):
    """Shards that a worker had."""

    returned: int = Field(description="Number of shards that other workers can have now.")


class ShardEpoch(BaseModel):
    """Shards of one epoch by state, and trained samples."""

    epoch: int
    todo: int
    doing: int
    done: int
    samples: int


class ShardSet(BaseModel):
    """A data set that is handed out in shards."""

    name: str
    n_samples: int
    shard_size: int
    n_epochs: int
    seed: int
    shuffle: bool
    lease_seconds: float
    created_at: datetime
    updated_at: datetime = Field(description="Last request of a worker.")

    @classmethod
    def of(cls, row: ShardSetRow) -> ShardSet:
        """Read a row."""
        return cls.model_validate(row, from_attributes=True)


class ShardSetPage(BaseModel):
    """Data sets, the one with the newest request first."""

    items: list[ShardSet]
    next: str | None


class ShardProgress(ShardSet):
    """A data set and how much of it is trained."""

    epochs: list[ShardEpoch] = Field(
        max_length=MAX_EPOCHS_SHOWN,
        description="Epochs that hand out shards or wait for open ones, in ascending order.",
    )
    n_open: int = Field(description="Number of such epochs; `epochs` has the first ones.")
    n_done: int = Field(description="Number of epochs that are done.")
    samples: int = Field(description="Trained samples of all epochs.")
    samples_of_workers: dict[str, int] = Field(
        description="Trained samples of each worker since the last restore."
    )
    finished: bool

    @classmethod
    def read(cls, given: ShardSet, found: LeaseProgress, samples_of_workers: dict[str, int]) -> ShardProgress:
        """Join a data set and its progress."""
        progress = asdict(found) | {"samples_of_workers": samples_of_workers}
        return cls.model_validate(given.model_dump() | progress)
