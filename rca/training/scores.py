"""Scores of diagnoses against labels, as defined under Labels in the telemetry-window format."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rca.diagnosis.result import Diagnosis
from rca.robust import FloatArray
from rca.telemetry.labels import Label, LabelledCause

BOOTSTRAP_ROUNDS = 1000


@dataclass(frozen=True)
class Judged:
    """One diagnosis beside its label; NaN where a score does not apply to the window.

    Attributes
    ----------
    rank_of_cause : float
        Position (1 = first) of the first answer that names a true cause on its true ranks; inf if none does.
    """

    mode: str
    answer: str
    false_alarm: float
    mode_right: float
    rank_precision: float
    rank_recall: float
    ranks_exact: float
    type_right: float
    pattern_right: float
    rank_of_cause: float
    rank_of_cause_name: float
    seconds_error: float
    confidence: float
    abstained: float


def judge(diagnosis: Diagnosis, label: Label) -> Judged:
    """Compare one diagnosis with what was really done."""
    faulty = label.failure_mode != "healthy"
    slow = label.failure_mode == "fail_slow"
    right = diagnosis.failure_mode == label.failure_mode
    truth = {rank for cause in label.causes for rank in cause.ranks}
    named = {rank for found in diagnosis.stragglers for rank in found.ranks}
    hits = len(truth & named)
    first = diagnosis.stragglers[0] if diagnosis.stragglers else None
    return Judged(
        mode=label.failure_mode,
        answer=diagnosis.failure_mode,
        false_alarm=np.nan if faulty else float(diagnosis.failure_mode != "healthy"),
        mode_right=float(right),
        rank_precision=_if(faulty and bool(named), hits / max(len(named), 1)),
        rank_recall=_if(faulty and bool(truth), hits / max(len(truth), 1)),
        ranks_exact=_if(faulty and bool(truth), float(truth == named)),
        type_right=_if(slow, float(first is not None and first.straggler_type == label.straggler_type)),
        pattern_right=_if(slow, float(first is not None and first.pattern == label.pattern)),
        rank_of_cause=_if(faulty and bool(label.causes), _position(diagnosis, label, with_ranks=True)),
        rank_of_cause_name=_if(faulty and bool(label.causes), _position(diagnosis, label, with_ranks=False)),
        seconds_error=_seconds_error(diagnosis, label),
        confidence=diagnosis.failure_mode_probability[diagnosis.failure_mode],
        abstained=float(diagnosis.abstained),
    )


def _if(applies: bool, value: float) -> float:
    return value if applies else np.nan


def _position(diagnosis: Diagnosis, label: Label, *, with_ranks: bool) -> float:
    for position, answer in enumerate(diagnosis.causes, start=1):
        for true in label.causes:
            same_ranks = not with_ranks or set(answer.ranks) == set(true.ranks)
            if answer.cause in accepted(true) and same_ranks:
                return float(position)
    return np.inf


def accepted(true: LabelledCause) -> set[str]:
    """Answers that count as right: the cause, and those the label says its signals cannot tell apart."""
    return {true.cause, *(true.model_extra or {}).get("accepted", ())}


def true_seconds(true: LabelledCause) -> float:
    """Seconds per step the cause really cost; 0 where the producer does not know.

    Where two faults hide each other, what the cause costs alone is given too; the Shapley value of two
    players is the mean of both.
    """
    known = true.model_extra or {}
    together, alone = known.get("seconds_per_step"), known.get("alone_seconds_per_step")
    costs = [float(cost) for cost in (together, alone) if cost is not None]
    return sum(costs) / len(costs) if costs else 0.0


def _seconds_error(diagnosis: Diagnosis, label: Label) -> float:
    """Absolute error of the first cause's cost relative to the true cost of the costliest cause."""
    costs = [(true_seconds(cause), cause) for cause in label.causes]
    known = [(seconds, cause) for seconds, cause in costs if seconds]
    if label.failure_mode != "fail_slow" or not known:
        return np.nan
    seconds, true = max(known, key=lambda pair: pair[0])
    found = [cause.seconds_per_step for cause in diagnosis.causes if cause.cause in accepted(true)]
    return abs(max(found, default=0.0) - seconds) / seconds


def summarise(judged: Sequence[Judged], seed: int = 0) -> dict[str, dict[str, float]]:
    """Every score with a 95 % bootstrap interval over windows: ``{score: {value, low, high, n}}``."""
    columns: dict[str, FloatArray] = {
        "failure_mode_accuracy": _column(judged, "mode_right"),
        "false_alarm_rate": _column(judged, "false_alarm"),
        "rank_precision": _column(judged, "rank_precision"),
        "rank_recall": _column(judged, "rank_recall"),
        "ranks_exact": _column(judged, "ranks_exact"),
        "type_accuracy": _column(judged, "type_right"),
        "pattern_accuracy": _column(judged, "pattern_right"),
        "median_seconds_error": _column(judged, "seconds_error"),
        "abstention_rate": _column(judged, "abstained"),
    }
    position, by_name = _column(judged, "rank_of_cause"), _column(judged, "rank_of_cause_name")
    known = ~np.isnan(position)
    for k in (1, 3):
        columns[f"cause_ac@{k}"] = np.where(known, position <= k, np.nan)
    columns["cause_avg@5"] = np.where(known, np.clip(6 - position, 0, 5) / 5, np.nan)
    columns["cause_name_ac@1"] = np.where(known, by_name <= 1, np.nan)
    kept = _column(judged, "abstained") == 0
    columns["failure_mode_accuracy_when_not_abstaining"] = np.where(
        kept, _column(judged, "mode_right"), np.nan
    )
    rng = np.random.default_rng(seed)
    summary = {name: _interval(name, values, rng) for name, values in columns.items()}
    summary["expected_calibration_error"] = {
        "value": calibration_error(_column(judged, "confidence"), _column(judged, "mode_right")),
        "n": float(len(judged)),
    }
    return summary


def _column(judged: Sequence[Judged], name: str) -> FloatArray:
    return np.array([getattr(each, name) for each in judged], dtype=float)


def _interval(name: str, values: FloatArray, rng: np.random.Generator) -> dict[str, float]:
    held = values[~np.isnan(values)]
    if held.size == 0:
        return {"value": float("nan"), "low": float("nan"), "high": float("nan"), "n": 0.0}
    statistic = np.median if name.startswith("median") else np.mean
    drawn = held[rng.integers(0, held.size, (BOOTSTRAP_ROUNDS, held.size))]
    low, high = np.quantile(statistic(drawn, axis=1), [0.025, 0.975])
    return {"value": float(statistic(held)), "low": float(low), "high": float(high), "n": float(held.size)}


def calibration_error(confidence: FloatArray, right: FloatArray, bins: int = 10) -> float:
    """Expected calibration error: mean gap between confidence and accuracy over equal-width bins."""
    index = np.minimum((confidence * bins).astype(int), bins - 1)
    gaps = [
        abs(confidence[index == each].mean() - right[index == each].mean()) * (index == each).mean()
        for each in np.unique(index)
    ]
    return float(sum(gaps))
