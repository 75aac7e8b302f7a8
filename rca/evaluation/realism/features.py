"""Distributions of the classifier's own features, per cause, real against simulated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rca.arrays import FloatArray
from rca.evaluation.realism.distances import Distance, benjamini_hochberg, distance
from rca.evaluation.realism.effects import OUTSIDE
from rca.evaluation.realism.measure import Measured, columns, resolutions
from rca.evaluation.rows import HEALTHY, in_order
from rca.telemetry.causes import CAUSES

#: False discovery rate from which on a difference is called one.
RATE = 0.01
ALL = "all"


@dataclass(frozen=True)
class FeatureDistance:
    """One feature in the windows of one cause.

    Attributes
    ----------
    q : float
        The distance's p-value, corrected for all features and causes of the comparison.
    """

    cause: str
    feature: str
    distance: Distance
    q: float

    @property
    def differs(self) -> bool:
        """Whether chance is ruled out."""
        return bool(self.q < RATE)

    @property
    def covered(self) -> bool:
        """Whether simulated windows reach around the real median, as ranges wider than reality should."""
        return bool(OUTSIDE[0] <= self.distance.quantile <= OUTSIDE[1])


def feature_distances(real: Sequence[Measured], simulated: Sequence[Measured]) -> list[FeatureDistance]:
    """Distance of every feature, over all windows and within each cause that both sides show."""
    shown = {one.cause for one in real} & {one.cause for one in simulated}
    found: list[tuple[str, str, Distance]] = []
    for cause in (ALL, *in_order(shown, (HEALTHY, *CAUSES))):
        left, right = (_matrix(side, cause) for side in (real, simulated))
        found += [
            (cause, name, distance(left[:, column], right[:, column], least))
            for column, (name, least) in enumerate(zip(columns(), resolutions(), strict=True))
        ]
    q = benjamini_hochberg(np.array([each.p for _, _, each in found]))
    return [FeatureDistance(*each, float(rate)) for each, rate in zip(found, q, strict=True)]


def largest_distances(found: Sequence[FeatureDistance], n: int) -> list[FeatureDistance]:
    """The clearest differences within causes, each feature once, by the Wasserstein distance."""
    kept = [each for each in found if each.differs and each.cause != ALL]
    best: dict[str, FeatureDistance] = {}
    for each in sorted(kept, key=lambda one: -one.distance.wasserstein):
        best.setdefault(each.feature, each)
    return list(best.values())[:n]


def missing_differences(found: Sequence[FeatureDistance], n: int) -> list[FeatureDistance]:
    """Features that one side mostly lacks and the other mostly has, over all windows."""
    gaps = [each for each in found if each.cause == ALL and _gap(each) > 0.2]
    return sorted(gaps, key=lambda each: -_gap(each))[:n]


def _gap(each: FeatureDistance) -> float:
    return abs(each.distance.missing_real - each.distance.missing_simulated)


def _matrix(side: Sequence[Measured], cause: str) -> FloatArray:
    rows = [one.features for one in side if cause in (ALL, one.cause)]
    return np.array(rows).reshape(len(rows), len(columns()))
