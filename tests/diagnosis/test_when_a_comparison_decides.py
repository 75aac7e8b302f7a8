"""When what a comparison with an earlier window says takes the place of what the window says alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from fabrics import STEPS

import rca
from benchmarks.retold_incidents import INCIDENTS
from rca.diagnosis import Diagnosis, baseline_window
from rca.diagnosis.baseline_window import Outline
from rca.diagnosis.result import AbstentionReason
from rca.features import WINDOW_FEATURES, extract
from rca.high_segment import Segment
from rca.window import Window
from rca.window.baseline_window import after_earlier
from tests.for_each import for_each


def told_of(
    window: Window, before: Window, compared: Diagnosis, alone: Diagnosis | None = None, **seen: Any
) -> Diagnosis:
    """The answer where the comparison says so."""
    return baseline_window.with_earlier(
        rca.diagnose(window) if alone is None else alone,
        window,
        Outline.of(extract(window)),
        before,
        lambda both, _: (compared, replace(extract(both), **seen)),
    )


def decided(diagnosis: Diagnosis) -> bool:
    assert diagnosis.earlier is not None
    return diagnosis.earlier.decided


def test_where_the_comparison_leaves_it_open_so_does_the_answer(congested: Window, before: Window) -> None:
    sound = rca.diagnose(congested)
    assert (sound.failure_mode, sound.abstained) == ("healthy", False)
    doubt = AbstentionReason(code="undecided_mode", sentence="it may be slow")
    undecided = sound.model_copy(update={"abstained": True, "abstention_reason": doubt})
    shown = told_of(congested, before, undecided)
    assert (shown.failure_mode, shown.abstention_reason) == ("healthy", doubt)
    assert decided(shown)


def test_a_healthy_job_that_is_slower_has_a_next_check(fabric: Callable[..., Window], before: Window) -> None:
    window = fabric(0.025, congested=True)
    sound = rca.diagnose(window)
    shown = told_of(window, before, sound)
    assert shown.next_check.startswith(
        "usual steps take 1.21 times as long as in the earlier window, on all ranks"
    )
    assert not decided(shown)
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
def test_steps_that_hardly_take_longer_are_not_compared(
    congested: Window, fabric: Callable[..., Window], before: Window, transfer: float, asks: bool
) -> None:
    slow = rca.diagnose(congested, earlier=before)
    shown = told_of(fabric(transfer, congested=True), before, slow)
    assert shown.earlier is not None
    assert shown.earlier.ratio is not None
    assert 1.02 < shown.earlier.ratio < 1.08
    assert decided(shown) == asks == (shown.earlier.ratio >= baseline_window.SLOWER)


@pytest.mark.parametrize("likely", [0.965, 0.975])
def test_a_second_test_needs_a_higher_probability(congested: Window, before: Window, likely: float) -> None:
    slow = rca.diagnose(congested, earlier=before)
    odds = {"healthy": 1.0 - likely, "fail_slow": likely, "fail_stop": 0.0}
    shown = told_of(congested, before, slow.model_copy(update={"failure_mode_probability": odds}))
    assert decided(shown) == (shown.failure_mode == "fail_slow") == (likely >= baseline_window.BASELINE_ALARM)


def test_an_alarm_has_to_explain_why_the_job_is_slower(congested: Window, before: Window) -> None:
    """All ranks compute more, and one is late by little: that is no fault of this rank."""
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


@for_each(
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


@for_each(
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


@for_each(
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
    shown = told_of(congested, before, slow, comparison=replace(both.comparison, segment=stretch))
    assert decided(shown) == counts
    if counts:
        assert shown.stragglers[0].first_step == 0


def test_steps_and_pattern_are_the_windows(congested: Window, before: Window) -> None:
    slow = rca.diagnose(congested, earlier=before)
    (group,) = slow.stragglers

    def shown(
        first: int | None, last: int | None, pattern: str, alone: Diagnosis | None = None
    ) -> tuple[int | None, int | None, str | None]:
        changed = group.model_copy(update={"first_step": first, "last_step": last, "pattern": pattern})
        compared = slow.model_copy(update={"stragglers": [changed]})
        (found,) = told_of(congested, before, compared, alone=alone).stragglers
        return found.first_step, found.last_step, found.pattern

    end = STEPS - 1
    # The earlier window's steps have numbers below 0.
    assert shown(-40, -10, "persistent") == (0, end, "persistent")
    assert shown(None, None, "persistent") == shown(3, None, "persistent") == (0, end, "persistent")
    assert shown(-5, 30, "transient") == (0, 30, "transient")
    assert shown(3, end - 3, "transient") == (3, end - 3, "persistent")
    assert shown(3, end - 4, "transient") == (3, end - 4, "transient")
    assert shown(3, end, "deterministic") == (3, end, "deterministic")
    # What the window alone says of the same ranks is not made less of by a longer past.
    known = slow.model_copy(
        update={"stragglers": [group.model_copy(update={"pattern": "deterministic"})], "causes": []}
    )
    assert shown(3, 20, "transient", alone=known)[2] == "deterministic"


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
    shown = told_of(congested, before, other, alone=alone)
    assert (shown.missing_signals, shown.quality) == (alone.missing_signals, alone.quality)
    assert shown.earlier is not None
    assert shown.slowdown.versus_own_past == shown.earlier.ratio


def test_a_job_that_is_much_slower_than_before_is_never_called_healthy(
    fabric: Callable[..., Window], before: Window
) -> None:
    window = fabric(0.032, congested=True)
    sound = rca.diagnose(window)
    assert (sound.failure_mode, sound.abstained) == ("healthy", False)
    shown = told_of(window, before, sound)
    assert shown.abstention_reason is not None
    assert (shown.verdict, shown.abstention_reason.code) == ("undecided", "slower_than_before")
    strange = rca.diagnose(window, earlier=before)
    quality = strange.quality.model_copy(update={"out_of_distribution": True})
    shown = told_of(window, before, strange.model_copy(update={"quality": quality}))
    assert shown.abstention_reason is not None
    assert (shown.failure_mode, shown.abstention_reason.code) == ("fail_slow", "cause_not_certain")


def test_steps_with_more_input_may_take_longer(fabric: Callable[..., Window], before: Window) -> None:
    window = fabric(0.06, congested=True)
    sound = rca.diagnose(window)
    per_load = WINDOW_FEATURES.index("slow_segment_ratio_per_load")
    row = extract(after_earlier(window, before)).window.copy()
    assert np.isnan(row[per_load])
    row[per_load] = 1.1
    shown = baseline_window.with_earlier(
        sound,
        window,
        Outline.of(extract(window)),
        before,
        lambda both, _: (sound, replace(extract(both), window=row)),
    )
    assert shown.verdict == "healthy"


@for_each(
    ("scope", "likely", "chance", "opens"),
    [
        ("job", 0.98, 0.6, True),
        ("node", 0.98, 0.6, False),
        ("node", 0.98, 0.96, True),
        ("job", 0.9, 0.6, False),
    ],
)
def test_a_certain_comparison_leaves_the_cause_open(
    congested: Window, before: Window, scope: str, likely: float, chance: float, opens: bool
) -> None:
    slow = rca.diagnose(congested, earlier=before)
    (first, *_) = slow.stragglers
    changes = {
        "abstained": True,
        "abstention_reason": AbstentionReason(code="cause_not_certain", sentence="it may be another"),
        "failure_mode_probability": {"healthy": 1.0 - likely, "fail_slow": likely, "fail_stop": 0.0},
        "stragglers": [first.model_copy(update={"scope": scope, "probability": chance})],
    }
    found = baseline_window._opened(slow.model_copy(update=changes))
    assert (found.verdict == "fail_slow", found.cause_is_unknown) == (opens, opens)


def test_a_change_that_one_timer_hardly_shows_costs_whole_steps() -> None:
    """Loading takes a little longer than a day before; what no timer shows takes most of the time."""
    told = INCIDENTS["own-threads"].retell("earlier", 0)
    found = rca.diagnose(told.window, earlier=told.earlier)
    assert found.earlier is not None
    lost = (found.earlier.ratio - 1.0) * found.earlier.step_seconds
    assert found.slowdown.seconds_per_step == pytest.approx(lost, rel=0.2)
