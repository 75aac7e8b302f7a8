"""Keeps what is remembered of nodes at hand for the next diagnosis: a setting, see decision 0087."""

from __future__ import annotations

import asyncio
from datetime import datetime

import structlog

from rca_api.nodes import repository
from rca_api.nodes.history import NodeHistory
from rca_api.nodes.lemons import blaming_jobs, fault_odds
from rca_api.nodes.service import MEMORY, judged
from rca_api.store.base import now
from rca_api.store.database import Database, StoreError

#: Seconds between two looks at the database; a node's record grows by the hour.
_PAUSE_SECONDS = 60.0
#: Smaller factors are not worth a note in an answer.
_LEAST = 1.5
_log = structlog.stdlib.get_logger("rca_api.nodes")


class NodeMemory:
    """A `NodeHistory` that is read again every minute, so that no diagnosis waits for the database.

    Parameters
    ----------
    database : Database
    prior : float
        Share of lemons among all nodes.
    used : bool
        Whether diagnoses may use it; `current` stays empty otherwise.
    """

    def __init__(self, database: Database, prior: float, *, used: bool) -> None:
        self._database = database
        self._prior = prior
        self._used = used
        self.current = NodeHistory()

    async def follow(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            if self._used:
                await asyncio.to_thread(self.refresh)
            await asyncio.sleep(_PAUSE_SECONDS)

    def refresh(self) -> None:
        """Look once; where the database is away, what was known before stays."""
        try:
            self.current = self._read(now() - MEMORY)
        except StoreError as error:
            _log.warning("the history of nodes cannot be read", reason=error.message)

    def _read(self, since: datetime) -> NodeHistory:
        odds, jobs = {}, {}
        with self._database.reading() as session:
            for record in repository.records(session, since=since):
                factor = fault_odds(judged(record, self._prior), self._prior)
                if factor >= _LEAST:
                    odds[record.node] = factor
                    jobs[record.node] = frozenset(blaming_jobs(record.blames))
        return NodeHistory(odds, jobs)
