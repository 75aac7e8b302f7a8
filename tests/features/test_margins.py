"""A window may be wider than its rows: what is missing before and after them alike is no silence."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from rca.features import FeatureSet, extract
from rca.simulation import Benign, Fault, Scenario, Telemetry, Workload, simulate
from rca.simulation.exporters import EXPORTERS
from rca.telemetry.job import Parallelism

MARGIN = 9


def job(*faults: Fault, first_step_number: int = 400, **telemetry: int) -> Scenario:
    """Eight ranks on two nodes, a hundred steps."""
    return Scenario(
        seed=4,
        dialect="mixed",
        parallelism=Parallelism(data=8),
        ranks_per_node=4,
        n_steps=100,
        first_step_number=first_step_number,
        workload=Workload(
            forward_seconds=0.25, backward_seconds=0.5, transfer_seconds=0.2, gradient_bytes=4e9
        ),
        faults=faults,
        benign=Benign(warmup_steps=0),
        telemetry=Telemetry(exporters=tuple(EXPORTERS), interval_seconds=2.0, **telemetry),
    )


def hang() -> Fault:
    return Fault(cause="hang", variant="stopped", ranks=(2,), nodes=(0,), first_step=80, severity=0.8)


def features(scenario: Scenario) -> FeatureSet:
    return extract(simulate(scenario).window)


def test_a_window_that_is_wider_than_its_rows_on_both_sides_is_not_silent() -> None:
    wide = features(job(rows_skipped=MARGIN, rows_behind=MARGIN))
    assert wide.work.steps[0] == 400 + MARGIN
    assert wide.work.steps[-1] == 499 - MARGIN
    assert wide.endings.silence < 1.5


def test_rows_missing_at_the_end_only_may_be_silence() -> None:
    assert features(job(rows_behind=MARGIN)).endings.silence == pytest.approx(MARGIN, abs=1.5)


def test_a_hang_in_a_wide_window_is_as_silent_as_in_a_narrow_one() -> None:
    narrow, wide = features(job(hang())), features(job(hang(), rows_skipped=MARGIN))
    assert wide.endings.silence == pytest.approx(narrow.endings.silence - MARGIN, abs=1.5)
    assert wide.endings.silence > 3


@pytest.mark.parametrize(("after", "silent"), [(20.0, False), (60.0, True)])
def test_before_its_first_step_a_job_may_have_been_starting(after: float, *, silent: bool) -> None:
    """Twenty seconds before step 0 are a margin if there are twenty after the last row, too."""
    window = simulate(job(first_step_number=0)).window
    ends = np.asarray(window.steps.column("start_time")) + np.asarray(window.steps.column("step_seconds"))
    start = float(np.min(window.steps.column("start_time")))
    told = window.job.model_copy(update={"start": start - 20.0, "end": float(ends.max()) + after})
    assert (extract(replace(window, job=told)).endings.silence > 10) == silent


def traffic_after(found: FeatureSet) -> float:
    from rca.features import WINDOW_FEATURES

    return float(found.window[WINDOW_FEATURES.index("mean_traffic_after")])


def test_traffic_tells_late_rows_from_a_job_that_stands_still() -> None:
    assert traffic_after(features(job(rows_behind=MARGIN))) == pytest.approx(1.0, abs=0.2)
    assert traffic_after(features(job(hang()))) < 0.2


def test_a_fault_that_no_row_shows_is_labelled_healthy() -> None:
    early = Fault(
        cause="gpu_throttling", ranks=(5,), nodes=(1,), severity=0.8, first_step=0, last_step=MARGIN - 1
    )
    assert simulate(job(early)).label["failure_mode"] == "fail_slow"
    assert simulate(job(early, rows_skipped=MARGIN)).label["failure_mode"] == "healthy"


def test_a_fault_from_the_first_row_on_is_deterministic() -> None:
    lasting = Fault(cause="gpu_throttling", ranks=(5,), nodes=(1,), severity=0.8, first_step=MARGIN - 2)
    assert simulate(job(lasting)).label["pattern"] == "persistent"
    assert simulate(job(lasting, rows_skipped=MARGIN)).label["pattern"] == "deterministic"
