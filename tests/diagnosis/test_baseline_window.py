"""A fault that slows all ranks in all steps shows in a comparison with an earlier window of the job."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from fabrics import HOUR, RANKS, STEPS

import rca
from rca.diagnosis import Diagnosis, baseline_window, pipeline
from rca.errors import InvalidInput
from rca.lab.simulation import Benign, Fault, simulate
from rca.sources.labels import WindowLabel
from rca.window import Window
from rca.window.times.step_clock import StepClock
from tests.diagnosis.simulated_jobs import WORKLOAD, job
from tests.shifted_windows import shifted

ALL = tuple(range(RANKS))
MakeWindow = Callable[..., Window]


def adds_up(diagnosis: Diagnosis) -> bool:
    answer = sum(cause.seconds_per_step for cause in diagnosis.causes)
    total = answer + diagnosis.unexplained_seconds_per_step
    return total == pytest.approx(diagnosis.slowdown.seconds_per_step)


def test_a_congested_fabric_has_no_contrast_in_its_window_and_one_to_the_hour_before(
    fabric: Callable[..., Window], before: Window
) -> None:
    window = fabric(0.02, congested=True)
    alone = rca.diagnose(window)
    assert alone.failure_mode == "healthy"
    answer = rca.diagnose(window, earlier=before)
    assert answer.failure_mode == "fail_slow"
    assert not answer.abstained
    assert [(cause.cause, cause.ranks) for cause in answer.causes] == [("network_congestion", list(ALL))]
    # A mean over the steps of this window, not of both.
    assert answer.causes[0].seconds_per_step == pytest.approx(0.012, rel=0.05)
    # The hour between the windows is no pause of the job.
    assert answer.slowdown.seconds_per_step == pytest.approx(0.012, rel=0.25)
    assert answer.slowdown.versus_own_past == (answer.earlier.ratio if answer.earlier else None)
    assert answer.slowdown.gpu_hours_lost == pytest.approx(
        answer.slowdown.seconds_per_step * STEPS * RANKS / 3600
    )
    assert adds_up(answer)
    assert (answer.stragglers[0].first_step, answer.stragglers[0].last_step) == (0, STEPS - 1)
    # The window is this one, whatever it was compared with.
    assert answer.quality == alone.quality
    assert answer.missing_signals == alone.missing_signals
    assert answer.earlier is not None
    assert answer.earlier.decided
    assert answer.earlier.steps == STEPS
    assert answer.earlier.ratio == pytest.approx(0.0945 / 0.0825, rel=0.05)
    assert answer.earlier.seconds_before == pytest.approx(window.job.start - before.job.end)


def test_a_job_as_it_was_is_healthy_and_says_how_long_its_steps_took(
    fabric: Callable[..., Window], before: Window
) -> None:
    window = fabric(0.008, congested=False, seed=3)
    alone, answer = rca.diagnose(window), rca.diagnose(window, earlier=before)
    assert answer.failure_mode_probability == alone.failure_mode_probability
    assert answer.earlier is not None
    assert not answer.earlier.decided
    assert answer.slowdown.versus_own_past == answer.earlier.ratio == pytest.approx(1.0, abs=0.02)


def test_a_fault_that_was_there_before_is_no_news(fabric: Callable[..., Window]) -> None:
    """Beside an hour that was as slow a window says what it says alone; and a fault that is over is none."""
    slow, sound = fabric(0.02, congested=True), fabric(0.008, congested=False)
    for window in (slow, sound):
        answer = rca.diagnose(window, earlier=shifted(slow, -HOUR))
        assert answer.failure_mode == rca.diagnose(window).failure_mode == "healthy"


def test_more_input_is_no_fault(make_window: MakeWindow) -> None:
    """Everybody computes half as much again, and counts it."""

    def counted(compute: float, tokens: float) -> Window:
        late = dict.fromkeys(range(8), compute)
        plain = make_window(8, 60, late=late, phase={"forward_seconds": 0.35, "backward_seconds": 0.65})
        column = pa.array(np.full(plain.steps.num_rows, tokens))
        return Window.from_tables(plain.job, plain.steps.append_column("tokens", column))

    answer = rca.diagnose(counted(0.032, 6144.0), earlier=shifted(counted(0.0, 4096.0), -HOUR))
    assert answer.failure_mode == "healthy"
    assert answer.earlier is not None
    assert answer.earlier.ratio == pytest.approx(1.28, abs=0.03)


def simulated(*faults: Fault, **changes: Any) -> tuple[Window, Window, WindowLabel]:
    """The hour before, the window, and what is true of a job whose faults begin in its middle."""
    labelled = simulate(job(*faults, seed=1, workload=WORKLOAD, **changes))
    clock = StepClock.of(labelled.window)
    parts = clock.between(clock.first, 50), clock.between(50, 100)
    return shifted(parts[0], -HOUR), parts[1], WindowLabel.model_validate(labelled.label)


def test_a_known_fault_has_a_better_price() -> None:
    """Loaders that stall from the window's first step on: how fast they were tells the hour before only."""
    past, window, label = simulated(Fault(cause="data_loader_stall", ranks=ALL, first_step=50, severity=0.8))
    # The label's seconds are means over all hundred steps.
    true = 2 * (label.causes[0].model_extra or {})["seconds_per_step"]
    alone, answer = rca.diagnose(window), rca.diagnose(window, earlier=past)
    for diagnosis in (alone, answer):
        assert diagnosis.causes[0].cause == "data_loader_stall"
    assert answer.earlier is not None
    assert answer.earlier.decided
    errors = [abs(each.causes[0].seconds_per_step - true) for each in (alone, answer)]
    assert errors[1] < errors[0] / 2
    assert adds_up(answer)


