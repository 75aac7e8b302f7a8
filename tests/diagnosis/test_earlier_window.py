"""What slows all ranks alike from the first step to the last is told beside an earlier window of the job."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import rca
from benchmarks.earlier import moved
from rca.diagnosis import Diagnosis, earlier, pipeline
from rca.diagnosis.result import AbstentionReason
from rca.errors import InvalidInput
from rca.features import extract
from rca.features.temporal import Segment
from rca.simulation import Benign, Fault, simulate
from rca.telemetry import Window
from rca.telemetry.earlier import after_earlier
from rca.telemetry.labels import Label
from rca.telemetry.step_clock import StepClock
from tests.diagnosis.simulated_jobs import WORKLOAD, job

HOUR = 3600.0
RANKS, PER_NODE, STEPS = 16, 8, 60
ALL = tuple(range(RANKS))
SENT, WAITED = "np_cnp_sent", "node_infiniband_port_transmit_wait_total"
MakeWindow = Callable[..., Window]


@pytest.fixture
def fabric(make_window: MakeWindow) -> Callable[..., Window]:
    """A job of which every step, and every port, is alike: congested all along, or not at all."""

    def build(transfer: float, *, congested: bool, **changes: Any) -> Window:
        plain = make_window(RANKS, STEPS, transfer=transfer, ranks_per_node=PER_NODE, **changes)
        seconds = plain.job.end - plain.job.start
        rates = {SENT: 2e4, WAITED: 3e7} if congested else {SENT: 20.0, WAITED: 1e4}
        times = np.linspace(plain.job.start, plain.job.end - seconds / STEPS, STEPS)
        tables = [
            pa.table(
                {
                    "time": times,
                    "node": pa.array([node] * STEPS),
                    "rank": pa.nulls(STEPS, pa.int32()),
                    "device": pa.nulls(STEPS, pa.string()),
                    "name": pa.array([name] * STEPS),
                    "value": 1e6 + rate * (times - plain.job.start),
                }
            )
            for node in plain.job.topology.node_names
            for name, rate in rates.items()
        ]
        return Window.from_tables(plain.job, plain.steps, pa.concat_tables(tables))

    return build


@pytest.fixture
def before(fabric: Callable[..., Window]) -> Window:
    return moved(fabric(0.008, congested=False), -HOUR)


def adds_up(diagnosis: Diagnosis) -> bool:
    told = sum(cause.seconds_per_step for cause in diagnosis.causes)
    total = told + diagnosis.unexplained_seconds_per_step
    return total == pytest.approx(diagnosis.slowdown.seconds_per_step)


def test_a_congested_fabric_has_no_contrast_in_its_window_and_one_to_the_hour_before(
    fabric: Callable[..., Window], before: Window
) -> None:
    window = fabric(0.02, congested=True)
    alone = rca.diagnose(window)
    assert alone.failure_mode == "healthy"
    told = rca.diagnose(window, earlier=before)
    assert told.failure_mode == "fail_slow"
    assert not told.abstained
    assert [(cause.cause, cause.ranks) for cause in told.causes] == [("network_congestion", list(ALL))]
    # What every step took longer, as a mean over this window's steps and not over both windows'.
    assert told.causes[0].seconds_per_step == pytest.approx(0.012, rel=0.05)
    assert told.slowdown.versus_own_past == (told.earlier.ratio if told.earlier else None)
    assert told.slowdown.gpu_hours_lost == pytest.approx(
        told.slowdown.seconds_per_step * STEPS * RANKS / 3600
    )
    assert adds_up(told)
    assert (told.stragglers[0].first_step, told.stragglers[0].last_step) == (0, STEPS - 1)
    # The window is this one, whatever it was compared with.
    assert told.quality == alone.quality
    assert told.missing_signals == alone.missing_signals
    assert told.earlier is not None
    assert told.earlier.decided
    assert told.earlier.steps == STEPS
    assert told.earlier.ratio == pytest.approx(0.0945 / 0.0825, rel=0.05)
    assert told.earlier.seconds_before == pytest.approx(window.job.start - before.job.end)


def test_a_job_as_it_was_is_healthy_and_says_how_long_its_steps_took(
    fabric: Callable[..., Window], before: Window
) -> None:
    window = fabric(0.008, congested=False, seed=3)
    alone, told = rca.diagnose(window), rca.diagnose(window, earlier=before)
    assert told.failure_mode_probability == alone.failure_mode_probability
    assert told.earlier is not None
    assert not told.earlier.decided
    assert told.slowdown.versus_own_past == told.earlier.ratio == pytest.approx(1.0, abs=0.02)


def test_a_fault_that_was_there_before_is_no_news(fabric: Callable[..., Window]) -> None:
    """Beside an hour that was as slow a window says what it says alone; and a fault that is over is none."""
    slow, sound = fabric(0.02, congested=True), fabric(0.008, congested=False)
    for window in (slow, sound):
        told = rca.diagnose(window, earlier=moved(slow, -HOUR))
        assert told.failure_mode == rca.diagnose(window).failure_mode == "healthy"


def test_more_input_is_no_fault(make_window: MakeWindow) -> None:
    """Everybody computes half as much again, and counts it."""

    def counted(compute: float, tokens: float) -> Window:
        late = dict.fromkeys(range(8), compute)
        plain = make_window(8, 60, late=late, phase={"forward_seconds": 0.35, "backward_seconds": 0.65})
        column = pa.array(np.full(plain.steps.num_rows, tokens))
        return Window.from_tables(plain.job, plain.steps.append_column("tokens", column))

    told = rca.diagnose(counted(0.032, 6144.0), earlier=moved(counted(0.0, 4096.0), -HOUR))
    assert told.failure_mode == "healthy"
    assert told.earlier is not None
    assert told.earlier.ratio == pytest.approx(1.28, abs=0.03)


def simulated(*faults: Fault, **changes: Any) -> tuple[Window, Window, Label]:
    """The hour before, the window, and what is true of a job whose faults begin in its middle."""
    labelled = simulate(job(*faults, seed=1, workload=WORKLOAD, **changes))
    clock = StepClock.of(labelled.window)
    parts = clock.between(clock.first, 50), clock.between(50, 100)
    return moved(parts[0], -HOUR), parts[1], Label.model_validate(labelled.label)


def test_a_known_fault_has_a_better_price() -> None:
    """Loaders that stall from the window's first step on: how fast they were tells the hour before only."""
    past, window, label = simulated(Fault(cause="data_loader_stall", ranks=ALL, first_step=50, severity=0.6))
    # The label's seconds are means over all hundred steps.
    true = 2 * (label.causes[0].model_extra or {})["seconds_per_step"]
    alone, told = rca.diagnose(window), rca.diagnose(window, earlier=past)
    for diagnosis in (alone, told):
        assert diagnosis.causes[0].cause == "data_loader_stall"
    assert told.earlier is not None
    assert told.earlier.decided
    errors = [abs(each.causes[0].seconds_per_step - true) for each in (alone, told)]
    assert errors[1] < errors[0] / 2
    assert adds_up(told)


