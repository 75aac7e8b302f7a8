"""All that the service remembers for the next diagnosis, as far as the settings let it."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from rca_api.diagnoses import repository
from rca_api.diagnoses.remembered import LONGEST_AGO, EarlierWindows, Remembered
from rca_api.nodes.memory import NodeMemory
from rca_api.refreshed import Refreshed
from rca_api.settings import Settings
from rca_api.store.base import now
from rca_api.store.database import Database


class WindowMemory(Refreshed[EarlierWindows]):
    """The windows that the next one of a job is compared with (decision 0150), as of a minute ago."""

    def __init__(self, database: Database, *, used: bool) -> None:
        super().__init__(EarlierWindows(), "the healthy windows of jobs", used=used)
        self._database = database

    def _read(self) -> EarlierWindows:
        with self._database.reading() as session:
            return EarlierWindows(
                repository.healthy_windows(session, since=now() - timedelta(seconds=LONGEST_AGO))
            )


class Memory:
    """Nodes and windows, each a setting."""

    def __init__(self, database: Database, settings: Settings) -> None:
        used = settings.node_priors == "on"
        self._nodes = NodeMemory(database, settings.node_lemon_prior, used=used)
        self._windows = WindowMemory(database, used=settings.earlier_windows == "on")

    @property
    def current(self) -> Remembered:
        """What is known now."""
        return Remembered(self._nodes.current, self._windows.current)

    async def follow(self) -> None:
        """Look again and again, until cancelled."""
        await asyncio.gather(self._nodes.follow(), self._windows.follow())