def test_a_straggler_that_the_window_shows_by_itself_stays_as_it_is() -> None:
    past, window, _ = simulated(Fault(cause="gpu_throttling", ranks=(3,), first_step=75, severity=0.7))
    alone, answer = rca.diagnose(window), rca.diagnose(window, earlier=past)
    assert alone.failure_mode == "fail_slow"
    same = {"diagnosis_id", "created_at", "earlier"}
    assert answer.model_dump(exclude=same) == alone.model_dump(exclude=same)


def test_a_restart_is_no_slowdown(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first steps of a restarted job take long; between two windows they would look like a fault."""
    wanted: list[Window] = []
    kept = baseline_window.after_earlier

    def seen(window: Window, before: Window) -> Window:
        wanted.append(window)
        return kept(window, before)

    monkeypatch.setattr(baseline_window, "after_earlier", seen)
    labelled = simulate(job(seed=1, workload=WORKLOAD, benign=Benign(warmup_steps=3)))
    window = labelled.window
    answer = rca.diagnose(window, earlier=shifted(window, -HOUR))
    assert answer.quality.warmup_steps == 3
    clocks = StepClock.of(wanted[0]), StepClock.of(window)
    assert (clocks[0].first, clocks[0].steps[-1]) == (clocks[1].first + 3, clocks[1].steps[-1])
    # What is between the windows is told of the windows, and so is whether they overlap.
    assert answer.earlier is not None
    assert answer.earlier.seconds_before == pytest.approx(HOUR - (window.job.end - window.job.start))
    begun = StepClock.of(window).ends(clocks[0].first) - window.job.start
    late = shifted(window, -(window.job.end - window.job.start) + begun / 2)
    with pytest.raises(InvalidInput, match="after the window begins"):
        rca.diagnose(window, earlier=late)
    assert answer.earlier is not None
    assert answer.earlier.ratio == pytest.approx(1.0, abs=0.02)


def test_stopped_jobs_and_short_windows_are_not_asked_again(
    make_window: MakeWindow, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted: list[Window] = []
    once = pipeline.analyse

    def counted(window: Window, *rest: Any, **options: Any) -> Any:
        wanted.append(window)
        return once(window, *rest, **options)

    monkeypatch.setattr(pipeline, "analyse", counted)
    past = shifted(make_window(4, 60), -HOUR)
    slower = make_window(4, 8, transfer=0.3)
    answer = rca.diagnose(slower, earlier=past)
    assert answer.abstention_reason is not None
    assert answer.abstention_reason.code == "too_short"
    assert len(wanted) == 1
    assert answer.earlier is not None
    assert answer.earlier.ratio is not None
    assert answer.earlier.ratio > 2


@pytest.mark.parametrize("untimed", ["window", "before"])
def test_untimed_steps_have_no_ratio(make_window: MakeWindow, untimed: str) -> None:
    def timed(*, known: bool) -> Window:
        plain = make_window(2, 30)
        if known:
            return plain
        place = plain.steps.column_names.index("step_seconds")
        nothing = pa.array(np.full(plain.steps.num_rows, np.nan))
        return replace(plain, steps=plain.steps.set_column(place, "step_seconds", nothing))

    window, past = timed(known=untimed != "window"), shifted(timed(known=untimed != "before"), -HOUR)
    answer = rca.diagnose(window, earlier=past).earlier
    assert answer is not None
    assert (answer.ratio, answer.step_seconds) == (None, None)


def test_an_earlier_window_may_be_longer_or_shorter(make_window: MakeWindow) -> None:
    for before, steps in ((25, 25), (100, 40), (3, 3)):
        answer = rca.diagnose(make_window(2, 40), earlier=shifted(make_window(2, before), -HOUR)).earlier
        assert answer is not None
        assert answer.steps == steps


def test_another_job_is_refused(make_window: MakeWindow) -> None:
    with pytest.raises(InvalidInput, match="has 4 ranks, the window 8"):
        rca.diagnose(make_window(8, 40), earlier=shifted(make_window(4, 40), -HOUR))
