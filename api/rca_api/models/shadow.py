"""Shadow mode: the challenger diagnoses a share of the windows as well, and both answers are compared.

A comparison starts when the answer of the champion is stored. There is one comparison at a time. A window is
skipped while another one is compared, or while no process is free.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import structlog
from sqlalchemy.exc import IntegrityError

from rca.deadline import Deadline
from rca.errors import RcaError
from rca_api.diagnoses import work
from rca_api.diagnoses.history_cache import HistoryCache
from rca_api.diagnoses.stored import read_stored
from rca_api.models.current import CurrentModels
from rca_api.models.shadow_comparison import ShadowRow, comparison
from rca_api.shell.observability.metrics import Metrics
from rca_api.shell.processes.bundles import BundleRef
from rca_api.shell.processes.pool import ComputePool
from rca_api.shell.requests.problems import ProblemError
from rca_api.shell.store import time_limits
from rca_api.shell.store.database import Database

_log = structlog.stdlib.get_logger("rca_api.models")


@dataclass(eq=False)
class Shadow:
    """Compares champion and challenger in the background; used from the event loop only.

    Attributes
    ----------
    share : float
        Share of the windows that are compared, 0 to 1.
    seconds : float
        Time limit of a comparison.
    """

    share: float
    seconds: float
    current: CurrentModels
    history: HistoryCache
    pool: ComputePool
    database: Database
    metrics: Metrics
    _running: asyncio.Task[None] | None = field(init=False, default=None)

    def answered(self, diagnosis_id: str, champion: bytes, digest: str) -> None:
        """Start the comparison for a stored answer; returns at once.

        Parameters
        ----------
        diagnosis_id : str
            Id of the champion's answer.
        champion : bytes
            The champion's answer, JSON.
        digest : str
            Digest of the window.
        """
        ref = self.current.challenger
        if ref is None or not _drawn(diagnosis_id, self.share):
            return
        if not self.pool.is_idle or (self._running is not None and not self._running.done()):
            self.metrics.shadow.labels("dropped").inc()
            return
        self._running = asyncio.create_task(self._compare(diagnosis_id, champion, digest, ref))

    async def close(self) -> None:
        """Cancel the comparison in progress."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)

    async def _compare(self, diagnosis_id: str, champion: bytes, digest: str, ref: BundleRef) -> None:
        # The request has its answer.
        time_limits.answer_within(None)
        try:
            deadline = Deadline.after(self.seconds)
            remembered = self.history.current
            challenger = await self.pool.run(work.try_bundle, ref, digest, remembered, deadline=deadline)
            row = comparison(diagnosis_id, read_stored(champion), challenger, ref)
            await asyncio.to_thread(self._store, row)
        except (RcaError, ProblemError) as error:
            self.metrics.shadow.labels("failed").inc()
            _log.warning("the challenger did not answer", version=ref.version, reason=str(error))
        except Exception:
            self.metrics.shadow.labels("failed").inc()
            _log.exception("the challenger failed", version=ref.version)
        else:
            agrees = row.mode_agrees and row.cause_agrees and row.ranks_agree
            self.metrics.shadow.labels("agreed" if agrees else "disagreed").inc()

    def _store(self, row: ShadowRow) -> None:
        try:
            with self.database.session() as session:
                session.add(row)
        except IntegrityError:
            # The window was compared before, or the diagnosis was deleted meanwhile.
            return


def _drawn(diagnosis_id: str, share: float) -> bool:
    """Whether the window is in the share; depends on the id only, so a retry has the same result."""
    return int(diagnosis_id[:8], 16) < share * 2**32
