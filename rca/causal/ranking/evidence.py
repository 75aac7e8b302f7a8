"""Evidence of every column for being the root cause; larger is stronger.

Sizes are inverse hyperbolic sines of spreads: linear below one spread, logarithmic above. A metric that grows
a thousandfold then does not dominate all other evidence.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rca.arrays import BoolArray, FloatArray
from rca.causal.ranking.course import outside
from rca.causal.ranking.dependence import conditional_shifts, covariance, own_shifts, resemblance
from rca.causal.ranking.graphs import ColumnGraph
from rca.causal.ranking.onset import holds, onsets, precedence
from rca.causal.ranking.shifts import ROUNDS, locations, peaks, standard_error

#: In the order of the last axis of `Evidence.values`.
ALWAYS = ("size", "certain", "early", "unpredicted")
WITH_GRAPH = ("own", "inherited", "coverage")
WITH_TARGET = ("resemblance",)
WITH_BOTH = ("outside",)
#: A column's weight among the anomalies stops growing here, so that a few extreme ones do not dominate.
MASS_CUT = 3.0
#: A smaller shift is noise, not an anomaly.
MASS_FLOOR = 1.0
#: Up to here (about forty spreads) a larger shift is stronger evidence. Beyond, effects are as large as
#: causes, and the size grows with half a logarithm only.
SIZE_KNEE = 4.5
#: Standard errors from which on a shift is certain.
CERTAIN = 5.0


@dataclass(frozen=True)
class BootstrapEvidence:
    """Evidence of each column in every bootstrap round.

    Attributes
    ----------
    values : ndarray of shape (1 + n_rounds, n_columns, n_features)
        Round 0 is the estimate.
    features : tuple of str, length n_features
    candidates : ndarray of bool of shape (n_columns,)
        Columns that moved for the worse and, if graph and target are given, may act on the target.
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
) -> BootstrapEvidence:
    """Evidence of all columns.

    Parameters
    ----------
    normal : ndarray of shape (n_normal, n_columns), units of spread
        The worse direction positive.
    anomalous : ndarray of shape (n_anomalous, n_columns), units of spread
    target : int, optional
        Column with the problem to explain.
    seed : int
        Of the bootstrap.
    """
    shift = locations(normal, anomalous, seed, rounds)
    rise = np.arcsinh(np.maximum(shift, 0.0))
    # A peak moves with the location of its round: quantiles of every round would be too slow.
    height = np.arcsinh(np.maximum(peaks(normal, anomalous) + shift - shift[0], 0.0))
    mass = _mass(rise)
    order = precedence(onsets(normal, anomalous), mass[0], holds(normal), anomalous.shape[0])
    early = order * mass / (MASS_CUT - MASS_FLOOR)
    moments = covariance(normal)
    unpredicted = _share(conditional_shifts(shift, moments), rise)
    certain = _ratio(np.maximum(shift, 0.0), CERTAIN * standard_error(normal, anomalous)) * np.minimum(
        rise, 1.0
    )
    found = [_bent((rise + height) / 2), certain, early, unpredicted]
    features: tuple[str, ...] = ALWAYS
    if graph is not None:
        found += _upstream(shift, rise, unpredicted, moments, graph)
        features += WITH_GRAPH
    if target is not None:
        found.append(np.broadcast_to(resemblance(normal, anomalous, target), shift.shape))
        features += WITH_TARGET
    if graph is not None and target is not None:
        # The part of the size that explains nothing.
        found.append(found[0] * outside(normal, anomalous, target, graph))
        features += WITH_BOTH
    return BootstrapEvidence(np.stack(found, axis=-1), features, _candidates(found[0][0], graph, target))


def _upstream(
    shift: FloatArray, rise: FloatArray, unpredicted: FloatArray, moments: FloatArray, graph: ColumnGraph
) -> list[FloatArray]:
    """Share of a column's own mechanism in its shift, part shared with a parent, anomalies downstream."""
    own = _share(own_shifts(shift, moments, graph.parents), rise)
    inherited = np.zeros_like(rise)
    for column, causes in enumerate(graph.parents):
        if causes.size:
            inherited[:, column] = np.minimum(rise[:, column], rise[:, causes].max(axis=1))
    mass = _mass(rise)
    coverage = _ratio(mass @ graph.reach.T.astype(np.float64), mass.sum(axis=1, keepdims=True))
    outside = ~graph.known
    if outside.any():
        # These are not in the graph: neither upstream nor downstream of a column.
        own[:, outside] = unpredicted[:, outside]
        coverage[:, outside] = coverage[:, graph.known].mean(axis=1, keepdims=True)
    return [own, inherited, coverage]


def _mass(rise: FloatArray) -> FloatArray:
    """Weight of each column's anomaly, 0 to ``MASS_CUT - MASS_FLOOR``."""
    return np.clip(rise, MASS_FLOOR, MASS_CUT) - MASS_FLOOR


def _bent(size: FloatArray) -> FloatArray:
    """Sizes, compressed beyond the knee."""
    beyond = np.maximum(size - SIZE_KNEE, 0.0)
    result: FloatArray = size - beyond + 0.5 * np.log1p(beyond)
    return result


def _share(left: FloatArray, rise: FloatArray) -> FloatArray:
    """Part of a shift that others do not explain, 0 to 1, compressed; small shifts count less."""
    return _ratio(np.arcsinh(np.maximum(left, 0.0)), rise) * np.minimum(rise, 1.0)


def _ratio(part: FloatArray, whole: FloatArray) -> FloatArray:
    """`part` over `whole`, at most 1; 0 where there is no part."""
    part, whole = np.broadcast_arrays(part, whole)
    # Any part exceeds a whole of 0.
    ratio = np.divide(part, whole, out=np.ones(part.shape), where=whole > 0)
    return np.where(part > 0, np.minimum(ratio, 1.0), 0.0)


def _candidates(size: FloatArray, graph: ColumnGraph | None, target: int | None) -> BoolArray:
    rise: BoolArray = size > 0
    if graph is None or target is None or not graph.known[target]:
        return rise
    return rise & (graph.reach[:, target] | ~graph.known)
