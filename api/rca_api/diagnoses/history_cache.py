"""The history of nodes and jobs that the next diagnosis may use, read once a minute, never by a request."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Mapping
from datetime import timedelta
from typing import Generic, TypeVar

import structlog

from rca_api.actions.corrections import corrections, factors
from rca_api.diagnoses.history import MAX_AGE_SECONDS, EarlierWindows, History, NodeOdds
from rca_api.diagnoses.repository import healthy_windows
from rca_api.nodes.fault_prior import blaming_jobs, fault_odds
from rca_api.nodes.repository import records
from rca_api.nodes.service import RECORD_AGE, judged
from rca_api.shell.settings.settings import Settings
from rca_api.shell.store.base import now
from rca_api.shell.store.database import Database, StoreError

#: Seconds between two reads of the database.
_PAUSE_SECONDS = 60.0
#: Smaller odds factors are not worth a note in an answer.
_MIN_ODDS_FACTOR = 1.5
_log = structlog.stdlib.get_logger("rca_api")

Known = TypeVar("Known")


class PolledCache(ABC, Generic[Known]):
    """A value read from the database, at most a minute old.

    Parameters
    ----------
    nothing : Known
        Value of `current` before the first read.
    what : str
        Name of the value, for the log.
    used : bool
        Whether the value is used; it is not read otherwise.
    """

    def __init__(self, nothing: Known, what: str, *, used: bool) -> None:
        self.current = nothing
        self._what = what
        self._used = used

    async def follow(self) -> None:
        """Read again and again, until cancelled."""
        while True:
            if self._used:
                await asyncio.to_thread(self.refresh)
            await asyncio.sleep(_PAUSE_SECONDS)

    def refresh(self) -> None:
        """Read once; if the database is away, `current` keeps its value."""
        try:
            self.current = self._read()
        except StoreError as error:
            _log.warning("the database cannot be read", what=self._what, reason=error.message)

    @abstractmethod
    def _read(self) -> Known:
        """Read the value."""


class NodeHistoryCache(PolledCache[NodeOdds]):
    """The fault odds of suspicious nodes, for the setting `node_priors` (docs/decisions/0035).

    Parameters
    ----------
    prior : float
        Share of lemons among all nodes.
    used : bool
        Whether diagnoses may use it; `current` stays empty otherwise.
    """

    def __init__(self, database: Database, prior: float, *, used: bool) -> None:
        super().__init__(NodeOdds(), "the history of nodes", used=used)
        self._database = database
        self._prior = prior

    def _read(self) -> NodeOdds:
        odds, jobs = {}, {}
        with self._database.reading() as session:
            for record in records(session, since=now() - RECORD_AGE):
                factor = fault_odds(judged(record, self._prior), self._prior)
                if factor >= _MIN_ODDS_FACTOR:
                    odds[record.node] = factor
                    jobs[record.node] = frozenset(blaming_jobs(record.blames))
        return NodeOdds(odds, jobs)


class EarlierWindowCache(PolledCache[EarlierWindows]):
    """The last healthy windows of jobs, for the setting `earlier_windows` (docs/decisions/0017).

    Parameters
    ----------
    used : bool
        Whether diagnoses may use them; `current` stays empty otherwise.
    """

    def __init__(self, database: Database, *, used: bool) -> None:
        super().__init__(EarlierWindows(), "the healthy windows of jobs", used=used)
        self._database = database

    def _read(self) -> EarlierWindows:
        with self._database.reading() as session:
            since = now() - timedelta(seconds=MAX_AGE_SECONDS)
            return EarlierWindows(healthy_windows(session, since=since))


class CorrectionCache(PolledCache[Mapping[str, float]]):
    """Observed over predicted gain by action."""

    def __init__(self, database: Database) -> None:
        super().__init__({}, "the corrections of gains", used=True)
        self._database = database

    def _read(self) -> Mapping[str, float]:
        with self._database.reading() as session:
            return factors(corrections(session))


class HistoryCache:
    """All caches, the first two as far as their settings allow; all have to be followed."""

    def __init__(self, database: Database, settings: Settings) -> None:
        used = settings.node_priors == "on"
        self.nodes = NodeHistoryCache(database, settings.node_lemon_prior, used=used)
        self.windows = EarlierWindowCache(database, used=settings.earlier_windows == "on")
        self.corrections = CorrectionCache(database)

    @property
    def current(self) -> History:
        """The history as of the last read."""
        return History(self.nodes.current, self.windows.current, self.corrections.current)
