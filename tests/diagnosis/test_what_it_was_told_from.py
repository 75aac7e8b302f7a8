"""Plausible alternatives and the model's own reasons, in the user's units."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from made_up_uncertainty import NOTHING_KNOWN

import rca
from rca.classify.components import Component
from rca.diagnosis import explanations, pipeline
from rca.diagnosis.bundle import baseline
from rca.diagnosis.explanations import preference
from rca.diagnosis.feature_units import read_feature, subject, subject_of_signal, table_of
from rca.features import RANK_FEATURES, WINDOW_FEATURES, extract
from rca.features.groups import feature_groups
from rca.features.resource_evidence import RESOURCES
from rca.window.causes import UNKNOWN
from tests.for_each import for_each

#: A slow GPU lengthens its kernels, wherever they are.
KERNELS = {"forward_seconds": 0.35, "backward_seconds": 0.65}


def test_an_ignorant_bundle_gives_no_sets(make_window, doubting) -> None:
    diagnosis = rca.diagnose(make_window(late={5: 0.05}), bundle=doubting())
    assert (diagnosis.set_level, diagnosis.failure_mode_set) == (None, [])
    assert diagnosis.stragglers
    assert diagnosis.stragglers[0].plausible_causes == []


def test_sets_rule_out_what_is_below_its_floor(make_window, doubting, settled) -> None:
    window = make_window(late={5: 0.1}, phase="data_loading_seconds")
    diagnosis = rca.diagnose(window, bundle=doubting(sets=settled))
    assert diagnosis.set_level == 0.9
    assert diagnosis.failure_mode_set == ["fail_slow"]
    plausible = diagnosis.stragglers[0].plausible_causes
    assert diagnosis.causes[0].cause in plausible
    assert len(plausible) <= 3


def test_sets_that_rule_nothing_out_hold_everything(make_window, doubting, undecided) -> None:
    diagnosis = rca.diagnose(make_window(late={5: 0.05}), bundle=doubting(sets=undecided))
    assert set(diagnosis.failure_mode_set) == {"healthy", "fail_slow", "fail_stop"}
    assert set(diagnosis.stragglers[0].plausible_causes) == set(baseline().classifier.heads["cause"].classes)


def test_a_stopped_jobs_causes_have_prediction_sets_of_stops(
    real_windows, doubting, settled, undecided
) -> None:
    window = rca.read_window(real_windows / "killed-rank")
    for sets in (settled, undecided):
        plausible = rca.diagnose(window, bundle=doubting(sets=sets)).stragglers[0].plausible_causes
        assert set(plausible) <= {"process_crash", "hang"}
        assert "process_crash" in plausible


def test_a_late_rank_has_evidence_in_seconds_with_the_healthy_value(make_window, doubting) -> None:
    usual = {table: np.zeros_like(medians) for table, medians in NOTHING_KNOWN.items()}
    window = make_window(late={5: 0.05}, phase="data_loading_seconds")
    diagnosis = rca.diagnose(window, bundle=doubting(healthy=usual))
    (straggler,) = diagnosis.stragglers
    assert straggler.ranks == [5]
    in_seconds = [item for item in straggler.evidence if item.unit == "s"]
    assert in_seconds
    for item in in_seconds:
        assert item.reference == 0.0
        assert item.value is not None
        assert abs(item.value) < 0.2
    assert any(item.value == pytest.approx(0.05, rel=0.1) for item in in_seconds)


def test_the_verdict_and_its_reasons_point_the_same_way(make_window) -> None:
    diagnosis = rca.diagnose(make_window(late={5: 0.05}))
    for evidence in (diagnosis.failure_mode_evidence, diagnosis.stragglers[0].evidence):
        assert evidence
        assert sum(item.log_odds for item in evidence) > 0
        assert all((item.log_odds > 0) == (item.direction == "for") for item in evidence)
        sizes = [abs(item.log_odds) for item in evidence]
        assert sizes == sorted(sizes, reverse=True)


def test_a_healthy_verdict_is_explained_only_if_uncertain(make_window) -> None:
    assert rca.diagnose(make_window()).failure_mode_evidence == []
    short = rca.diagnose(make_window(8, 9))
    assert short.abstained
    assert short.failure_mode_evidence


def test_evidence_for_a_cause_is_not_repeated(real_windows) -> None:
    for name in ("cpu-contention-node", "slow-dataset", "killed-rank"):
        diagnosis = rca.diagnose(rca.read_window(real_windows / name))
        causal = {subject_of_signal(item.signal) for cause in diagnosis.causes for item in cause.evidence}
        assert diagnosis.failure_mode_evidence
        answer = [subject_of_feature_or_signal(item.signal) for item in diagnosis.failure_mode_evidence]
        assert not causal & set(answer), name
        assert len(answer) == len(set(answer)), name


def subject_of_feature_or_signal(signal: str) -> str:
    known = signal in RANK_FEATURES or signal in WINDOW_FEATURES
    return subject(signal) if known else subject_of_signal(signal)


def test_every_feature_can_be_read_or_is_left_out(real_windows) -> None:
    features = extract(rca.read_window(real_windows / "cpu-contention-node"))
    read = 0
    for column, feature in enumerate(table_of("window")):
        value = float(features.window[column])
        reading = read_feature(feature, value, value, features, None)
        # A score of nothing is nobody's.
        nothing = feature_groups()[feature.name] in RESOURCES and value == 0.0
        assert (reading is None) == (not np.isfinite(value) or nothing), feature.name
        if reading is not None and reading.signal == feature.name:
            assert reading.reference == pytest.approx(reading.value)
            read += 1
    assert read > 30


@for_each(
    ("name", "value", "shown", "unit"),
    [
        ("log2_ranks", 6.0, 64.0, "ranks"),
        ("top_gain_rank", 0.5, None, "s"),
        ("last_rank_spread", 0.25, 25.0, "percent"),
        ("steps_since_progress", 3.0, 3.0, "steps"),
        ("step_time_trend", float("nan"), None, None),
    ],
)
def test_units_are_those_people_use(make_window, name, value, shown, unit) -> None:
    features = extract(make_window())
    feature = table_of("window")[WINDOW_FEATURES.index(name)]
    reading = read_feature(feature, value, float("nan"), features, None)
    if unit is None:
        assert reading is None
        return
    assert reading is not None
    expected = value * features.work.step_reference if shown is None else shown
    assert reading.value == pytest.approx(expected)
    assert (reading.unit, reading.reference) == (unit, None)


def test_a_resource_is_read_as_the_channel_of_the_worst_rank(real_windows) -> None:
    features = extract(rca.read_window(real_windows / "cpu-contention-node"))
    column = WINDOW_FEATURES.index("max_cpu_wait_vs_peers")
    feature = table_of("window")[column]
    reading = read_feature(feature, float(features.window[column]), float("nan"), features, None)
    assert reading is not None
    assert reading.signal in {"psi_cpu", "runqueue_wait", "container_psi_cpu", "ctx_involuntary"}
    assert "rank 2" in reading.note or "rank 3" in reading.note
    assert reading.reference is not None
    assert reading.value > reading.reference


def test_a_cause_is_compared_with_the_likeliest_other_one(make_window) -> None:
    """Nothing but phases: that the rank's kernels took longer is known, not why."""
    diagnosis = rca.diagnose(make_window(late={5: 0.05}, phase=KERNELS))
    (straggler,) = diagnosis.stragglers
    preferred = straggler.preference
    assert preferred is not None
    assert preferred.cause == diagnosis.causes[0].cause
    assert preferred.rather_than == UNKNOWN
    sizes = [abs(item.log_odds) for item in preferred.evidence]
    assert sizes == sorted(sizes, reverse=True)


