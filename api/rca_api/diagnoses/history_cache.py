"""The history of nodes and jobs that the next diagnosis may use, read once a minute, never by a request."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from datetime import timedelta
from functools import partial
from typing import Generic, TypeVar

import structlog
from sqlalchemy.orm import Session

from rca_api.actions.observation import corrections, factors
from rca_api.diagnoses.history import MAX_AGE_SECONDS, EarlierWindows, History, NodeOdds
from rca_api.diagnoses.repository import healthy_windows
from rca_api.nodes.fault_prior import blaming_jobs, fault_odds
from rca_api.nodes.repository import records
from rca_api.nodes.service import RECORD_AGE, judged
from rca_api.shell.settings.settings import Settings
from rca_api.shell.store.base import now
from rca_api.shell.store.database import Database, StoreError

#: Smaller odds factors are not worth a note in an answer.
_MIN_ODDS_FACTOR = 1.5
_log = structlog.stdlib.get_logger("rca_api")

Known = TypeVar("Known")


@dataclass(eq=False)
class Polled(Generic[Known]):
    """A value read from the database, at most a minute old.

    Attributes
    ----------
    read : callable
        Reads the value.
    current : Known
        Its value before the first read.
    what : str
        Name of the value, for the log.
    used : bool
        Whether the value is used; it is not read otherwise.
    """

    database: Database
    read: Callable[[Session], Known]
    current: Known
    what: str
    _: KW_ONLY
    used: bool = True

    def refresh(self) -> None:
        """Read it, if it is used; if the database is away, `current` keeps its value."""
        if not self.used:
            return
        try:
            with self.database.reading() as session:
                self.current = self.read(session)
        except StoreError as error:
            _log.warning("the database cannot be read", what=self.what, reason=error.message)


def node_odds(session: Session, prior: float) -> NodeOdds:
    """The fault odds of suspicious nodes (docs/decisions/0035); `prior` is the share of lemons."""
    odds, jobs = {}, {}
    for record in records(session, since=now() - RECORD_AGE):
        factor = fault_odds(judged(record, prior), prior)
        if factor >= _MIN_ODDS_FACTOR:
            odds[record.node] = factor
            jobs[record.node] = frozenset(blaming_jobs(record.blames))
    return NodeOdds(odds, jobs)


def earlier_windows(session: Session) -> EarlierWindows:
    """The last healthy windows of jobs (docs/decisions/0017)."""
    return EarlierWindows(healthy_windows(session, since=now() - timedelta(seconds=MAX_AGE_SECONDS)))


def gain_factors(session: Session) -> Mapping[str, float]:
    """Observed over predicted gain by action."""
    return factors(corrections(session))


class HistoryCache:
    """All caches, the first two as far as their settings allow; they have to be refreshed."""

    def __init__(self, database: Database, settings: Settings) -> None:
        odds = partial(node_odds, prior=settings.node_lemon_prior)
        uses_nodes, uses_windows = settings.node_priors == "on", settings.earlier_windows == "on"
        self.nodes = Polled(database, odds, NodeOdds(), "the history of nodes", used=uses_nodes)
        self.windows = Polled(
            database, earlier_windows, EarlierWindows(), "the healthy windows of jobs", used=uses_windows
        )
        nothing: Mapping[str, float] = {}
        self.corrections = Polled(database, gain_factors, nothing, "the corrections of gains")

    def refresh(self) -> None:
        """Read all, one after the other."""
        for each in (self.nodes, self.windows, self.corrections):
            each.refresh()

    @property
    def current(self) -> History:
        """The history as of the last read."""
        return History(self.nodes.current, self.windows.current, self.corrections.current)
