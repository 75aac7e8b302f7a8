"""Trying a bundle in the pool, asked from a thread."""

from __future__ import annotations

from rca.diagnosis.result import Diagnosis
from rca.telemetry.window import Window
from rca_api.compute.deadline import Deadline
from rca_api.compute.pool import ComputePool
from rca_api.diagnoses import work
from rca_api.models.current import BundleRef
from rca_api.models.smoke import TryLater
from rca_api.problems import ProblemError

#: Loading a bundle and one diagnosis, on a machine that is busy.
_SECONDS = 30.0


class Trial:
    """A `rca_api.models.smoke.Diagnose` that runs in the pool's processes.

    A bundle that ends a process ends one of the pool's, which is replaced, and not the service.
    """

    def __init__(self, pool: ComputePool) -> None:
        self._pool = pool

    def __call__(self, ref: BundleRef, window: Window | str) -> Diagnosis:
        """Diagnose a window, or a stored one by its digest."""
        try:
            found: Diagnosis = self._pool.run_from_thread(
                work.try_bundle, ref, window, deadline=Deadline.after(_SECONDS)
            )
        except ProblemError as error:
            if error.code == "deadline-exceeded":
                raise TryLater("the pool is busy") from error
            raise
        # It may be about to answer: readiness and metrics name it then.
        self._pool.loaded(ref, found.model)
        return found