@pytest.mark.parametrize(
    ("named", "other", "head", "classes"),
    [
        ("gpu_throttling", "gpu_contention", "cause", ("gpu_throttling", "gpu_contention")),
        ("gpu_throttling", UNKNOWN, "cause", ("gpu_throttling", UNKNOWN)),
        ("cpu_contention", "data_loader_stall", "type", ("host", "input")),
    ],
)
def test_types_tell_causes_of_two_types_apart(make_window, named, other, head, classes) -> None:
    features = extract(make_window(late={5: 0.05}))
    classifier = baseline().classifier
    classification = classifier.classify(features)
    (suspect,) = classification.suspects
    wanted = replace(suspect, causes={other: 0.6, named: 0.3, "hang": 0.1})
    preferred = preference(wanted, named, classification, classifier, features)
    assert preferred is not None
    assert (preferred.cause, preferred.rather_than) == (named, other)
    moved = classifier.heads[head].contributions(features.rank[[5]], *classes)[0]
    assert {item.log_odds for item in preferred.evidence} <= set(moved.tolist())
    assert max(abs(item.log_odds) for item in preferred.evidence) > 0.5 * np.abs(moved).max()


@pytest.mark.parametrize(
    "causes",
    [
        {"gpu_throttling": 0.96, "gpu_contention": 0.04},
        {"gpu_throttling": 1.0},
        {"gpu_throttling": 0.6, "told by its owner": 0.4},
    ],
    ids=["unlikely", "alone", "of which no model knows"],
)
def test_there_is_no_preference_without_another_cause(make_window, causes) -> None:
    features = extract(make_window(late={5: 0.05}))
    classifier = baseline().classifier
    classification = classifier.classify(features)
    wanted = replace(classification.suspects[0], causes=causes)
    assert preference(wanted, "gpu_throttling", classification, classifier, features) is None