def test_a_straggler_that_the_window_shows_by_itself_stays_as_it_is() -> None:
    past, window, _ = simulated(Fault(cause="gpu_throttling", ranks=(3,), first_step=75, severity=0.7))
    alone, told = rca.diagnose(window), rca.diagnose(window, earlier=past)
    assert alone.failure_mode == "fail_slow"
    same = {"diagnosis_id", "created_at", "earlier"}
    assert told.model_dump(exclude=same) == alone.model_dump(exclude=same)


def test_a_restart_is_no_slowdown(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first steps of a restarted job take long; between two windows they would look like a fault."""
    asked: list[Window] = []
    kept = earlier.after_earlier

    def seen(window: Window, before: Window) -> Window:
        asked.append(window)
        return kept(window, before)

    monkeypatch.setattr(earlier, "after_earlier", seen)
    labelled = simulate(job(seed=1, workload=WORKLOAD, benign=Benign(warmup_steps=3)))
    window = labelled.window
    told = rca.diagnose(window, earlier=moved(window, -HOUR))
    assert told.quality.warmup_steps == 3
    clocks = StepClock.of(asked[0]), StepClock.of(window)
    assert (clocks[0].first, clocks[0].steps[-1]) == (clocks[1].first + 3, clocks[1].steps[-1])
    # What is between the windows is told of the windows, and so is whether they overlap.
    assert told.earlier is not None
    assert told.earlier.seconds_before == pytest.approx(HOUR - (window.job.end - window.job.start))
    begun = StepClock.of(window).ends(clocks[0].first) - window.job.start
    late = moved(window, -(window.job.end - window.job.start) + begun / 2)
    with pytest.raises(InvalidInput, match="after the window begins"):
        rca.diagnose(window, earlier=late)
    assert told.earlier is not None
    assert told.earlier.ratio == pytest.approx(1.0, abs=0.02)


def test_stopped_jobs_and_short_windows_are_not_asked_again(
    make_window: MakeWindow, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Window] = []
    once = pipeline.analyse

    def counted(window: Window, *rest: Any, **options: Any) -> Any:
        asked.append(window)
        return once(window, *rest, **options)

    monkeypatch.setattr(pipeline, "analyse", counted)
    past = moved(make_window(4, 60), -HOUR)
    slower = make_window(4, 8, transfer=0.3)
    told = rca.diagnose(slower, earlier=past)
    assert told.abstention_reason is not None
    assert told.abstention_reason.code == "too_short"
    assert len(asked) == 1
    assert told.earlier is not None
    assert told.earlier.ratio is not None
    assert told.earlier.ratio > 2


def told_of(
    window: Window, before: Window, compared: Diagnosis, alone: Diagnosis | None = None, **seen: Any
) -> Diagnosis:
    """The answer where the comparison says so."""
    return earlier.with_earlier(
        rca.diagnose(window) if alone is None else alone,
        window,
        extract(window),
        before,
        lambda both, _: (compared, replace(extract(both), **seen)),
    )


def decided(diagnosis: Diagnosis) -> bool:
    assert diagnosis.earlier is not None
    return diagnosis.earlier.decided


@pytest.fixture
def congested(fabric: Callable[..., Window]) -> Window:
    return fabric(0.02, congested=True)


def test_where_the_comparison_leaves_it_open_so_does_the_answer(congested: Window, before: Window) -> None:
    sound = rca.diagnose(congested)
    assert (sound.failure_mode, sound.abstained) == ("healthy", False)
    doubt = AbstentionReason(code="undecided_mode", sentence="it may be slow")
    undecided = sound.model_copy(update={"abstained": True, "abstention_reason": doubt})
    told = told_of(congested, before, undecided)
    assert (told.failure_mode, told.abstention_reason) == ("healthy", doubt)
    assert decided(told)


def test_a_healthy_job_that_is_slower_is_told_what_to_ask(
    fabric: Callable[..., Window], before: Window
) -> None:
    window = fabric(0.04, congested=True)
    sound = rca.diagnose(window)
    told = told_of(window, before, sound)
    assert told.next_check.startswith(
        "usual steps take 1.39 times as long as in the earlier window, on all ranks"
    )
    assert not decided(told)
    # Not where an answer is open, the comparison says more than it may, or the window changed by itself.
    doubt = AbstentionReason(code="too_few_ranks", sentence="few")
    doubts = sound.model_copy(update={"abstained": True, "abstention_reason": doubt})
    slow = rca.diagnose(window, earlier=before)
    unsure = slow.model_copy(update={"failure_mode_probability": {"fail_slow": 0.9, "healthy": 0.1}})
    for compared, alone in ((doubts, sound), (sound, doubts), (unsure, sound)):
        assert told_of(window, before, compared, alone=alone).next_check == alone.next_check
    slightly = fabric(0.02, congested=True)
    assert told_of(slightly, before, sound).next_check == sound.next_check


@pytest.mark.parametrize(("transfer", "asks"), [(0.0115, False), (0.013, True)])
def test_steps_that_hardly_take_longer_are_not_asked_about(
    congested: Window, fabric: Callable[..., Window], before: Window, transfer: float, asks: bool
) -> None:
    slow = rca.diagnose(congested, earlier=before)
    told = told_of(fabric(transfer, congested=True), before, slow)
    assert told.earlier is not None
    assert told.earlier.ratio is not None
    assert 1.02 < told.earlier.ratio < 1.08
    assert decided(told) == asks == (told.earlier.ratio >= earlier.SLOWER)


@pytest.mark.parametrize("likely", [0.965, 0.975])
def test_whoever_asks_twice_has_to_be_surer(congested: Window, before: Window, likely: float) -> None:
    slow = rca.diagnose(congested, earlier=before)
    odds = {"healthy": 1.0 - likely, "fail_slow": likely, "fail_stop": 0.0}
    told = told_of(congested, before, slow.model_copy(update={"failure_mode_probability": odds}))
    assert decided(told) == (told.failure_mode == "fail_slow") == (likely >= earlier.SURE_ALARM)


def test_an_alarm_has_to_explain_why_the_job_is_slower(congested: Window, before: Window) -> None:
    """All of them computing more, with a rank that is late by a trifle, is no fault of its."""
    slow = rca.diagnose(congested, earlier=before)
    assert slow.earlier is not None
    assert slow.earlier.ratio is not None
    assert slow.earlier.step_seconds is not None
    longer = slow.earlier.step_seconds * (slow.earlier.ratio - 1.0)
    for share in (0.45, 0.55):
        trifle = slow.slowdown.model_copy(update={"seconds_per_step": share * longer})
        assert decided(told_of(congested, before, slow.model_copy(update={"slowdown": trifle}))) == (
            share > 0.5
        )


def test_a_firm_answer_does_not_give_way_to_doubts_or_to_a_less_likely_cause(
    congested: Window, before: Window
) -> None:
    slow = rca.diagnose(congested, earlier=before)
    doubt = AbstentionReason(code="cause_not_certain", sentence="it may be another")
    doubts = slow.model_copy(update={"abstained": True, "abstention_reason": doubt})
    assert not decided(told_of(congested, before, doubts, alone=slow))
    assert decided(told_of(congested, before, slow, alone=doubts))
    (cause,) = slow.causes
    for likely, instead in ((0.5, False), (1.0, True)):
        changed = cause.model_copy(update={"cause": "nic_degradation", "probability": likely})
        other = slow.model_copy(update={"causes": [changed]})
        assert decided(told_of(congested, before, other, alone=slow)) == instead


def test_the_same_cause_may_be_less_likely_and_a_bare_answer_gives_way(
    congested: Window, before: Window
) -> None:
    slow = rca.diagnose(congested, earlier=before)
    (cause,) = slow.causes
    for ranks, instead in ((cause.ranks, True), (cause.ranks[1:], False)):
        changed = cause.model_copy(update={"probability": 0.5, "ranks": ranks})
        less = slow.model_copy(update={"causes": [changed]})
        assert decided(told_of(congested, before, less, alone=slow)) == instead
    bare = slow.model_copy(update={"causes": []})
    assert decided(told_of(congested, before, slow, alone=bare))
    assert not decided(told_of(congested, before, bare, alone=slow))


@pytest.mark.parametrize(
    ("mode", "code", "counts"),
    [
        ("fail_slow", None, True),
        ("fail_slow", "cause_not_certain", True),
        ("fail_slow", "too_short", False),
        ("fail_stop", None, False),
        ("healthy", "undecided_mode", True),
        ("healthy", "single_event", False),
    ],
)
def test_what_the_comparison_may_say(
    congested: Window, before: Window, mode: str, code: str | None, counts: bool
) -> None:
    slow = rca.diagnose(congested, earlier=before)
    reason = None if code is None else AbstentionReason.model_validate({"code": code, "sentence": "why"})
    doubt = {"abstained": reason is not None, "abstention_reason": reason, "failure_mode": mode}
    assert decided(told_of(congested, before, slow.model_copy(update=doubt))) == counts
    strange = slow.quality.model_copy(update={"out_of_distribution": True})
    odd = slow.model_copy(update=doubt | {"quality": strange})
    assert not decided(told_of(congested, before, odd))


@pytest.mark.parametrize(
    ("code", "opens"),
    [
        (None, True),
        ("undecided_mode", True),
        ("too_few_ranks", True),
        ("too_short", False),
        ("fell_silent", False),
    ],
)
def test_which_doubts_a_comparison_may_settle(
    congested: Window, before: Window, code: str | None, opens: bool
) -> None:
    slow = rca.diagnose(congested, earlier=before)
    reason = None if code is None else AbstentionReason.model_validate({"code": code, "sentence": "why"})
    alone = rca.diagnose(congested).model_copy(
        update={"abstained": reason is not None, "abstention_reason": reason}
    )
    assert decided(told_of(congested, before, slow, alone=alone)) == opens
    stopped = alone.model_copy(update={"failure_mode": "fail_stop"})
    assert not decided(told_of(congested, before, slow, alone=stopped))


def test_doubts_of_a_slow_job_do_not_give_way_to_other_doubts(congested: Window, before: Window) -> None:
    slow = rca.diagnose(congested, earlier=before)
    doubt = AbstentionReason(code="undecided_mode", sentence="it may be slow")
    undecided = slow.model_copy(
        update={"failure_mode": "healthy", "abstained": True, "abstention_reason": doubt}
    )
    assert not decided(told_of(congested, before, undecided, alone=slow))
    assert not decided(told_of(congested, before, undecided, alone=undecided))


@pytest.mark.parametrize(
    ("first", "last", "counts"),
    [
        (STEPS, 2 * STEPS - 1, True),
        (STEPS - 5, 2 * STEPS - 1, True),
        (STEPS - 8, 2 * STEPS - 1, False),
        (0, 2 * STEPS - 1, False),
        (STEPS, STEPS + 33, True),
        (STEPS, STEPS + 26, False),
        (10, STEPS - 10, False),
    ],
    ids=["all along", "a little earlier", "earlier", "both", "most", "not most", "before"],
)
def test_the_slow_stretch_is_most_of_the_window(
    congested: Window, before: Window, first: int, last: int, counts: bool
) -> None:
    slow = rca.diagnose(congested, earlier=before)
    both = extract(after_earlier(congested, before))
    stretch = Segment(first, last, 0.1, 0.0, whole=last - first + 1 == 2 * STEPS)
    told = told_of(congested, before, slow, comparison=replace(both.comparison, segment=stretch))
    assert decided(told) == counts
    if counts:
        assert told.stragglers[0].first_step == 0


def test_steps_and_pattern_are_the_windows(congested: Window, before: Window) -> None:
    slow = rca.diagnose(congested, earlier=before)
    (group,) = slow.stragglers

    def told(
        first: int | None, last: int | None, pattern: str, alone: Diagnosis | None = None
    ) -> tuple[int | None, int | None, str | None]:
        changed = group.model_copy(update={"first_step": first, "last_step": last, "pattern": pattern})
        compared = slow.model_copy(update={"stragglers": [changed]})
        (found,) = told_of(congested, before, compared, alone=alone).stragglers
        return found.first_step, found.last_step, found.pattern

    end = STEPS - 1
    # The earlier window's steps have numbers below 0.
    assert told(-40, -10, "persistent") == (0, end, "persistent")
    assert told(None, None, "persistent") == told(3, None, "persistent") == (0, end, "persistent")
    assert told(-5, 30, "transient") == (0, 30, "transient")
    assert told(3, end - 3, "transient") == (3, end - 3, "persistent")
    assert told(3, end - 4, "transient") == (3, end - 4, "transient")
    assert told(3, end, "deterministic") == (3, end, "deterministic")
    # What the window alone says of the same ranks is not made less of by a longer past.
    known = slow.model_copy(
        update={"stragglers": [group.model_copy(update={"pattern": "deterministic"})], "causes": []}
    )
    assert told(3, 20, "transient", alone=known)[2] == "deterministic"


def test_what_of_the_window_was_used_and_lacking_is_the_windows(congested: Window, before: Window) -> None:
    slow = rca.diagnose(congested, earlier=before)
    alone = rca.diagnose(congested)
    other = slow.model_copy(
        update={
            "missing_signals": ["psi"],
            "quality": slow.quality.model_copy(update={"rows_used": 1}),
            "slowdown": slow.slowdown.model_copy(update={"versus_own_past": 9.0}),
        }
    )
    told = told_of(congested, before, other, alone=alone)
    assert (told.missing_signals, told.quality) == (alone.missing_signals, alone.quality)
    assert told.earlier is not None
    assert told.slowdown.versus_own_past == told.earlier.ratio


@pytest.mark.parametrize("untimed", ["window", "before"])
def test_untimed_steps_have_no_ratio(make_window: MakeWindow, untimed: str) -> None:
    def timed(*, known: bool) -> Window:
        plain = make_window(2, 30)
        if known:
            return plain
        place = plain.steps.column_names.index("step_seconds")
        nothing = pa.array(np.full(plain.steps.num_rows, np.nan))
        return replace(plain, steps=plain.steps.set_column(place, "step_seconds", nothing))

    window, past = timed(known=untimed != "window"), moved(timed(known=untimed != "before"), -HOUR)
    told = rca.diagnose(window, earlier=past).earlier
    assert told is not None
    assert (told.ratio, told.step_seconds) == (None, None)


def test_an_earlier_window_may_be_longer_or_shorter(make_window: MakeWindow) -> None:
    for before, steps in ((25, 25), (100, 40), (3, 3)):
        told = rca.diagnose(make_window(2, 40), earlier=moved(make_window(2, before), -HOUR)).earlier
        assert told is not None
        assert told.steps == steps


def test_another_job_is_refused(make_window: MakeWindow) -> None:
    with pytest.raises(InvalidInput, match="has 4 ranks, the window 8"):
        rca.diagnose(make_window(8, 40), earlier=moved(make_window(4, 40), -HOUR))
