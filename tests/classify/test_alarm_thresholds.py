"""The alarm threshold is lower where much is lost, and separate where no own work was timed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rca.classify.decision_table import LARGE_LOSS
from rca.classify.preconditions import alarm_thresholds
from rca.diagnosis.bundle import baseline
from rca.features import WINDOW_FEATURES, extract
from tests.for_each import for_each

THREE = {"fault": 0.94, "fault_costly": 0.86, "fault_unseen": 0.97}


def window(**known: float) -> np.ndarray:
    """Window features, all missing but these."""
    held = np.full(len(WINDOW_FEATURES), np.nan)
    for name, value in known.items():
        held[WINDOW_FEATURES.index(name)] = value
    return held


@for_each(
    ("lateness", "share", "wanted"),
    [
        (LARGE_LOSS, 1.0, 0.86),
        (0.9 * LARGE_LOSS, 1.0, 0.94),
        (2 * LARGE_LOSS, 0.6, 0.86),
        (2 * LARGE_LOSS, 0.4, 0.94),
        (np.nan, 1.0, 0.94),
        (0.5, np.nan, 0.94),
    ],
)
def test_the_mean_loss_over_all_steps_decides(lateness: float, share: float, wanted: float) -> None:
    row = window(step_noise=0.01, lateness=lateness, slow_segment_share=share)
    assert alarm_thresholds(THREE, row) == wanted


def test_untimed_work_has_its_own_threshold_for_any_loss() -> None:
    assert alarm_thresholds(THREE, window(lateness=0.5, slow_segment_share=1.0)) == 0.97


def test_many_windows_are_judged_at_once() -> None:
    rows = np.stack([window(step_noise=0.0, lateness=late, slow_segment_share=1.0) for late in (0.0, 0.5)])
    assert alarm_thresholds(THREE, rows).tolist() == [0.94, 0.86]


def test_changes_of_the_whole_job_have_their_own_threshold_unless_they_cost_much() -> None:
    rows = np.stack(
        [window(step_noise=0.0, lateness=late, slow_segment_share=1.0) for late in (0.0, 0.0, 0.5)]
    )
    limits = alarm_thresholds(THREE | {"fault_whole": 0.98}, rows, np.array([False, True, True]))
    assert limits.tolist() == [0.94, 0.98, 0.86]


def test_older_bundles_have_one_threshold_for_all() -> None:
    rows = np.stack([window(), window(step_noise=0.0, lateness=0.5, slow_segment_share=1.0)])
    assert alarm_thresholds({"fault": 0.9}, rows).tolist() == [0.9, 0.9]


def test_the_classifier_takes_the_limit_of_the_kind_of_change(make_window) -> None:
    """One rank that is late, and a job that becomes slow as a whole."""
    classifier = baseline().classifier
    limits = classifier.thresholds | {"fault": 0.94, "fault_whole": 0.98, "fault_costly": 0.5}
    changed = replace(classifier, thresholds=limits)
    rows = extract(make_window(late={5: 0.001}))
    for chance, wanted in ((0.0, 0.94), (1.0, 0.98)):
        heads = classifier.heads | {"scope": Certain(classifier.heads["scope"].classes, chance)}
        assert replace(changed, heads=heads).alarm(rows) == wanted


class Certain:
    """A scope head with one answer."""

    def __init__(self, classes: tuple[str, ...], whole: float) -> None:
        self.classes, self.whole = classes, whole

    def probabilities(self, rows: np.ndarray) -> np.ndarray:
        chances = {"job": self.whole, "some": 1.0 - self.whole}
        return np.tile([chances[name] for name in self.classes], (len(rows), 1))
