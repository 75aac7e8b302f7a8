"""Step times without phases say whether a job is slow; its exporters then say whether a machine is why."""

from __future__ import annotations

import numpy as np
import pytest

import rca
from tests.diagnosis.test_exporters_only import START, TIMES, Change, fleet, only

CLOCK = "DCGM_FI_DEV_SM_CLOCK"
#: Seconds of the window that are timed.
TIMED = 600.0


def timed(change: Change | None, slow_from: float = np.inf) -> rca.Window:
    """A job of eight GPUs whose exporters are those of a fleet, with step times that all ranks share."""
    random, exporters = np.random.default_rng(5), fleet(change, n_nodes=1)
    begin, step = START, 0
    rows = []
    while begin < START + TIMED:
        seconds = (1.6 if begin - START >= slow_from else 1.0) * random.normal(1.0, 0.005, 8)
        rows += [
            {"rank": rank, "step": step, "start_time": begin, "step_seconds": each}
            for rank, each in enumerate(seconds.tolist())
        ]
        begin, step = begin + float(seconds.max()), step + 1
    metrics = [row for row in exporters.metrics.to_pylist() if row["time"] < START + TIMED]
    job = exporters.job.model_copy(update={"end": begin})
    return rca.Window.from_tables(job, steps=rows, metrics=metrics)


def test_usual_steps_on_machines_that_are_alike_are_healthy() -> None:
    diagnosis = rca.diagnose(timed(None))
    assert diagnosis.verdict == "healthy"
    assert any("no rank has phase timings" in note for note in diagnosis.quality.notes)


def test_a_gpu_that_throttles_when_the_steps_become_longer_is_named_and_priced() -> None:
    onset = 400.0
    slow = only(CLOCK, 5, lambda clock: np.where(onset <= TIMES - START, 0.55 * clock, clock))
    diagnosis = rca.diagnose(timed(slow, onset))
    assert (diagnosis.verdict, diagnosis.causes[0].cause, diagnosis.causes[0].ranks) == (
        "fail_slow",
        "gpu_throttling",
        [5],
    )
    assert diagnosis.since is not None
    assert diagnosis.since.timestamp() - START == pytest.approx(onset, abs=3.0)


def test_a_gpu_that_throttles_while_steps_are_usual_leaves_the_answer_open() -> None:
    slow = only(CLOCK, 5, lambda clock: np.where(TIMES - START >= 400.0, 0.55 * clock, clock))
    diagnosis = rca.diagnose(timed(slow))
    assert diagnosis.verdict != "healthy"
    assert [each.ranks for each in diagnosis.findings if each.signal == "sm_clock_mhz"] == [[5]]
