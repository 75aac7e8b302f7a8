"""Records of nodes, and the lemon probability that follows from them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

from sqlalchemy.orm import Session

from rca.window.causes import UNKNOWN
from rca_api.diagnoses.tables import DiagnosisRow
from rca_api.incidents.tables import ObservationRow
from rca_api.nodes import repository
from rca_api.nodes.fault_prior import THRESHOLD, lemon_probability
from rca_api.nodes.repository import NodeRecord
from rca_api.shell.store.base import now

#: Only records of this age count, because nodes are repaired.
RECORD_AGE = timedelta(days=90)
_MAX_NAME_LENGTH = 256


class Exposures:
    """Records node verdicts; called for every finished diagnosis (`State.on_diagnosed`), after the incidents.

    Which nodes a window has a verdict about depends on its failure mode:

    - healthy, or slow with named nodes: all nodes of the job, because all were compared;
    - slow without named nodes, or stopped: only the nodes that it blames;
    - abstained, or healthy by exporters alone: none.
    """

    def __init__(self, clock: Callable[[], datetime] = now) -> None:
        self._clock = clock

    def __call__(self, session: Session, row: DiagnosisRow) -> None:
        """Record the nodes that one diagnosed window has a verdict about."""
        seen = session.get(ObservationRow, (row.job_id, row.window_end, row.window_start))
        if seen is None or seen.diagnosis_id != row.id or (seen.untimed and seen.verdict == "healthy"):
            return
        repository.expose(session, judged_nodes(row), row, self._clock())


def judged_nodes(row: DiagnosisRow) -> list[str]:
    """The nodes that a diagnosis has a verdict about, in an order in which two replicas cannot deadlock."""
    return sorted(node for node in _judged(row) if 0 < len(node) <= _MAX_NAME_LENGTH and "\0" not in node)


def _judged(row: DiagnosisRow) -> set[str]:
    # A fault without a known cause blames no node, and clears none.
    if row.abstained or row.cause == UNKNOWN:
        return set()
    named = {blame.node: blame.owner for blame in row.blames if blame.node is not None}
    if row.failure_mode == "healthy" or (row.failure_mode == "fail_slow" and named):
        return {*(row.nodes or ()), *named}
    return {node for node, owner in named.items() if owner != "workload"}


def judged(record: NodeRecord, prior: float) -> float:
    """Probability that a node is a lemon."""
    return lemon_probability(record.blames, record.jobs, prior)


def lemon_probabilities(
    session: Session,
    nodes: Sequence[str],
    prior: float,
    *,
    exclude_job: str | None = None,
    at: datetime | None = None,
) -> dict[str, float]:
    """Lemon probability of nodes; nodes without a verdict are left out.

    Parameters
    ----------
    prior : float
        Share of lemons among all nodes, which holds for those that are left out.
    exclude_job : str, optional
        Job whose own diagnoses do not count, so that they do not confirm themselves.
    """
    if not nodes:
        return {}
    since = (at or now()) - RECORD_AGE
    found = repository.records(session, since=since, nodes=nodes, exclude_job=exclude_job)
    return {record.node: judged(record, prior) for record in sorted(found, key=lambda record: record.node)}


def known_lemons(
    session: Session,
    nodes: Sequence[str],
    prior: float,
    *,
    exclude_job: str | None = None,
    at: datetime | None = None,
) -> dict[str, float]:
    """The lemons among `nodes`, with their probabilities; see `lemon_probabilities`."""
    found = lemon_probabilities(session, nodes, prior, exclude_job=exclude_job, at=at)
    return {node: each for node, each in found.items() if each >= THRESHOLD}
