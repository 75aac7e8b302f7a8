"""Fit the alarm of latenesses (`rca.diagnosis.alarm`): on simulated windows, and on real ones.

It learns from 39 numbers of a window, so thousands of windows are enough. Each counts with all its signals,
and again with exporters and step times alone, because that is the commonest telemetry. Simulated windows are
also split in two, at the begin of their fault, so that the first part is an earlier window of the second.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from rca.arrays import BoolArray, FloatArray
from rca.classify.head import Calibration
from rca.diagnosis.alarm import ALARM_NUMBERS, RAISING, alarm_numbers, explained
from rca.diagnosis.bundle import ALARM
from rca.diagnosis.pipeline import features_and_replay
from rca.lab.evaluation.signal_sets import restrict
from rca.lab.simulation.corpus import simulated_window
from rca.lab.training.crops import crop
from rca.lab.training.heads import FittedHead
from rca.lab.training.held_out import named
from rca.lab.training.incidents import RecordedIncident, felt, learned_incidents
from rca.lab.training.simulated import scenario_seeds
from rca.lab.training.split import part_of, scenario_group
from rca.sources.labels import WindowLabel, unfelt
from rca.window.baseline_window import after_earlier
from rca.window.window import Window
from rca.workers import Workers, counted

#: Simulated scenarios of which those of the learned parts are used. More gain nothing.
DEFAULT_WINDOWS = 4000
#: Parts that are learned from; the number of trees is fixed, so nothing is held out for it.
LEARNED = frozenset({"train", "calibration"})
#: Weight of a real window against a simulated one.
REAL_WEIGHT = 4.0
#: Signals with which each window counts.
SIGNALS = ("all", "exporters-and-step-times")
#: Least steps of both parts of a window that is split.
MIN_PART = 20
ROUNDS = 300
PARAMETERS: dict[str, Any] = {
    "objective": "binary",
    "learning_rate": 0.05,
    "num_leaves": 8,
    "min_data_in_leaf": 20,
    "lambda_l2": 2.0,
    "monotone_constraints": [int(name in RAISING) for name in ALARM_NUMBERS],
    "verbosity": -1,
    "deterministic": True,
    "force_row_wise": True,
    "num_threads": 2,
}

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class AlarmRow:
    """One window of the fit.

    Attributes
    ----------
    numbers : ndarray of shape (n_alarm_numbers,)
    """

    numbers: FloatArray
    faulty: bool
    real: bool


def fit_alarm(
    n_windows: int, seed: int, collections: Sequence[Path], workers: Workers, progress: Progress
) -> FittedHead:
    """Fit the alarm on the learned parts of a simulated corpus and of collections of real windows.

    Parameters
    ----------
    n_windows, seed : int
        Of the simulated corpus, see `rca.lab.training.simulated.scenario_seeds`.
    progress : callable
        ``(phase, done, total)``.
    """
    rows = list(_simulated_rows(n_windows, seed, workers, progress))
    rows += _real_rows(collections, workers, progress)
    return fitted(rows, seed)


def fitted(rows: Sequence[AlarmRow], seed: int) -> FittedHead:
    """The alarm of these windows; its scores are log-odds as they are."""
    import lightgbm

    numbers: FloatArray = np.array([row.numbers for row in rows])
    faulty: BoolArray = np.array([row.faulty for row in rows])
    weight = np.array([REAL_WEIGHT if row.real else 1.0 for row in rows])
    data = lightgbm.Dataset(numbers, faulty.astype(float), weight=weight)
    booster = lightgbm.train(PARAMETERS | {"seed": seed}, data, ROUNDS)
    share = float(weight[faulty].sum() / weight.sum())
    return FittedHead(
        name=ALARM,
        features=ALARM_NUMBERS,
        classes=("no", "yes"),
        text=booster.model_to_string(),
        calibration=Calibration(1.0, (0.0, 0.0)),
        rounds=ROUNDS,
        priors={"no": 1.0 - share, "yes": share},
    )


def _simulated_rows(n_windows: int, seed: int, workers: Workers, progress: Progress) -> Iterator[AlarmRow]:
    seeds = [each for each in scenario_seeds(n_windows, seed) if part_of(scenario_group(each)) in LEARNED]
    tasks = list(product(seeds, SIGNALS, (False, True)))
    rows = workers.map(_simulated_row, tasks, chunk=8)
    report = partial(progress, "simulating jobs for the alarm of latenesses")
    for row in counted(rows, len(tasks), report):
        if row is not None:
            yield row


def _real_rows(collections: Iterable[Path], workers: Workers, progress: Progress) -> Iterator[AlarmRow]:
    found = [
        each
        for folder in named(list(collections)).values()
        for each in learned_incidents(folder)
        if each.part in LEARNED
    ]
    tasks = list(product(found, SIGNALS))
    rows = workers.map(_real_row, tasks, chunk=8)
    report = partial(progress, "reading real windows for the alarm of latenesses")
    for row in counted(rows, len(tasks), report):
        if row is not None:
            yield row


def _simulated_row(task: tuple[int, str, bool]) -> AlarmRow | None:
    seed, signals, split = task
    window, label = simulated_window(seed, with_steps=True)
    earlier = None
    if split:
        parts = _split(window, label)
        if parts is None:
            return None
        earlier, window, label = restrict(parts[0], signals), *parts[1:]
    return _row(restrict(window, signals), label, earlier, real=False)


def _split(window: Window, label: WindowLabel) -> tuple[Window, Window, WindowLabel] | None:
    """A healthy part, the part after it, and its label; None where the fault leaves no healthy part."""
    steps = np.unique(window.steps.column("step").to_numpy())
    begins = [cause.first_step for cause in label.causes]
    if steps.size < 2 * MIN_PART or label.failure_mode == "fail_stop" or None in begins:
        return None
    at = min((each for each in begins if each is not None), default=int(steps[steps.size // 2]))
    if not steps[MIN_PART] <= at <= steps[-MIN_PART]:
        return None
    parts = [crop(window, label, int(steps[0]), at), crop(window, label, at, int(steps[-1]) + 1)]
    if parts[0] is None or parts[1] is None:
        return None
    return parts[0][0], *parts[1]


def _real_row(task: tuple[RecordedIncident, str]) -> AlarmRow | None:
    incident, signals = task
    known = felt(incident)
    return None if known is None else _row(restrict(known[0], signals), known[1], None, real=True)


def _row(window: Window, label: WindowLabel, earlier: Window | None, *, real: bool) -> AlarmRow | None:
    """The numbers of a window; None if it has no steps, stopped, or has no clear label."""
    if window.steps.num_rows == 0 or label.failure_mode == "fail_stop" or unfelt(label):
        return None
    since = None
    if earlier is not None:
        since = int(window.steps.column("step").to_numpy().min())
        window = after_earlier(window, earlier)
    features, replay = features_and_replay(window, since)
    signals, found = explained(window, features, replay, since)
    return AlarmRow(alarm_numbers(signals.line, found), label.failure_mode == "fail_slow", real)
