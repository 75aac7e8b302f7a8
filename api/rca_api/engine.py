"""The model behind the service: loaded and warmed once, then asked by every request."""

from __future__ import annotations

import gc
from pathlib import Path

import numpy as np
import pyarrow as pa
import structlog

import rca
from rca.classify.priors import read_priors
from rca.diagnosis.result import Diagnosis, ModelVersion
from rca.errors import BundleError, RcaError
from rca.telemetry.window import Window

_log = structlog.stdlib.get_logger("rca_api")


class Engine:
    """Diagnoses windows with one bundle, and says whether it can.

    Attributes
    ----------
    model : ModelVersion or None
        The bundle in use, once `load` has succeeded.
    failure : str or None
        Why it cannot be used, once `load` has failed.
    """

    def __init__(self, folder: Path | None, priors: Path | None = None) -> None:
        self._folder = folder
        self._priors_file = priors
        self._priors: dict[str, float] | None = None
        self._bundle: rca.Bundle | None = None
        self.model: ModelVersion | None = None
        self.failure: str | None = None

    def load(self) -> None:
        """Read the bundle and run one diagnosis, so that the first caller does not pay for imports."""
        try:
            self._bundle = rca.Bundle.load(self._folder) if self._folder is not None else None
            self._priors = read_priors(self._priors_file) if self._priors_file is not None else None
            self.model = rca.diagnose(small_window(), bundle=self._bundle, priors=self._priors).model
            # What was loaded stays for good: keep full collections from walking it during requests.
            gc.collect()
            gc.freeze()
        except RcaError as error:
            self.failure = str(error)
        except Exception as error:
            # A service that says why it is not ready is easier to mend than one that does not start.
            _log.exception("the bundle could not be tried")
            self.failure = f"unexpected {type(error).__name__}: {error}"

    def diagnose(self, window: Window) -> Diagnosis:
        """Diagnose one validated window."""
        if self.failure is not None:
            # Which file is damaged is the operator's business, and /readyz says it.
            raise BundleError("the model bundle cannot be used; /readyz says why")
        return rca.diagnose(window, bundle=self._bundle, priors=self._priors)


def small_window(n_ranks: int = 4, n_steps: int = 8) -> Window:
    """Build a healthy job just large enough to pass through every stage."""
    rank, step = (axis.ravel() for axis in np.indices((n_ranks, n_steps)))
    steps = pa.table(
        {
            "rank": pa.array(rank, pa.int32()),
            "step": pa.array(step, pa.int64()),
            "start_time": 1.7e9 + 0.1 * step,
            "forward_seconds": np.full(rank.size, 0.03),
            "backward_seconds": np.full(rank.size, 0.06),
            "communication_wait_seconds": np.full(rank.size, 0.001),
            "step_seconds": np.full(rank.size, 0.1),
        }
    )
    metrics = pa.table(
        {
            "time": 1.7e9 + 0.1 * step,
            "node": pa.array(["warm-up"] * rank.size),
            "rank": pa.array(rank, pa.int32()),
            "device": pa.nulls(rank.size, pa.string()),
            "name": pa.array(["DCGM_FI_DEV_SM_CLOCK"] * rank.size),
            "value": np.full(rank.size, 1410.0),
        }
    )
    job: dict[str, object] = {
        "format": 1,
        "job_id": "warm-up",
        "world_size": n_ranks,
        "start": 1.7e9,
        "end": 1.7e9 + 0.1 * n_steps,
    }
    return Window.from_tables(job, steps, metrics)
