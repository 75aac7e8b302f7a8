"""Predicted against measured gain of recovery actions: rows of a table, and captured faults.

A capture in which a fault acts in some steps only is a job with and without this fault. Its measured gain is
what the removal of the fault saves: the mean step of the window less that of its steps without the fault.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import rca
from rca.arrays import BoolArray, FloatArray
from rca.causal.attribution import COST_LEVEL, resampled_means
from rca.features.extract import step_phases
from rca.lab.evaluation.intervals import bootstrap
from rca.recovery.option import Option
from rca.recovery.planner import Plan
from rca.recovery.remedies import REBALANCE_STAGES, REMEDIES, REMEDY_OF
from rca.recovery.situation import Interval
from rca.robust import nan_median
from rca.sources.labels import CollectionEntry, LabelledCause, accepted, read_collection

#: Actions that end a fault, besides the remedies of causes.
ALSO_END = ("isolate_suspects", "reroute")
#: Fewest steps with and without the fault.
MIN_STEPS = 8
#: Relative error that the table is compared with.
AIM = 0.15


@dataclass(frozen=True)
class PromisedGain:
    """What the plan says about one action; `said` is why it is not offered, or empty."""

    seconds: float | None
    interval: Interval | None
    said: str = ""


@dataclass(frozen=True)
class GainRow:
    """One action on one really captured fault; gains in seconds per step.

    Attributes
    ----------
    fault, action, job : str
    predicted : PromisedGain
    measured : float
    interval : tuple of float
        Of the measured gain.
    step : float, seconds
        Mean step with the fault.
    """

    fault: str
    action: str
    job: str
    predicted: PromisedGain
    measured: float
    interval: Interval
    step: float

    @property
    def error(self) -> float:
        """Predicted less measured gain, relative to the measured one; NaN without a prediction."""
        seconds = self.predicted.seconds
        return float("nan") if seconds is None else (seconds - self.measured) / abs(self.measured)

    @property
    def covered(self) -> bool:
        """Whether the measured gain lies in the predicted interval."""
        held = self.predicted.interval
        return held is not None and held[0] <= self.measured <= held[1]

    @property
    def overlap(self) -> bool:
        """Whether the two intervals overlap."""
        held = self.predicted.interval
        return held is not None and held[0] <= self.interval[1] and self.interval[0] <= held[1]

    @property
    def width(self) -> float:
        """Half the width of the predicted interval, relative to the measured gain; NaN without one."""
        held = self.predicted.interval
        return float("nan") if held is None else (held[1] - held[0]) / 2 / abs(self.measured)


def summary(rows: Sequence[GainRow]) -> dict[str, Any]:
    """Figures of some rows: how many have a prediction, its median error, and how often intervals hold.

    Returns
    -------
    dict
        Errors are relative to the measured gain; ``error`` is the median of absolute errors with its 95 %
        interval over rows, ``bias`` the median of signed ones, ``width`` the median half width of predicted
        intervals. NaN without any prediction.
    """
    known = [row for row in rows if row.predicted.seconds is not None]
    errors = np.array([row.error for row in known])
    middle = bootstrap(np.abs(errors), np.random.default_rng(0), np.median)
    share = (lambda each: float(np.mean(each))) if known else (lambda _: float("nan"))
    return {
        "rows": len(rows),
        "predicted": len(known),
        "error": [middle.value, middle.low, middle.high],
        "bias": float(np.median(errors)) if known else float("nan"),
        "within_aim": share(np.abs(errors) <= AIM),
        "covered": share([row.covered for row in known]),
        "overlap": share([row.overlap for row in known]),
        "width": float(np.median([row.width for row in known])) if known else float("nan"),
    }


def grouped(rows: Iterable[GainRow], *names: str) -> dict[tuple[str, ...], list[GainRow]]:
    """Rows by some of their fields, sorted."""
    groups: dict[tuple[str, ...], list[GainRow]] = {}
    for row in rows:
        groups.setdefault(tuple(str(getattr(row, name)) for name in names), []).append(row)
    return dict(sorted(groups.items()))


def difference(with_fault: FloatArray, without: FloatArray, share: float = 1.0) -> tuple[float, Interval]:
    """Mean difference of two series of steps, with the interval of block resamples of each.

    Parameters
    ----------
    with_fault, without : ndarray of shape (n_steps,), seconds
    share : float
        Factor on the difference: share of the steps that the fault acts in.
    """
    drawn = [
        resampled_means(each[None], seed)[0]
        for seed, each in enumerate((np.asarray(with_fault), np.asarray(without)))
    ]
    tail = (1 - COST_LEVEL) / 2
    low, high = np.quantile(share * (drawn[0] - drawn[1]), [tail, 1 - tail])
    return share * float(np.mean(with_fault) - np.mean(without)), (float(low), float(high))


def step_seconds(window: rca.Window) -> tuple[FloatArray, FloatArray]:
    """Numbers of a window's steps after its warm-up, and their seconds, both shape (n_steps,)."""
    phases = step_phases(window)
    seconds = nan_median(phases.phase("step_seconds"))
    known = np.isfinite(seconds)
    return phases.steps[known].astype(float), seconds[known]


