"""Scores with intervals from judged answers, and differences between methods."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from rca.arrays import FloatArray
from rca.lab.evaluation.intervals import Estimate, bootstrap, calibration_estimate, score
from rca.lab.evaluation.scores import Judged

#: Smallest number of differing windows: with fewer a sign test cannot reach 5 %.
MIN_DIFFERING = 6
LOWER_IS_BETTER = frozenset({"false_alarm_rate", "median_seconds_error", "median_onset_error"})
#: Scores that are better neither higher nor lower: coverage should be at its level.
WITHOUT_DIRECTION = frozenset(
    {
        "abstention_rate",
        "unfelt_alarm_rate",
        "cost_interval_coverage",
        "median_cost_interval_width",
        "mode_set_coverage",
        "mode_set_size",
        "cause_set_coverage",
        "cause_set_size",
        "out_of_distribution_rate",
    }
)

Verdict = Literal["better", "worse", "undecided"]


def score_columns(judged: Sequence[Judged]) -> dict[str, FloatArray]:
    """Every score per window: ``{score: ndarray of shape (n_windows,)}``, NaN if it does not apply.

    A score is the mean of its column, or the median if its name begins with ``median``.
    """
    columns = {
        "failure_mode_accuracy": _column(judged, "mode_right"),
        "false_alarm_rate": _column(judged, "false_alarm"),
        "unfelt_alarm_rate": _column(judged, "unfelt_alarm"),
        "rank_precision": _column(judged, "rank_precision"),
        "rank_recall": _column(judged, "rank_recall"),
        "ranks_exact": _column(judged, "ranks_exact"),
        "type_accuracy": _column(judged, "type_right"),
        "pattern_accuracy": _column(judged, "pattern_right"),
        "median_seconds_error": _column(judged, "seconds_error"),
        "cost_interval_coverage": _column(judged, "cost_covered"),
        "median_cost_interval_width": _column(judged, "cost_width"),
        "median_onset_error": _column(judged, "onset_error"),
        "abstention_rate": _column(judged, "abstained"),
        "mode_set_coverage": _column(judged, "mode_covered"),
        "mode_set_size": _column(judged, "mode_set_size"),
        "cause_set_coverage": _column(judged, "cause_covered"),
        "cause_set_size": _column(judged, "cause_set_size"),
        "out_of_distribution_rate": _column(judged, "unfamiliar"),
    }
    position, by_name = _column(judged, "rank_of_cause"), _column(judged, "rank_of_cause_name")
    known = ~np.isnan(position)
    for k in (1, 3):
        columns[f"cause_ac@{k}"] = np.where(known, position <= k, np.nan)
    columns["cause_avg@5"] = np.where(known, np.clip(6 - position, 0, 5) / 5, np.nan)
    columns["cause_name_ac@1"] = np.where(known, by_name <= 1, np.nan)
    kept = columns["abstention_rate"] == 0
    columns["failure_mode_accuracy_when_not_abstaining"] = np.where(
        kept, columns["failure_mode_accuracy"], np.nan
    )
    columns["cause_ac@1_when_not_abstaining"] = np.where(kept, columns["cause_ac@1"], np.nan)
    return columns


def _column(judged: Sequence[Judged], name: str) -> FloatArray:
    return np.array([getattr(each, name) for each in judged], dtype=float)


def estimates(judged: Sequence[Judged], seed: int = 0) -> dict[str, Estimate]:
    """Every score with its 95 % interval over windows."""
    rng = np.random.default_rng(seed)
    found = {
        name: bootstrap(values, rng, np.median) if name.startswith("median") else score(values, rng)
        for name, values in score_columns(judged).items()
    }
    found["expected_calibration_error"] = calibration_estimate(
        _column(judged, "confidence"), _column(judged, "mode_right"), rng
    )
    return found


def summarise(judged: Sequence[Judged], seed: int = 0) -> dict[str, dict[str, float]]:
    """`estimates` as plain data: ``{score: {value, low, high, n}}``."""
    return {name: estimate.as_row() for name, estimate in estimates(judged, seed).items()}


def rounded(summary: dict[str, dict[str, float]]) -> dict[str, Any]:
    """The summary with four decimals."""
    return {name: {key: round(value, 4) for key, value in row.items()} for name, row in summary.items()}


@dataclass(frozen=True)
class Difference:
    """One method's score minus another's on the same windows.

    Attributes
    ----------
    estimate : Estimate
        Mean difference; `n` counts the windows for which both methods have the score.
    differing : int
        Windows with a difference.
    verdict : {"better", "worse", "undecided"}
        About the first method.
    """

    score: str
    estimate: Estimate
    differing: int
    verdict: Verdict


def differences(one: Sequence[Judged], other: Sequence[Judged], seed: int = 0) -> list[Difference]:
    """Paired bootstrap of every score that both methods have and that has a direction.

    Parameters
    ----------
    one, other : sequence of Judged
        The same windows in the same order.

    Notes
    -----
    Windows are drawn, not answers, so the difficulty of a window cancels. A verdict needs an interval that
    excludes 0 and `MIN_DIFFERING` differing windows: over few windows a bootstrap interval is too narrow.
    """
    rng = np.random.default_rng(seed)
    left, right = score_columns(one), score_columns(other)
    found = []
    for name in left:
        delta = left[name] - right[name]
        if name in WITHOUT_DIRECTION or not np.isfinite(delta).any():
            continue
        estimate = bootstrap(delta, rng)
        differing = int((np.nan_to_num(delta) != 0).sum())
        found.append(Difference(name, estimate, differing, _verdict(name, estimate, differing)))
    return found


def _verdict(name: str, estimate: Estimate, differing: int) -> Verdict:
    if differing < MIN_DIFFERING or estimate.low <= 0 <= estimate.high:
        return "undecided"
    return "better" if (estimate.value > 0) != (name in LOWER_IS_BETTER) else "worse"
