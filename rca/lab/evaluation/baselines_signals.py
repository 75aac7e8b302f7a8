"""Ranks signals by their distance from the normal range, and causes through the catalogue."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import numpy as np

from rca.arrays import BoolArray, FloatArray
from rca.features.resource_evidence import RESOURCES
from rca.lab.evaluation.answer import MethodAnswer, NamedCause
from rca.lab.evaluation.baseline_inputs import Observed
from rca.robust import nan_max, nan_median, nan_quantile
from rca.window.catalogue import channels
from rca.window.causes import CAUSES, SLOW_CAUSES

#: A signal blames all ranks with at least this share of its highest score.
SHARED = 0.5
#: Causes kept; no score needs more.
MAX_CAUSES = 10
#: A signal with a smaller IQR, relative to its median, is constant.
CONSTANT = 1e-9


def robust_scores(values: FloatArray, anomalous: BoolArray) -> FloatArray:
    """Furthest that each signal rose above its normal median, in normal interquartile ranges.

    Parameters
    ----------
    values : ndarray of shape (n_signals, n_columns)
        NaN where unknown.
    anomalous : ndarray of shape (n_columns,), bool

    Returns
    -------
    ndarray of shape (n_signals,)
        ``(max of the anomalous part - median of the normal part) / IQR of the normal part``; NaN if a
        part is empty. An IQR of 0 counts as 1, as in scikit-learn's RobustScaler.

    References
    ----------
    Pham, Ha, Zhang, "BARO: Robust root cause analysis for microservices via multivariate Bayesian online
    change point detection", FSE 2024: the RobustScorer.
    """
    normal = values[:, ~anomalous]
    middle = nan_median(normal, axis=1)
    spread = nan_quantile(normal, 0.75, axis=1) - nan_quantile(normal, 0.25, axis=1)
    constant = spread <= CONSTANT * np.abs(middle)
    return (nan_max(values[:, anomalous], axis=1) - middle) / np.where(constant, 1.0, spread)


def signal_ranking(observed: Observed) -> MethodAnswer:
    """Rank all signals of all ranks, and take their causes from the catalogue.

    The anomalous part is the slow segment. Without a slow segment the job is healthy.
    """
    if not observed.segment_found:
        return _answer([])
    found: dict[tuple[str, frozenset[int]], float] = {}
    for signal, scores in _scores(observed):
        best = nan_max(scores)
        if not best > 0:
            continue
        ranks = frozenset(int(rank) for rank in np.flatnonzero(scores >= SHARED * best))
        for cause in causes_of(signal):
            found[cause, ranks] = max(found.get((cause, ranks), 0.0), float(best))
    # Sorting is stable: causes that share a signal keep the catalogue's order.
    ordered = sorted(found, key=lambda pair: (-found[pair], SLOW_CAUSES.index(pair[0])))
    return _answer([NamedCause(cause, ranks) for cause, ranks in ordered[:MAX_CAUSES]])


def _answer(causes: list[NamedCause]) -> MethodAnswer:
    return MethodAnswer(
        mode="fail_slow" if causes else "healthy",
        ranks=causes[0].ranks if causes else frozenset(),
        causes=tuple(causes),
        straggler_type=CAUSES[causes[0].cause].type if causes else None,
        aspects=frozenset({"ranks", "type", "causes"}),
    )


def _scores(observed: Observed) -> Iterator[tuple[str, FloatArray]]:
    """Score per rank, shape (n_ranks,), of every signal that a cause of the catalogue has."""
    for name, values in observed.phases.items():
        if causes_of(name):
            yield name, robust_scores(values, observed.inside)
    for name, values in observed.channels.items():
        if causes_of(name):
            falls = channels()[name][0].worse == "lower"
            yield name, robust_scores(-values if falls else values, observed.bins_inside)


@cache
def causes_of(signal: str) -> tuple[str, ...]:
    """Slow causes with a phase or channel among their strongest evidence, in the catalogue's order.

    A cause lists its strongest phases and resources first. The causes in which the signal has the foremost
    place are taken.
    """
    names = {
        resource for resource, members in RESOURCES.items() if signal in {one.channel for one in members}
    }
    names |= {signal.removesuffix("_seconds")}
    places = {}
    for cause in SLOW_CAUSES:
        listed = (CAUSES[cause].phases, CAUSES[cause].resources)
        held = [position for part in listed for position, name in enumerate(part) if name in names]
        if held:
            places[cause] = min(held)
    foremost = min(places.values(), default=0)
    return tuple(cause for cause, place in places.items() if place == foremost)
