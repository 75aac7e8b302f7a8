"""One answer against its label, as defined under Labels in the telemetry-window format."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rca.diagnosis.result import Diagnosis
from rca.lab.evaluation.answer import Aspect, MethodAnswer
from rca.lab.evaluation.error_kinds import kind_of_error
from rca.sources.labels import LabelledCause, WindowLabel, accepted, unfelt
from rca.window.causes import UNKNOWN


@dataclass(frozen=True)
class Judged:
    """Scores of one answer against its label; NaN if a score does not apply to the window or the method.

    Attributes
    ----------
    unfelt_alarm : float
        Whether the answer to a fault without visible effect is not healthy. Such a window has no clear
        label, so it counts for no other score.
    rank_of_cause : float
        Position (1 = first) of the first named cause that is true on its true ranks; inf if none is.
    rank_of_cause_name : float
        The same for any ranks.
    cost_covered, cost_width : float
        Whether the interval of the costliest true cause, named on exactly its ranks, contains the true cost;
        width of the interval relative to the true cost.
    onset_error : float, steps
        Absolute distance from the fault's first step to the stragglers' first late step, if the fault begins
        within the window and the answer is fail-slow.
    mode_covered, mode_set_size : float
        Whether the true failure mode is not ruled out; number of failure modes that are not.
    cause_covered, cause_set_size : float
        The same for causes, over the named stragglers that share ranks with a true cause.
    unfamiliar : float
        Whether the window is flagged as unlike the training windows.
    kind : str
        Key of `rca.lab.evaluation.error_kinds.KINDS`; "" if none applies.
    """

    mode: str
    answer: str
    false_alarm: float
    unfelt_alarm: float
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
    cost_covered: float = np.nan
    cost_width: float = np.nan
    onset_error: float = np.nan
    mode_covered: float = np.nan
    mode_set_size: float = np.nan
    cause_covered: float = np.nan
    cause_set_size: float = np.nan
    unfamiliar: float = np.nan
    kind: str = ""


def judge(given: Diagnosis | MethodAnswer, label: WindowLabel, first_step: int | None = None) -> Judged:
    """Compare one answer with its label.

    Parameters
    ----------
    first_step : int, optional
        First step of the window; without it the onset is not judged.
    """
    answer = MethodAnswer.from_diagnosis(given) if isinstance(given, Diagnosis) else given
    faulty = label.failure_mode != "healthy"
    slow = label.failure_mode == "fail_slow"
    blamed = faulty and bool(label.causes)
    truth = {rank for cause in label.causes for rank in cause.ranks}
    named = answer.ranks
    covered, cause_set_size = _cause_sets(answer, label)
    cost_covered, cost_width = _cost_interval(answer, label) if slow else (np.nan, np.nan)
    hits = len(truth & named)
    hidden = unfelt(label)
    alarm = float(answer.mode != "healthy")

    def answered(aspect: Aspect, applies: bool, value: float) -> float:
        return float(value) if applies and aspect in answer.aspects else np.nan

    return Judged(
        mode=label.failure_mode,
        answer=answer.mode,
        false_alarm=np.nan if faulty or hidden else alarm,
        unfelt_alarm=alarm if hidden else np.nan,
        mode_right=np.nan if hidden else float(answer.mode == label.failure_mode),
        rank_precision=answered("ranks", faulty and bool(named), hits / max(len(named), 1)),
        rank_recall=answered("ranks", faulty and bool(truth), hits / max(len(truth), 1)),
        ranks_exact=answered("ranks", faulty and bool(truth), truth == named),
        type_right=answered("type", slow, answer.straggler_type == label.straggler_type),
        pattern_right=answered("pattern", slow, answer.pattern == label.pattern),
        rank_of_cause=answered("causes", blamed, _position(answer, label, with_ranks=True)),
        rank_of_cause_name=answered("causes", blamed, _position(answer, label, with_ranks=False)),
        seconds_error=answered("seconds", slow, _seconds_error(answer, label)),
        confidence=answer.confidence if "confidence" in answer.aspects and not hidden else np.nan,
        abstained=float(answer.abstained),
        cost_covered=cost_covered,
        cost_width=cost_width,
        onset_error=_onset_error(answer, label, first_step) if slow else np.nan,
        mode_covered=float(label.failure_mode in answer.mode_set) if answer.mode_set else np.nan,
        mode_set_size=float(len(answer.mode_set)) if answer.mode_set else np.nan,
        cause_covered=covered,
        cause_set_size=cause_set_size,
        unfamiliar=answer.unfamiliar,
        kind=kind_of_error(answer, label),
    )


def _cause_sets(answer: MethodAnswer, label: WindowLabel) -> tuple[float, float]:
    """Share of the true stragglers with a true cause in their set, and the mean size of the sets.

    A healthy rank that is named as a straggler has no true cause, so it does not count.
    """
    if answer.mode != label.failure_mode:
        return np.nan, np.nan
    held, sizes = [], []
    for ranks, plausible in answer.cause_sets:
        true = [cause for cause in label.causes if ranks & set(cause.ranks)]
        if true:
            held.append(any(accepted(cause) & plausible for cause in true))
            sizes.append(len(plausible))
    return (float(np.mean(held)), float(np.mean(sizes))) if held else (np.nan, np.nan)


def _position(answer: MethodAnswer, label: WindowLabel, *, with_ranks: bool) -> float:
    for true in label.causes:
        same_ranks = not with_ranks or answer.ranks == set(true.ranks)
        if UNKNOWN in accepted(true) and answer.names_no_cause and same_ranks:
            return 1.0
    for position, named in enumerate(answer.causes, start=1):
        for true in label.causes:
            same_ranks = not with_ranks or named.ranks == set(true.ranks)
            if named.cause in accepted(true) and same_ranks:
                return float(position)
    return np.inf


def true_seconds(true: LabelledCause) -> float:
    """True cost of the cause in seconds per step; 0 if the label does not have it.

    If two faults hide each other, the label also has the cost of the cause alone. The Shapley value of two
    players is the mean of both.
    """
    known = true.model_extra or {}
    together, alone = known.get("seconds_per_step"), known.get("alone_seconds_per_step")
    costs = [float(cost) for cost in (together, alone) if cost is not None]
    return sum(costs) / len(costs) if costs else 0.0


def _seconds_error(answer: MethodAnswer, label: WindowLabel) -> float:
    """Absolute error of the first cause's cost relative to the true cost of the costliest cause."""
    true = _costliest(label)
    if true is None:
        return np.nan
    seconds = true_seconds(true)
    found = [named.seconds_per_step for named in answer.causes if named.cause in accepted(true)]
    return abs(max(found, default=0.0) - seconds) / seconds


def _cost_interval(answer: MethodAnswer, label: WindowLabel) -> tuple[float, float]:
    """Whether the interval of the costliest cause contains its true cost; its relative width."""
    true = _costliest(label)
    if true is None:
        return np.nan, np.nan
    seconds, ranks = true_seconds(true), set(true.ranks)
    for named in answer.causes:
        if named.interval and named.cause in accepted(true) and named.ranks == ranks:
            low, high = named.interval
            return float(low <= seconds <= high), (high - low) / seconds
    return np.nan, np.nan


def _costliest(label: WindowLabel) -> LabelledCause | None:
    known = [cause for cause in label.causes if true_seconds(cause)]
    return max(known, key=true_seconds, default=None)


def onset_step(label: WindowLabel) -> int | None:
    """First step in which any labelled cause acts; None if the label has no step."""
    return min((cause.first_step for cause in label.causes if cause.first_step is not None), default=None)


def _onset_error(answer: MethodAnswer, label: WindowLabel, first_step: int | None) -> float:
    true = onset_step(label)
    if first_step is None or true is None or true <= first_step:
        return np.nan
    if answer.mode != label.failure_mode or answer.onset is None:
        return np.nan
    return float(abs(answer.onset - true))
