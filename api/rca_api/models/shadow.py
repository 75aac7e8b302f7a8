"""Shadow mode: the challenger diagnoses a share of the windows, too, and what differs is kept.

It begins when the answer is stored, whether it was given at once, in a batch or later; one window at a time.
A window that comes while another one is being compared, or while no process is free, is let go.
"""

from __future__ import annotations

import asyncio

import structlog
from sqlalchemy.exc import IntegrityError

from rca.diagnosis.result import Diagnosis
from rca.errors import RcaError
from rca_api.compute.deadline import Deadline
from rca_api.compute.pool import ComputePool
from rca_api.diagnoses import work
from rca_api.history_cache import HistoryCache
from rca_api.metrics import Metrics
from rca_api.models.current import BundleRef, CurrentModels
from rca_api.models.shadow_comparison import ShadowRow, comparison
from rca_api.problems import ProblemError
from rca_api.store.database import Database

_log = structlog.stdlib.get_logger("rca_api.models")


class Shadow:
    """Compares champion and challenger beside the requests; used from the event loop only.

    Parameters
    ----------
    share : float
        Of the windows, 0 to 1.
    seconds : float
        That a comparison may take.
    """

    def __init__(
        self,
        share: float,
        seconds: float,
        current: CurrentModels,
        memory: HistoryCache,
        pool: ComputePool,
        database: Database,
        metrics: Metrics,
    ) -> None:
        self._share = share
        self._seconds = seconds
        self._current = current
        self._memory = memory
        self._pool = pool
        self._database = database
        self._metrics = metrics
        self._running: asyncio.Task[None] | None = None

    def answered(self, diagnosis_id: str, champion: bytes, digest: str) -> None:
        """Say that an answer is stored; returns at once.

        Parameters
        ----------
        diagnosis_id : str
            Row of the champion's answer.
        champion : bytes
            Its document.
        digest : str
            Of its window.
        """
        ref = self._current.challenger
        if ref is None or not _drawn(diagnosis_id, self._share):
            return
        if not self._pool.is_idle or (self._running is not None and not self._running.done()):
            self._metrics.shadow.labels("dropped").inc()
            return
        self._running = asyncio.create_task(self._compare(diagnosis_id, champion, digest, ref))

    async def close(self) -> None:
        """Let go of what is being compared."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)

    async def _compare(self, diagnosis_id: str, champion: bytes, digest: str, ref: BundleRef) -> None:
        try:
            deadline = Deadline.after(self._seconds)
            remembered = self._memory.current
            challenger = await self._pool.run(work.try_bundle, ref, digest, remembered, deadline=deadline)
            row = comparison(diagnosis_id, Diagnosis.model_validate_json(champion), challenger, ref)
            await asyncio.to_thread(self._store, row)
        except (RcaError, ProblemError) as error:
            self._metrics.shadow.labels("failed").inc()
            _log.warning("the challenger did not answer", version=ref.version, reason=str(error))
        except Exception:
            self._metrics.shadow.labels("failed").inc()
            _log.exception("the challenger failed", version=ref.version)
        else:
            agrees = row.mode_agrees and row.cause_agrees and row.ranks_agree
            self._metrics.shadow.labels("agreed" if agrees else "disagreed").inc()

    def _store(self, row: ShadowRow) -> None:
        try:
            with self._database.session() as session:
                session.add(row)
        except IntegrityError:
            # Compared before, or the diagnosis was deleted meanwhile.
            return


def _drawn(diagnosis_id: str, share: float) -> bool:
    """Draw by the id, so that a retry of the same request is not drawn again."""
    return int(diagnosis_id[:8], 16) < share * 2**32
