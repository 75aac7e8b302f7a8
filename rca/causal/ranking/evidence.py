"""Every column's evidence of being the root cause, as numbers that grow with it.

Sizes are inverse hyperbolic sines of spreads: linear below one spread, logarithmic above, so that a metric
that explodes a thousandfold does not outshout everything else there is to know.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rca.causal.ranking.dependence import conditional_shifts, covariance, own_shifts, resemblance
from rca.causal.ranking.graphs import BoolArray, ColumnGraph
from rca.causal.ranking.onset import onsets, precedence
from rca.causal.ranking.shifts import ROUNDS, locations, peaks
from rca.robust import FloatArray

#: In the order of the last axis of `Evidence.values`.
ALWAYS = ("shift", "peak", "unpredicted", "early")
WITH_GRAPH = ("own", "inherited", "coverage")
WITH_TARGET = ("resemblance",)
#: A column's weight among the anomalies stops growing here: a few that explode are not all there is.
MASS_CUT = 3.0
#: Below this size a shift is noise and no anomaly that others could explain.
MASS_FLOOR = 1.0


@dataclass(frozen=True)
class Evidence:
    """What is known of each column, in every bootstrap round.

    Attributes
    ----------
    values : ndarray of shape (1 + n_rounds, n_columns, n_features)
        Round 0 is the estimate.
    features : tuple of str, length n_features
    candidates : ndarray of bool of shape (n_columns,)
        Columns that moved for the worse and, given graph and target, may act on the target.
    """

    values: FloatArray
    features: tuple[str, ...]
    candidates: BoolArray


def gather(
    normal: FloatArray,
    anomalous: FloatArray,
    graph: ColumnGraph | None = None,
    target: int | None = None,
    *,
    seed: int = 0,
    rounds: int = ROUNDS,
) -> Evidence:
    """Evidence of all columns.

    Parameters
    ----------
    normal : ndarray of shape (n_normal, n_columns), units of spread
        The worse direction positive.
    anomalous : ndarray of shape (n_anomalous, n_columns), units of spread
    graph : ColumnGraph, optional
    target : int, optional
        Column whose trouble is to be explained.
    seed : int
        Of the bootstrap.
    rounds : int
    """
    shift = locations(normal, anomalous, seed, rounds)
    size = np.arcsinh(np.maximum(shift, 0.0))
    height = np.maximum(peaks(normal, anomalous), 0.0)
    moments = covariance(normal)
    unpredicted = np.arcsinh(np.maximum(conditional_shifts(shift, moments), 0.0))
    mass = np.clip(size[0] - MASS_FLOOR, 0.0, MASS_CUT)
    early = precedence(onsets(normal, anomalous), mass, anomalous.shape[0])
    found = [size, _every_round(np.arcsinh(height), shift), unpredicted, _every_round(early, shift)]
    features = ALWAYS
    if graph is not None:
        found += _upstream(shift, size, unpredicted, moments, graph)
        features += WITH_GRAPH
    if target is not None:
        found.append(_every_round(resemblance(normal, anomalous, target), shift))
        features += WITH_TARGET
    return Evidence(np.stack(found, axis=-1), features, _candidates(size[0], height, graph, target))


def _every_round(values: FloatArray, shift: FloatArray) -> FloatArray:
    return np.broadcast_to(values, shift.shape)


def _upstream(
    shift: FloatArray, size: FloatArray, unpredicted: FloatArray, moments: FloatArray, graph: ColumnGraph
) -> list[FloatArray]:
    """Shift of the own mechanism, part of the shift that a parent shows too, and anomalies downstream."""
    own = np.arcsinh(np.maximum(own_shifts(shift, moments, graph.parents), 0.0))
    inherited = np.zeros_like(size)
    for column, causes in enumerate(graph.parents):
        if causes.size:
            inherited[:, column] = np.minimum(size[:, column], size[:, causes].max(axis=1))
    mass = np.clip(size - MASS_FLOOR, 0.0, MASS_CUT)
    total = mass.sum(axis=1, keepdims=True)
    below = mass @ graph.reach.T.astype(np.float64)
    coverage = np.divide(below, total, out=np.zeros_like(below), where=total > 0)
    outside = ~graph.known
    if outside.any():
        # The graph is silent on these: neither upstream nor downstream of anybody.
        own[:, outside] = unpredicted[:, outside]
        coverage[:, outside] = coverage[:, graph.known].mean(axis=1, keepdims=True)
    return [own, inherited, coverage]


def _candidates(
    size: FloatArray, height: FloatArray, graph: ColumnGraph | None, target: int | None
) -> BoolArray:
    moved: BoolArray = (size > 0) | (height > 0)
    if graph is None or target is None or not graph.known[target]:
        return moved
    return moved & (graph.reach[:, target] | ~graph.known)
