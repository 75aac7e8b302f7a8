"""What is remembered of nodes, and what it says about them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

from sqlalchemy.orm import Session

from rca_api.diagnoses.tables import DiagnosisRow
from rca_api.incidents.tables import ObservationRow
from rca_api.nodes import repository
from rca_api.nodes.fault_prior import THRESHOLD, lemon_probability
from rca_api.nodes.repository import Record
from rca_api.store.base import now

#: Nodes are repaired: what is older says little about them.
MEMORY = timedelta(days=90)
_LONGEST_NAME = 256


class Exposures:
    """Told of every finished diagnosis (`State.on_diagnosed`), after the incidents.

    A window counts where its verdict says something about a node: a healthy one about all nodes of its job,
    and so does a slow one that says which nodes are slow, because it compared them all. Slowness without a
    place and a stop, in which nobody worked, say nothing about the nodes they do not blame; an abstention
    says nothing at all. Names come from the window's job, where the diagnosis has it, and from blames.
    """

    def __init__(self, clock: Callable[[], datetime] = now) -> None:
        self._clock = clock

    def __call__(self, session: Session, row: DiagnosisRow) -> None:
        """Note the nodes that one diagnosed window judged."""
        seen = session.get(ObservationRow, (row.job_id, row.window_end, row.window_start))
        if seen is None or seen.diagnosis_id != row.id:
            return
        nodes = _judged_nodes(row)
        # In one order everywhere: two replicas must not wait for each other in a ring.
        named = sorted(node for node in nodes if 0 < len(node) <= _LONGEST_NAME and "\0" not in node)
        repository.expose(session, named, row, self._clock())


def _judged_nodes(row: DiagnosisRow) -> set[str]:
    if row.abstained:
        return set()
    named = {blame.node: blame.owner for blame in row.blames if blame.node is not None}
    if row.failure_mode == "healthy" or (row.failure_mode == "fail_slow" and named):
        return {*(row.nodes or ()), *named}
    return {node for node, owner in named.items() if owner != "workload"}


def judged(record: Record, prior: float) -> float:
    """Probability that a node is a lemon."""
    return lemon_probability(record.blames, record.jobs, prior)


def lemon_probabilities(
    session: Session,
    nodes: Sequence[str],
    prior: float,
    *,
    besides: str | None = None,
    at: datetime | None = None,
) -> dict[str, float]:
    """Current probability of nodes to be lemons; those that no job judged are left out.

    Parameters
    ----------
    prior : float
        Share of lemons among all nodes: what holds for those that are left out.
    besides : str, optional
        The job that asks: its own diagnoses must not confirm themselves.
    """
    if not nodes:
        return {}
    since = (at or now()) - MEMORY
    found = repository.records(session, since=since, nodes=nodes, besides=besides)
    return {record.node: judged(record, prior) for record in sorted(found, key=lambda record: record.node)}


def known_lemons(
    session: Session,
    nodes: Sequence[str],
    prior: float,
    *,
    besides: str | None = None,
    at: datetime | None = None,
) -> dict[str, float]:
    """Those of `nodes` that are lemons, as `lemon_probabilities` has it."""
    found = lemon_probabilities(session, nodes, prior, besides=besides, at=at)
    return {node: each for node, each in found.items() if each >= THRESHOLD}
