"""Keeps recent healthy windows of each job for comparison: a setting, see docs/decisions/0017."""

from __future__ import annotations

from datetime import timedelta

from rca_api.diagnoses import repository
from rca_api.diagnoses.history import LONGEST_AGO, EarlierWindows
from rca_api.polled_cache import Refreshed
from rca_api.store.base import now
from rca_api.store.database import Database


class WindowMemory(Refreshed[EarlierWindows]):
    """The last healthy windows of jobs, as of a minute ago.

    Parameters
    ----------
    database : Database
    used : bool
        Whether diagnoses may use them; `current` stays empty otherwise.
    """

    def __init__(self, database: Database, *, used: bool) -> None:
        super().__init__(EarlierWindows(), "the healthy windows of jobs", used=used)
        self._database = database

    def _read(self) -> EarlierWindows:
        with self._database.reading() as session:
            since = now() - timedelta(seconds=LONGEST_AGO)
            return EarlierWindows(repository.healthy_windows(session, since=since))
