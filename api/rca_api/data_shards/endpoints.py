"""`/v1/data-shards`: data sets that workers of a training job train in shards, each sample once per epoch."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Request, Response, status
from sqlalchemy import select

from rca_api.data_shards import repository
from rca_api.data_shards.repository import StoredShards
from rca_api.data_shards.schemas import (
    EndedWorker,
    NewShardSet,
    Receipts,
    ReportReceipt,
    Reports,
    Returned,
    SetName,
    ShardCheckpoint,
    ShardOffer,
    ShardProgress,
    ShardSet,
    ShardSetPage,
    WantedLease,
)
from rca_api.data_shards.tables import ShardSetRow
from rca_api.shell.requests.pagination import LINK_HEADER, Paging
from rca_api.shell.requests.problems import COMMON, problem_responses
from rca_api.shell.requests.request_bodies import BODY_PROBLEMS, SmallBodies
from rca_api.shell.security.access import Diagnoser, Reader
from rca_api.shell.state import State
from rca_api.shell.store.base import now

router = APIRouter(prefix="/v1/data-shards", tags=["data shards"], route_class=SmallBodies)

Id = Annotated[SetName, Path(description="Name of the data set.")]
_LISTED = problem_responses(*COMMON)
_ONE = problem_responses(*COMMON, "not-found")
_CREATED = problem_responses(*COMMON, *BODY_PROBLEMS, "invalid-input", "conflict")
_SENT = problem_responses(*COMMON, *BODY_PROBLEMS, "invalid-input", "not-found")


@router.post(
    "",
    status_code=status.HTTP_201_CREATED,
    summary="Create a data set in shards",
    responses={200: {"description": "It exists and is cut in the same way.", "model": ShardSet}, **_CREATED},
)
def create_shard_set(request: Request, response: Response, _: Diagnoser, given: NewShardSet) -> ShardSet:
    """Create a data set, or find the one that another worker has created."""
    with State.of(request).database.session() as session:
        if not repository.create(session, given.name, given.plan, now()):
            response.status_code = status.HTTP_200_OK
        response.headers["Location"] = f"{router.prefix}/{given.name}"
        return ShardSet.of(session.get_one(ShardSetRow, given.name))


@router.get(
    "",
    summary="List data sets in shards",
    responses={200: {"headers": LINK_HEADER}, **_LISTED},
)
def list_shard_sets(request: Request, _: Reader, paging: Paging) -> ShardSetPage:
    """List data sets, the one with the newest request of a worker first."""
    keys = (ShardSetRow.updated_at, ShardSetRow.name)
    with State.of(request).database.reading() as session:
        found = paging.read(session, select(ShardSetRow), keys, ShardSet.of)
    return ShardSetPage(items=found.items, next=found.next)


@router.get("/{name}", summary="Show the progress of a data set", responses=_ONE)
def get_shard_set(request: Request, _: Reader, name: Id) -> ShardProgress:
    """Get the numbers of shards to do, leased and done, and of trained samples."""
    with State.of(request).database.reading() as session:
        shards = StoredShards(session, name, now(), locked=False)
        shard_set = ShardSet.of(session.get_one(ShardSetRow, name))
        checkpoint, held = shards.checkpoint(), shards.held_positions()
        trained = shards.samples_of_workers()
    # Counted after the transaction, so that no worker waits for it.
    return ShardProgress.read(shard_set, checkpoint.progress(shards.plan, held), trained)


@router.post("/{name}/leases", summary="Lease a shard", responses=_SENT)
def lease_shard(request: Request, _: Diagnoser, name: Id, given: WantedLease) -> ShardOffer:
    """Lease the first shard that is to do. Shards of dead workers come first.

    Its samples are those from `start` to `stop`. Report before the lease expires.
    """
    with State.of(request).database.session() as session:
        offer = StoredShards(session, name, now()).lease(given.worker, given.lease_id, given.samples)
    return ShardOffer.of(offer)


@router.post("/{name}/reports", summary="Report trained samples", responses=_SENT)
def report_shards(request: Request, _: Diagnoser, name: Id, given: Reports) -> Receipts:
    """Count trained samples and renew the leases; they are durable when this answers.

    A report may be repeated. One whose lease has ended is not accepted and changes nothing.
    """
    with State.of(request).database.session() as session:
        shards = StoredShards(session, name, now())
        receipts = shards.report([each.read() for each in given.reports])
    return Receipts(receipts=[ReportReceipt.of(each) for each in receipts])


@router.post("/{name}/releases", summary="Take the shards of a worker back", responses=_SENT)
def release_worker(request: Request, _: Diagnoser, name: Id, given: EndedWorker) -> Returned:
    """Say that a worker has died or ended, so that others get its shards before its leases expire."""
    with State.of(request).database.session() as session:
        return Returned(returned=StoredShards(session, name, now()).release(given.worker))


@router.get("/{name}/checkpoint", summary="Get the state of a data set", responses=_ONE)
def get_checkpoint(request: Request, _: Reader, name: Id) -> ShardCheckpoint:
    """Get the state to keep beside a checkpoint of the model."""
    with State.of(request).database.reading() as session:
        return ShardCheckpoint.of(StoredShards(session, name, now(), locked=False).checkpoint())


@router.post("/{name}/restore", summary="Restore the state of a data set", responses=_SENT)
def restore_checkpoint(request: Request, _: Diagnoser, name: Id, given: ShardCheckpoint) -> ShardSet:
    """Go back to a checkpoint, as the model does.

    Earlier leases are dropped: their reports are ignored, and their ids are not given again.
    """
    database, checkpoint = State.of(request).database, given.read()
    # Checked before the transaction that writes, so that no worker waits for it.
    with database.reading() as session:
        plan = repository.plan_of(session, name)
    checkpoint.check(plan)
    with database.session() as session:
        StoredShards(session, name, now()).restore(checkpoint, checked=plan)
        return ShardSet.of(session.get_one(ShardSetRow, name))


@router.delete("/{name}", status_code=status.HTTP_204_NO_CONTENT, summary="Delete a data set", responses=_ONE)
def delete_shard_set(request: Request, _: Diagnoser, name: Id) -> Response:
    """Delete the bookkeeping of a data set; the data itself is not touched."""
    with State.of(request).database.session() as session:
        repository.remove(session, name)
    return Response(status_code=status.HTTP_204_NO_CONTENT)