def test_a_hang_is_compared_with_a_crash_by_the_window(real_windows) -> None:
    features = extract(rca.read_window(real_windows / "killed-rank"))
    classifier = baseline().classifier
    classification = classifier.classify(features)
    wanted = replace(classification.suspects[0], causes={"process_crash": 0.8, "hang": 0.2})
    preferred = preference(wanted, "process_crash", classification, classifier, features)
    assert preferred is not None
    moved = classifier.heads["stop_cause"].contributions(features.window[None, :], "process_crash", "hang")[0]
    assert {item.log_odds for item in preferred.evidence} <= set(moved.tolist())


def test_the_typical_rank_is_explained_and_none_with_its_own_fault(make_window) -> None:
    features = extract(make_window(late={4: 0.05, 5: 0.06, 6: 0.01, 7: 0.002}))
    classifier = baseline().classifier
    classification = classifier.classify(features)
    head, two = classifier.heads["cause"], ("gpu_throttling", "gpu_contention")
    rows = [head.classes.index(cause) for cause in two]

    def odds(ranks: tuple[int, ...]) -> np.ndarray:
        chances = np.log(head.probabilities(features.rank[list(ranks)]))
        return chances[:, rows[0]] - chances[:, rows[1]]

    def typical(ranks: tuple[int, ...]) -> int:
        return ranks[int(np.abs(odds(ranks) - odds(ranks).mean()).argmin())]

    all_ranks = (4, 5, 6, 7)
    one = typical(all_ranks)
    others = tuple(rank for rank in all_ranks if rank != one)
    (rank, *_) = classification.suspects
    node = Component("node", all_ranks, 0.9)
    wanted = replace(rank, component=node, causes=dict(zip(two, (0.6, 0.4), strict=True)))
    alone = replace(rank, component=Component("rank", (one,), 0.9))
    for suspects, expected in (([wanted], one), ([wanted, alone], typical(others))):
        among = replace(classification, suspects=suspects)
        preferred = preference(wanted, two[0], among, classifier, features)
        assert preferred is not None
        moved = head.contributions(features.rank[[expected]], *two)[0]
        assert {item.log_odds for item in preferred.evidence} <= set(moved.tolist())
        assert preferred.log_odds == pytest.approx(odds((expected,))[0])


@pytest.mark.parametrize("most", [0, 1])
def test_only_the_first_stragglers_are_explained(make_window, monkeypatch, most: int) -> None:
    for module in (explanations, pipeline):
        monkeypatch.setattr(module, "MAX_EXPLAINED", most)
    (straggler,) = rca.diagnose(make_window(late={5: 0.05}, phase=KERNELS)).stragglers
    assert bool(straggler.evidence) == (straggler.preference is not None) == (most == 1)
