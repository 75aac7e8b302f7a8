"""Ordering, showing and cancelling training runs."""

from __future__ import annotations

from typing import Any, NoReturn

from sqlalchemy import select

from rca_api.shell.requests.pagination import AskedPage
from rca_api.shell.requests.problems import ProblemError
from rca_api.shell.security.principal import Principal
from rca_api.shell.state import State
from rca_api.shell.store.base import now
from rca_api.training_runs import repository
from rca_api.training_runs.repository import ActiveRun
from rca_api.training_runs.schemas import PromotionOrder, TrainingOrder, TrainingRun, TrainingRuns
from rca_api.training_runs.tables import TrainingRunRow
from rca_api.training_runs.task import available


def order_training(state: State, order: TrainingOrder, caller: Principal) -> TrainingRun:
    """Store an order to train."""
    found = available(state.settings.collections_dir)
    unknown = sorted(set(order.collections) - set(found))
    if unknown:
        raise ProblemError(
            "invalid-parameters",
            f"there is no collection {unknown[0]!r}",
            expected=", ".join(found) or None,
            hint="collections are folders in the operator's RCA_COLLECTIONS_DIR",
        )
    order = order.model_copy(update={"collections": sorted(set(order.collections))})
    return _ordered(state, "train", order.model_dump(), caller)


def order_promotion(state: State, version: str, gate_windows: int | None, caller: Principal) -> TrainingRun:
    """Store an order to compare a version with the champion and to promote it if it passes."""
    order = PromotionOrder(version=version, gate_windows=gate_windows)
    return _ordered(state, "promotion", order.model_dump(), caller)


def get(state: State, run_id: str) -> TrainingRun:
    """Look a run up."""
    with state.database.session() as session:
        row = repository.get(session, run_id, now())
        if row is None:
            _unknown(run_id)
        return TrainingRun.of(row)


def runs(state: State, paging: AskedPage) -> TrainingRuns:
    """One page of runs, newest first."""
    with state.database.reading() as session:
        keys = (TrainingRunRow.created_at, TrainingRunRow.id)
        found = paging.read(session, select(TrainingRunRow), keys, TrainingRun.of)
        return TrainingRuns(items=found.items, next=found.next)


def cancel(state: State, run_id: str) -> TrainingRun:
    """Cancel a run."""
    with state.database.session() as session:
        row = repository.cancel(session, run_id, now())
        if row is None:
            _unknown(run_id)
        if row.state in repository.FINAL and row.state != "cancelled":
            raise ProblemError("conflict", f"the run has {row.state} already")
        return TrainingRun.of(row)


def _ordered(state: State, kind: str, order: dict[str, Any], caller: Principal) -> TrainingRun:
    try:
        with state.database.session() as session:
            row = repository.create(
                session, kind, order, now=now(), asked_by=caller.id, asked_by_name=caller.name
            )
            return TrainingRun.of(row)
    except ActiveRun as active:
        raise ProblemError(
            "conflict",
            f"run {active.run_id} is queued or running; one run may be active at a time",
            headers={"Location": f"/v1/training-runs/{active.run_id}"},
            hint="wait for it, or cancel it",
        ) from None


def _unknown(run_id: str) -> NoReturn:
    raise ProblemError("not-found", f"there is no training run {run_id!r}")