def captured_gain(
    step: FloatArray, seconds: FloatArray, true: LabelledCause
) -> tuple[float, Interval] | None:
    """What the removal of a fault saves per step of its window; None without enough steps on both sides."""
    if true.first_step is None:
        return None
    last = np.inf if true.last_step is None else true.last_step
    during: BoolArray = (step >= true.first_step) & (step <= last)
    # The fault begins and ends within these steps.
    edge = (step == true.first_step) | (step == last) | (step == last + 1)
    with_fault, without = seconds[during & ~edge], seconds[~during & ~edge]
    if min(with_fault.size, without.size) < MIN_STEPS:
        return None
    return difference(with_fault, without, float(during.mean()))


def ends(option: Option, true: LabelledCause) -> bool:
    """Whether an action ends a fault: it removes its cause where it is, or takes out all its nodes."""
    there = not true.ranks or not option.ranks or bool(set(true.ranks) & set(option.ranks))
    if option.action == "isolate_suspects":
        return bool(true.nodes) and set(true.nodes) <= set(option.nodes)
    if option.action == "reroute":
        return "network_congestion" in accepted(true)
    return there and option.action in {REMEDY_OF.get(cause) for cause in accepted(true)}


def prediction(plan: Plan, action: str, true: LabelledCause | None = None) -> PromisedGain:
    """The gain that a plan promises for an action, on a fault if one is given."""
    found = [each for each in plan.options if each.action == action and (true is None or ends(each, true))]
    if not found:
        return PromisedGain(None, None, why_not(plan, action, true))
    gains = [(each.seconds_per_step_saved, each.interval) for each in found]
    known = [
        (seconds, interval) for seconds, interval in gains if seconds is not None and interval is not None
    ]
    if len(known) < len(gains):
        return PromisedGain(None, None, "the gain is unknown")
    low, high = (sum(interval[side] for _, interval in known) for side in (0, 1))
    return PromisedGain(sum(seconds for seconds, _ in known), (low, high))


def mean(predictions: Sequence[PromisedGain]) -> PromisedGain:
    """Mean of predictions and of their intervals; if most are missing, what the first of these says."""
    known = [
        (each.seconds, *each.interval)
        for each in predictions
        if each.seconds is not None and each.interval is not None
    ]
    if 2 * len(known) <= len(predictions):
        return next(each for each in predictions if each.said)
    seconds, low, high = np.mean(known, axis=0)
    return PromisedGain(float(seconds), (float(low), float(high)))


def why_not(plan: Plan, action: str, true: LabelledCause | None) -> str:
    """Why a plan does not offer an action where it would help."""
    if plan.mode != "fail_slow":
        return f"the answer is {plan.mode}"
    reasons = [each.reason for each in plan.rejected if each.action == action]
    causes = accepted(true) if true else set()
    # What an action helps against says only that none of these causes was found.
    about = [
        each for each in reasons if causes & set(each.replace(":", "").split()) and "helps only" not in each
    ]
    named = sorted({cause for each in plan.options for cause in each.causes} - causes)
    if about or not named:
        return (about or reasons or ["other ranks are named"])[0].partition(";")[0]
    return f"names {', '.join(named)}"


def captured_rows(folder: Path, part: str | None = None) -> Iterator[GainRow]:
    """Every action that would end the one fault of a collection's windows, measured and predicted."""
    for entry in read_collection(folder):
        if part is None or entry.summary.get("split") == part:
            yield from _rows_of(entry, folder.name)


def _rows_of(entry: CollectionEntry, collection: str) -> Iterator[GainRow]:
    label = entry.read_label()
    if label.failure_mode != "fail_slow" or len(label.causes) != 1:
        return
    true, window = label.causes[0], entry.read_window()
    step, seconds = step_seconds(window)
    gain = captured_gain(step, seconds, true)
    remedy = REMEDY_OF.get(true.cause)
    # Layers that move keep their work, so this remedy does not end the fault.
    if gain is None or remedy in (None, REBALANCE_STAGES.name) or gain[0] <= 0:
        return
    plan = rca.plan(rca.diagnose(window), window)
    offered = [each.action for each in plan.options if ends(each, true)]
    for action in sorted(set(offered) & {*ALSO_END, *(each.name for each in REMEDIES)}) or [remedy]:
        held = prediction(plan, action, true)
        yield GainRow(true.cause, action, f"{collection}/{entry.id}", held, *gain, float(seconds.mean()))
