"""Ranges and shape of training windows, and the limit from held-out windows."""

from __future__ import annotations

from typing import Any

import numpy as np

from rca.arrays import FloatArray
from rca.classify.out_of_distribution import SHAPE, JobShape, Ranges, shape_of
from rca.features import WINDOW_FEATURES
from rca.lab.training.conformal import held_out_quantile
from rca.lab.training.corpus import Corpus
from rca.lab.training.split import mask
from rca.robust import nan_median

#: Share of training windows left out on either side of a feature's range: extremes of the simulator.
OUTERMOST = 0.001
#: Share of held-out windows that may be flagged.
FLAGGED = 0.005
#: Added to the variances, for features that hardly vary in training.
_RIDGE = 1e-3


def fit_familiarity(corpus: Corpus) -> dict[str, Any]:
    """The member ``familiarity`` of ``heads.json``: ranges, shape and limit."""
    train, held = mask(corpus.part, "train"), mask(corpus.part, "validation")
    ranges = _ranges(corpus.window[train])
    shape = _shape(shape_of(corpus.window[train]))
    weights, groups = corpus.weight[held], np.array(corpus.group)[held]
    distances = shape.distance(corpus.window[held])
    limit = held_out_quantile(distances, weights, groups, 1.0 - FLAGGED)

    return {
        "ranges": {
            name: [float(low), float(high)]
            for name, low, high in zip(WINDOW_FEATURES, ranges.low, ranges.high, strict=True)
            if np.isfinite(low)
        },
        "shape": {
            "features": list(SHAPE),
            "centre": shape.centre.tolist(),
            "spread": shape.spread.tolist(),
            "whitening": shape.whitening.tolist(),
        },
        # With too few windows the limit is above all of them.
        "limits": {"distance": limit if np.isfinite(limit) else float(distances.max(initial=0.0))},
    }


def _ranges(windows: FloatArray) -> Ranges:
    low, high = (np.full(windows.shape[1], np.nan) for _ in range(2))
    for column, values in enumerate(windows.T):
        known = values[np.isfinite(values)]
        if known.size:
            # Values that occur, without interpolation: a range of counts ends at counts.
            low[column] = np.quantile(known, OUTERMOST, method="lower")
            high[column] = np.quantile(known, 1.0 - OUTERMOST, method="higher")
    return Ranges(low, high)


def _shape(rows: FloatArray) -> JobShape:
    centre = np.nan_to_num(nan_median(rows))
    apart = np.where(np.isfinite(rows), rows - centre, 0.0)
    covariance = apart.T @ apart / max(rows.shape[0], 1) + _RIDGE * np.eye(rows.shape[1])
    whitening = np.linalg.inv(np.linalg.cholesky(covariance))
    return JobShape(centre, np.sqrt(np.diag(covariance)), whitening)
