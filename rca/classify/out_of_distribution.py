"""Whether a job is like those of the training windows, by its shape; which features exceed their range.

Evidence beyond the range of the training windows is loud. It does not make an answer less certain.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from rca.arrays import FloatArray
from rca.features import WINDOW_FEATURES

#: The shape of a job, faults aside: size, length, noise, and what is measured.
SHAPE = (
    "log2_ranks", "log2_nodes", "pipeline_stages", "log2_steps", "step_noise", "step_variation",
    "transfer_share", "phases_measured", "resources_measured",
)  # fmt: skip
#: These spread over decades, so that only their logarithm has a centre and a width.
_LOGGED = ("step_noise", "step_variation")
_SMALLEST = 1e-4
_SHAPE_COLUMNS = [WINDOW_FEATURES.index(name) for name in SHAPE]
_LOGGED_COLUMNS = [SHAPE.index(name) for name in _LOGGED]
#: A value counts as outside from this share of the range beyond it: rounding is not novelty.
_TOLERANCE = 1e-6


@dataclass(frozen=True)
class Outside:
    """One feature outside its range in the training windows.

    Attributes
    ----------
    low, high : float
        Range of the training windows, the outermost thousandth left out on both sides.
    beyond : float
        Distance from the range, in widths of it; infinite where all training windows had one value.
    """

    feature: str
    value: float
    low: float
    high: float
    beyond: float


@dataclass(frozen=True)
class Strangeness:
    """How unlike the training windows a window is.

    Attributes
    ----------
    out_of_distribution : bool
        The distance is above its limit.
    outside : tuple of Outside
        The farthest first.
    distance, distance_limit : float
        Mahalanobis distance of the job's shape (`SHAPE`), and what held-out windows reach.
    oddest : tuple of str
        Features of the shape by their own distance from the centre, the farthest first.
    """

    out_of_distribution: bool
    outside: tuple[Outside, ...]
    distance: float
    distance_limit: float
    oddest: tuple[str, ...]


@dataclass(frozen=True)
class Ranges:
    """Quantiles of the training windows per feature; arrays of shape (n_window_features,).

    NaN where no training window had the feature: then nothing is outside.
    """

    low: FloatArray
    high: FloatArray

    def beyond(self, window: FloatArray) -> FloatArray:
        """Distance from the range in widths of it, 0 inside, NaN where nothing can be compared.

        Parameters
        ----------
        window : ndarray of shape (..., n_window_features)
        """
        width = self.high - self.low
        with np.errstate(invalid="ignore", divide="ignore"):
            gap = np.fmax(self.low - window, window - self.high)
            gap = np.where(gap > _TOLERANCE * width, gap, np.where(np.isnan(gap), np.nan, 0.0))
            return np.where(gap > 0, gap / width, gap)


@dataclass(frozen=True)
class JobShape:
    """Centre and spread of the job-level features of the training windows, and how they go together.

    Attributes
    ----------
    centre, spread : ndarray of shape (n_shape_features,)
    whitening : ndarray of shape (n_shape_features, n_shape_features)
        Takes deviations from the centre to uncorrelated ones of variance one.
    """

    centre: FloatArray
    spread: FloatArray
    whitening: FloatArray

    def distance(self, window: FloatArray) -> FloatArray:
        """Mahalanobis distance of windows (..., n_window_features); what is missing counts as usual."""
        white = np.nan_to_num(shape_of(window) - self.centre) @ self.whitening.T
        result: FloatArray = np.sqrt((white * white).sum(axis=-1))
        return result

    def oddest(self, window: FloatArray) -> tuple[str, ...]:
        """Features of one window's shape, the farthest from the centre first."""
        apart = np.abs(np.nan_to_num(shape_of(window) - self.centre)) / self.spread
        return tuple(SHAPE[index] for index in np.argsort(-apart, kind="stable"))


@dataclass(frozen=True)
class Familiarity:
    """Ranges and shape of the training windows, and the largest distance of held-out windows."""

    ranges: Ranges
    shape: JobShape
    distance_limit: float

    @classmethod
    def load(cls, document: dict[str, Any]) -> Familiarity:
        """Build from the member ``familiarity`` of ``heads.json``.

        Raises
        ------
        KeyError, ValueError
            Features this version does not compute, or a shape of another size.
        """
        low, high = (np.full(len(WINDOW_FEATURES), np.nan) for _ in range(2))
        for name, (smallest, largest) in document["ranges"].items():
            column = WINDOW_FEATURES.index(name)
            low[column], high[column] = smallest, largest
        shape = document["shape"]
        if tuple(shape["features"]) != SHAPE:
            raise ValueError(f"familiarity: the job's shape is {list(SHAPE)} here")
        centre, spread = (np.asarray(shape[name], dtype=float) for name in ("centre", "spread"))
        whitening = np.asarray(shape["whitening"], dtype=float)
        if whitening.shape != (len(SHAPE),) * 2 or not centre.size == spread.size == len(SHAPE):
            raise ValueError("familiarity: centre, spread and whitening do not fit together")
        limit = float(document["limits"]["distance"])
        return cls(Ranges(low, high), JobShape(centre, spread, whitening), limit)

    def judge(self, window: FloatArray) -> Strangeness:
        """How unlike the training windows one window of shape (n_window_features,) is."""
        beyond = self.ranges.beyond(window)
        order = [int(index) for index in np.argsort(-np.nan_to_num(beyond), kind="stable")]
        outside = tuple(
            Outside(
                WINDOW_FEATURES[index],
                float(window[index]),
                float(self.ranges.low[index]),
                float(self.ranges.high[index]),
                float(beyond[index]),
            )
            for index in order
            if beyond[index] > 0
        )
        distance = float(self.shape.distance(window))
        return Strangeness(
            # The window that set a limit must not exceed it by rounding.
            out_of_distribution=distance > self.distance_limit * (1 + 1e-9),
            outside=outside,
            distance=distance,
            distance_limit=self.distance_limit,
            oddest=self.shape.oddest(window),
        )


def shape_of(window: FloatArray) -> FloatArray:
    """The job's shape, of shape (..., n_shape_features), from window features (..., n_window_features)."""
    values: FloatArray = np.array(window[..., _SHAPE_COLUMNS])
    values[..., _LOGGED_COLUMNS] = np.log(np.maximum(values[..., _LOGGED_COLUMNS], _SMALLEST))
    return values
