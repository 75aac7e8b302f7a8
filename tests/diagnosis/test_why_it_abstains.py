"""Whoever abstains says why: one code, one sentence, and the sentence names what it is about."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from made_up_uncertainty import familiar_with

import rca
from rca.causal.attribution import Attribution, RemovedCause
from rca.causal.scores import BusyEvidence
from rca.classify.classifier import Classification, Suspect
from rca.classify.components import Component
from rca.classify.decision_table import OVERWHELMING_MODE, SHORT_CAUSE
from rca.diagnosis import abstention as module
from rca.diagnosis.abstention import is_certain_place, objection
from rca.diagnosis.advice import next_check
from rca.diagnosis.cause_pooling import PricedCause
from rca.diagnosis.pricing import Pricing
from rca.diagnosis.result import AbstentionCode, AbstentionReason, Cause
from rca.features import extract
from rca.window.times.step_clock import StepClock
from tests.for_each import for_each

THRESHOLDS = {"decide": 0.5, "name": 0.4}
MINIMAL = ("rank", "step", "start_time", "step_seconds")


def abstention(classification, features, causes, thresholds, strangeness, *, coverage: float = 1.0):
    """As in the pipeline: the first cause is named unless there is an objection."""
    priced = [
        PricedCause(
            RemovedCause(each.cause, tuple(each.ranks), np.zeros((1, 1)), np.zeros(1)),
            (0,),
            0.0,
            {},
            coverage,
        )
        for each in causes
    ]
    nothing = Attribution(np.zeros(0), np.zeros(0), np.zeros((0, 2)), 0.0, 0.0, (0.0, 0.0))
    against = objection(
        causes,
        Pricing(priced, nothing, 0.0, BusyEvidence(np.zeros((1, 0)), np.zeros((1, 0)))),
        thresholds["name"],
    )
    return module.abstention(classification, features, causes, strangeness, against)


def reason_of(window: rca.Window, **options) -> AbstentionReason:
    diagnosis = rca.diagnose(window, **options)
    assert diagnosis.abstained
    assert diagnosis.abstention_reason is not None
    return diagnosis.abstention_reason


def test_every_code_is_documented() -> None:
    page = (
        Path(__file__).resolve().parents[2] / "docs" / "explanation" / "calibration-and-abstention.md"
    ).read_text(encoding="utf-8")
    assert all(f"| `{code}` |" in page for code in get_args(AbstentionCode))


def test_a_short_window_says_how_short(make_window) -> None:
    reason = reason_of(make_window(8, 9))
    assert reason.code == "too_short"
    assert "9 finished steps" in reason.sentence
    assert "at least 20" in reason.sentence


def test_eighteen_steps_of_a_plainly_slow_job_are_an_alarm(real_windows: Path) -> None:
    window = rca.read_window(real_windows / "slow-dataset")
    clock = StepClock.of(window)
    first = int(clock.steps[-1]) - 18
    slow = rca.diagnose(clock.between(first, first + 18))
    assert slow.failure_mode == "fail_slow"
    assert slow.stragglers[0].ranks == [7]
    assert slow.causes[0].probability >= SHORT_CAUSE
    assert not slow.abstained
    few = rca.diagnose(clock.between(first, first + 5))
    assert few.failure_mode == "healthy"
    assert few.abstention_reason is not None
    assert few.abstention_reason.code == "too_short"


def test_of_few_steps_a_cause_has_to_be_certain(real_windows: Path) -> None:
    features = extract(rca.read_window(real_windows / "slow-dataset"))
    few = replace(features, work=replace(features.work, steps=features.work.steps[:12]))
    suspect = Suspect(Component("rank", (7,), 0.99), {}, {"data_loader_stall": 0.99})
    slow = Classification(
        "fail_slow", {"healthy": 0.0, "fail_slow": 1.0, "fail_stop": 0.0}, True, [suspect], 0.9
    )
    answer = rca.diagnose(rca.read_window(real_windows / "slow-dataset")).causes[0]
    for belief, code in ((SHORT_CAUSE - 0.01, "too_short"), (SHORT_CAUSE, None)):
        cause = answer.model_copy(update={"probability": belief})
        found = abstention(slow, few, [cause], THRESHOLDS, None)
        assert (found and found.code) == code
        assert abstention(slow, features, [cause], THRESHOLDS, None) is None


def test_too_few_ranks_are_counted(make_window) -> None:
    window = make_window()
    first = window.steps.filter(pc.equal(window.steps["rank"], 0))
    reason = reason_of(rca.Window.from_tables(window.job, first))
    assert reason.code == "too_few_ranks"
    assert "1 of 8 ranks" in reason.sentence


def test_step_times_alone_show_no_rank_at_work(make_window) -> None:
    reason = reason_of(make_window(columns=MINIMAL))
    assert reason.code == "too_few_ranks"
    assert "0 of 8 ranks" in reason.sentence


def test_steps_without_a_length_say_nothing_of_speed(make_window) -> None:
    window = make_window()
    column = window.steps.column_names.index("step_seconds")
    unknown = pa.array(np.full(window.steps.num_rows, np.nan))
    features = extract(
        rca.Window.from_tables(window.job, window.steps.set_column(column, "step_seconds", unknown))
    )
    reason = abstention(classified("healthy", 0.9, decided=False), features, [], THRESHOLDS, None)
    assert reason is not None
    assert reason.code == "no_step_times"


def test_a_verdict_has_no_reason_against_it(make_window, doubting) -> None:
    for window in (make_window(), make_window(late={5: 0.05}, phase="data_loading_seconds")):
        diagnosis = rca.diagnose(window, bundle=doubting())
        assert (diagnosis.abstained, diagnosis.abstention_reason) == (False, None)


def classified(mode: str, chance: float, *, decided: bool = True, suspects: int = 0) -> Classification:
    others = [name for name in ("healthy", "fail_slow", "fail_stop") if name != mode]
    chances = {mode: chance, others[0]: 0.99 * (1 - chance), others[1]: 0.01 * (1 - chance)}
    suspect = Suspect(Component("rank", (5,), 0.9), {}, {})
    return Classification(mode, chances, decided, [suspect] * suspects, 0.9)


def cause(name: str, probability: float) -> Cause:
    return Cause(
        cause=name,
        ranks=[5],
        nodes=[],
        probability=probability,
        seconds_per_step=0.01,
        interval=(0.0, 0.02),
        share=0.5,
        owner="either",
        evidence=[],
    )


@pytest.fixture(scope="module")
def features(make_window):
    return extract(make_window(late={5: 0.03}))


def test_two_modes_are_named_with_their_odds(features) -> None:
    reason = abstention(classified("fail_slow", 0.48, decided=False), features, [], THRESHOLDS, None)
    assert reason is not None
    assert reason.code == "undecided_mode"
    assert "fail-slow (0.48)" in reason.sentence
    assert "healthy (0.51)" in reason.sentence


def test_suspicion_below_the_alarm_shows_the_alarm_threshold(features) -> None:
    classification = replace(classified("healthy", 0.2, decided=False), alarm=0.94)
    reason = abstention(classification, features, [], THRESHOLDS, None)
    assert reason is not None
    assert reason.code == "undecided_mode"
    assert "fail-slow (0.79)" in reason.sentence
    assert reason.sentence.endswith("an alarm needs 0.940 for a fault, which has 0.800")


def test_the_undecided_causes_are_named(features) -> None:
    causes = [cause("cpu_contention", 0.35), cause("memory_pressure", 0.3), cause("cpu_contention", 0.1)]
    reason = abstention(classified("fail_slow", 0.99, suspects=1), features, causes, THRESHOLDS, None)
    assert reason is not None
    assert reason.code == "cause_not_certain"
    assert reason.sentence.endswith(": cpu_contention (0.35), memory_pressure (0.30)")


def test_a_likely_cause_that_leaves_most_of_the_loss_open_is_not_named(features) -> None:
    causes = [cause("cpu_contention", 0.7)]
    classification = classified("fail_slow", 0.99, suspects=1)
    reason = abstention(classification, features, causes, THRESHOLDS, None, coverage=0.3)
    assert reason is not None
    assert reason.code == "cause_not_certain"
    assert reason.sentence.startswith("cpu_contention is likely but explains less than half")


@pytest.mark.parametrize("basis", ["signals", "timing"])
def test_a_sure_cause_is_named_although_it_explains_little(features, basis) -> None:
    """The rest of the loss stays open beside it."""
    classification = classified("fail_slow", 0.99, suspects=1)
    found = cause("cpu_contention", 0.85).model_copy(update={"basis": basis})
    assert abstention(classification, features, [found], THRESHOLDS, None, coverage=0.3) is None


def test_one_cause_of_two_suspects_does_not_compete_with_itself(features) -> None:
    causes = [cause("cpu_contention", 0.7), cause("cpu_contention", 0.65)]
    assert abstention(classified("fail_slow", 0.99, suspects=1), features, causes, THRESHOLDS, None) is None


@pytest.mark.parametrize(
    ("slow", "straggles", "share", "certain"),
    [(0.96, 0.96, 0.9, True), (0.96, 0.9, 0.9, False), (0.9, 0.96, 0.9, False), (0.96, 0.96, 0.3, False)],
)
def test_a_place_is_certain_where_the_job_and_its_straggler_are(slow, straggles, share, certain) -> None:
    classification = classified("fail_slow", slow, suspects=1)
    (suspect,) = classification.suspects
    suspect = replace(suspect, component=replace(suspect.component, probability=straggles))
    assert is_certain_place(classification, [suspect], share) == certain
    assert not is_certain_place(classification, [], share)


def test_a_slow_job_without_suspects_says_so(features) -> None:
    reason = abstention(classified("fail_slow", 0.99), features, [], THRESHOLDS, None)
    assert reason is not None
    assert reason.code == "nobody_stands_out"


@pytest.mark.parametrize("likely", [0.94, 0.96])
def test_a_certain_stop_has_a_verdict_although_nothing_shows_where_it_began(features, likely) -> None:
    reason = abstention(classified("fail_stop", likely), features, [], THRESHOLDS, None)
    assert (reason is None) == (likely >= OVERWHELMING_MODE)
    assert reason is None or reason.code == "nobody_stands_out"
    check = next_check("fail_stop", True, [], ["gpu_clock"])
    assert "flight recorder" in check


def test_suspects_that_cost_nothing_are_no_cause(features) -> None:
    reason = abstention(classified("fail_slow", 0.99, suspects=1), features, [], THRESHOLDS, None)
    assert reason is not None
    assert reason.code == "cause_not_certain"


STRANGE = familiar_with(0.1, log2_ranks=(0.0, 2.0))
USUAL = familiar_with(log2_ranks=(0.0, 12.0))


@for_each(
    ("mode", "chance", "certainty", "code"),
    [
        ("healthy", 0.9, 0.0, "out_of_distribution"),
        ("healthy", 0.99, 0.0, None),
        ("fail_slow", 0.9, 0.99, "out_of_distribution"),
        ("fail_slow", 0.99, 0.5, "out_of_distribution"),
        ("fail_slow", 0.99, 0.9, None),
        ("fail_stop", 0.99, 0.5, None),
    ],
)
def test_a_strange_window_needs_overwhelming_evidence(features, mode, chance, certainty, code) -> None:
    causes = [cause("cpu_contention", certainty)] if certainty else []
    classification = classified(mode, chance, suspects=1)
    answer = abstention(classification, features, causes, THRESHOLDS, STRANGE.judge(features.window))
    assert (answer.code if answer else None) == code
    usual = abstention(classification, features, causes, THRESHOLDS, USUAL.judge(features.window))
    assert usual is None


def test_unfamiliar_features_are_shown_in_the_users_units(make_window, doubting) -> None:
    quality = rca.diagnose(make_window(), bundle=doubting(familiarity=STRANGE)).quality
    assert quality.out_of_distribution is True
    assert quality.unfamiliar[0].startswith("the job's shape is unlike")
    assert quality.unfamiliar[1:] == ["world size: 8 ranks; training windows had 1 to 4"]


def test_a_familiar_window_differs_from_a_bundle_without_ranges(make_window, doubting) -> None:
    window = make_window()
    familiar = rca.diagnose(window, bundle=doubting(familiarity=USUAL)).quality
    assert (familiar.out_of_distribution, familiar.unfamiliar) == (False, [])
    assert rca.diagnose(window, bundle=doubting()).quality.out_of_distribution is None


def test_an_unusual_shape_of_the_job_is_named(make_window, doubting) -> None:
    odd = replace(USUAL, distance_limit=0.1)
    (answer,) = rca.diagnose(make_window(), bundle=doubting(familiarity=odd)).quality.unfamiliar
    assert "most unusual:" in answer


def test_loud_evidence_is_no_strange_job(make_window, doubting) -> None:
    quality = rca.diagnose(
        make_window(), bundle=doubting(familiarity=familiar_with(step_noise=(0.0, 0.0)))
    ).quality
    assert quality.features_outside == ["step_noise"]
    assert quality.out_of_distribution is False


def test_a_straggler_that_no_signal_explains_is_to_be_swapped() -> None:
    answer = next_check("fail_slow", True, [], [], suspects=[5])
    assert "rank 5" in answer
    assert "fast peer" in answer
