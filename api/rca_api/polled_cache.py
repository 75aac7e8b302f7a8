"""What is read from the database again and again, so that no request waits for it."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import Generic, TypeVar

import structlog

from rca_api.store.database import StoreError

#: Seconds between two looks at the database.
_PAUSE_SECONDS = 60.0
_log = structlog.stdlib.get_logger("rca_api")

Known = TypeVar("Known")


class Refreshed(ABC, Generic[Known]):
    """Something known of the database as it was a minute ago.

    Parameters
    ----------
    nothing : Known
        What `current` is before the first look.
    what : str
        Name of it, for the log.
    used : bool
        Whether there is any use for it; nobody looks otherwise.
    """

    def __init__(self, nothing: Known, what: str, *, used: bool) -> None:
        self.current = nothing
        self._what = what
        self._used = used

    async def follow(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            if self._used:
                await asyncio.to_thread(self.refresh)
            await asyncio.sleep(_PAUSE_SECONDS)

    def refresh(self) -> None:
        """Look once; where the database is away, what was known before stays."""
        try:
            self.current = self._read()
        except StoreError as error:
            _log.warning("the database cannot be read", what=self._what, reason=error.message)

    @abstractmethod
    def _read(self) -> Known:
        """Look."""
