"""Keeps what is remembered of nodes at hand for the next diagnosis: a setting, see docs/decisions/0035."""

from __future__ import annotations

from rca_api.nodes import repository
from rca_api.nodes.fault_prior import blaming_jobs, fault_odds
from rca_api.nodes.history import NodeHistory
from rca_api.nodes.service import MEMORY, judged
from rca_api.polled_cache import Refreshed
from rca_api.store.base import now
from rca_api.store.database import Database

#: Smaller factors are not worth a note in an answer.
_LEAST = 1.5


class NodeMemory(Refreshed[NodeHistory]):
    """A `NodeHistory`, as it was a minute ago: a node's record grows by the hour.

    Parameters
    ----------
    database : Database
    prior : float
        Share of lemons among all nodes.
    used : bool
        Whether diagnoses may use it; `current` stays empty otherwise.
    """

    def __init__(self, database: Database, prior: float, *, used: bool) -> None:
        super().__init__(NodeHistory(), "the history of nodes", used=used)
        self._database = database
        self._prior = prior

    def _read(self) -> NodeHistory:
        odds, jobs = {}, {}
        with self._database.reading() as session:
            for record in repository.records(session, since=now() - MEMORY):
                factor = fault_odds(judged(record, self._prior), self._prior)
                if factor >= _LEAST:
                    odds[record.node] = factor
                    jobs[record.node] = frozenset(blaming_jobs(record.blames))
        return NodeHistory(odds, jobs)
