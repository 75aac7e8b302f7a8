"""What is remembered of nodes, and what it says about them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

from sqlalchemy.orm import Session

from rca_api.diagnoses.tables import DiagnosisRow
from rca_api.incidents.tables import ObservationRow
from rca_api.nodes import repository
from rca_api.nodes.lemons import THRESHOLD, lemon_probability
from rca_api.nodes.repository import Record
from rca_api.store.base import now

#: Nodes are repaired: what is older says little about them.
MEMORY = timedelta(days=90)
_LONGEST_NAME = 256


class Exposures:
    """Told of every finished diagnosis (`State.on_diagnosed`), after the incidents.

    A node's name comes from the window's job, where the diagnosis has it, and from its blames; a window that
    was observed before is not counted a second time.
    """

    def __init__(self, clock: Callable[[], datetime] = now) -> None:
        self._clock = clock

    def __call__(self, session: Session, row: DiagnosisRow) -> None:
        """Note the nodes of one diagnosed window."""
        seen = session.get(ObservationRow, (row.job_id, row.window_end, row.window_start))
        if seen is None or seen.diagnosis_id != row.id:
            return
        nodes = {*(row.nodes or ()), *(blame.node for blame in row.blames if blame.node is not None)}
        # In one order everywhere: two replicas must not wait for each other in a ring.
        named = sorted(node for node in nodes if 0 < len(node) <= _LONGEST_NAME and "\0" not in node)
        repository.expose(session, named, row, self._clock())


def judged(record: Record, prior: float) -> float:
    """Probability that a node is a lemon."""
    return lemon_probability(record.blames, record.jobs, prior)


def known_lemons(
    session: Session,
    nodes: Sequence[str],
    prior: float,
    *,
    besides: str | None = None,
    at: datetime | None = None,
) -> dict[str, float]:
    """Those of `nodes` that are lemons by what other jobs said, with their probability.

    Parameters
    ----------
    besides : str, optional
        The job that asks: its own diagnoses must not confirm themselves.
    """
    if not nodes:
        return {}
    since = (at or now()) - MEMORY
    found = repository.records(session, since=since, nodes=nodes, besides=besides)
    probabilities = {record.node: judged(record, prior) for record in found}
    return {node: each for node, each in sorted(probabilities.items()) if each >= THRESHOLD}
