"""Whether a small model can distinguish real windows from simulated ones, and by which features.

The area under its ROC curve (AUC), cross-validated by capture, is the chance that a real window scores above
a simulated one. It is 0.5 if the model cannot distinguish them and 1 if it always can.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rca.arrays import FloatArray, IntArray
from rca.evaluation.intervals import LEVELS, UNKNOWN, Estimate
from rca.evaluation.judged_rows import HEALTHY, in_order
from rca.evaluation.realism.measure import Measured, columns, resolutions
from rca.telemetry.causes import CAUSES

#: Few leaves and few rounds: a larger model would overfit a few hundred windows.
PARAMETERS: dict[str, Any] = {
    "objective": "binary",
    "learning_rate": 0.1,
    "num_leaves": 6,
    "min_data_in_leaf": 8,
    "feature_fraction": 0.4,
    "lambda_l2": 3.0,
    "max_bin": 63,
    "verbosity": -1,
    "deterministic": True,
    "force_row_wise": True,
    "num_threads": 1,
}
ROUNDS = 80
FOLDS = 5
BOOTSTRAP_ROUNDS = 300
#: Models that are fitted one after the other, each without the features that the ones before used most.
LAYERS = 6
#: Features that each of them leaves out in addition.
LEFT_OUT_PER_LAYER = 10
#: Windows of either side that the AUC of one cause needs.
LEAST_WINDOWS_OF_CAUSE = 5


@dataclass(frozen=True)
class Layer:
    """The discriminator without the features that earlier layers used most.

    Attributes
    ----------
    auc : Estimate
        Over all windows.
    importance : dict of str to float
        Feature -> share of the total gain, largest first.
    """

    auc: Estimate
    importance: dict[str, float]


@dataclass(frozen=True)
class Discriminated:
    """Results of the discriminator.

    Attributes
    ----------
    exact : Estimate
        AUC over all windows with unrounded features: the smallest constant difference makes it 1.
    layers : tuple of Layer
        With features rounded to the smallest difference that matters. The first has all features. Each
        further one lacks the `LEFT_OUT_PER_LAYER` features that the one before used most, because a few
        features that decide everything hide all others.
    by_cause : dict of str to Estimate
        AUC of the first layer's out-of-fold scores within the windows of one cause.
    """

    exact: Estimate
    layers: tuple[Layer, ...]
    by_cause: dict[str, Estimate]

    @property
    def auc(self) -> Estimate:
        """Of the first layer."""
        return self.layers[0].auc

    @property
    def importance(self) -> dict[str, float]:
        """Of the first layer."""
        return self.layers[0].importance


def discriminate(real: Sequence[Measured], simulated: Sequence[Measured], seed: int) -> Discriminated:
    """Fit and score out of fold; a capture and its twins share a fold."""
    rows = [*real, *simulated]
    is_real = np.array([True] * len(real) + [False] * len(simulated))
    _, group = np.unique([one.group for one in rows], return_inverse=True)
    features = np.array([one.features for one in rows])
    rng = np.random.default_rng(seed)
    exact, _ = out_of_fold(features, is_real, group, rng)
    unit = np.array(resolutions())
    rounded = np.round(features / unit) * unit
    left = np.arange(len(columns()))
    scores, layers = [], []
    for _ in range(LAYERS):
        score, gain = out_of_fold(rounded[:, left], is_real, group, rng)
        order = np.argsort(-gain, kind="stable")
        scores.append(score)
        layers.append(Layer(auc_estimate(score, is_real, group, rng), _shares(gain, left, order)))
        left = np.delete(left, order[:LEFT_OUT_PER_LAYER])
    return Discriminated(
        exact=auc_estimate(exact, is_real, group, rng),
        layers=tuple(layers),
        by_cause=_by_cause(rows, scores[0], is_real, group, rng),
    )


def _shares(gain: FloatArray, column: IntArray, order: IntArray) -> dict[str, float]:
    total = max(float(gain.sum()), 1e-300)
    return {columns()[column[index]]: float(gain[index] / total) for index in order if gain[index] > 0}


def _by_cause(
    rows: Sequence[Measured],
    score: FloatArray,
    is_real: np.ndarray[Any, np.dtype[np.bool_]],
    group: IntArray,
    rng: np.random.Generator,
) -> dict[str, Estimate]:
    cause = np.array([one.cause for one in rows])
    found = {}
    for name in in_order(set(cause.tolist()), (HEALTHY, *CAUSES)):
        held = cause == name
        if min(is_real[held].sum(), (~is_real[held]).sum()) >= LEAST_WINDOWS_OF_CAUSE:
            found[name] = auc_estimate(score[held], is_real[held], group[held], rng)
    return found


def out_of_fold(
    features: FloatArray,
    is_real: np.ndarray[Any, np.dtype[np.bool_]],
    group: IntArray,
    rng: np.random.Generator,
) -> tuple[FloatArray, FloatArray]:
    """Scores of models that were fitted without the scored window's group, and the gain of every feature.

    Parameters
    ----------
    features : ndarray of shape (n_windows, n_features)
    is_real : ndarray of shape (n_windows,), bool
    group : ndarray of shape (n_windows,), int
        0 to n_groups - 1.

    Returns
    -------
    score : ndarray of shape (n_windows,), log-odds
        NaN for all windows if there are fewer groups than folds, or only one class.
    gain : ndarray of shape (n_features,)
    """
    import lightgbm

    n_groups = int(group.max()) + 1 if group.size else 0
    score, gain = np.full(is_real.size, np.nan), np.zeros(features.shape[1])
    if n_groups < FOLDS or is_real.all() or not is_real.any():
        return score, gain
    fold = rng.permutation(np.arange(n_groups) % FOLDS)[group]
    seed = int(rng.integers(2**31))
    for number in range(FOLDS):
        train = fold != number
        target = is_real[train]
        if target.all() or not target.any():
            continue
        # Both sides have the same total weight, however many twins a capture has.
        weight = np.where(target, 0.5 / target.mean(), 0.5 / (1 - target.mean()))
        data = lightgbm.Dataset(features[train], target.astype(float), weight=weight)
        model = lightgbm.train(PARAMETERS | {"seed": seed}, data, ROUNDS)
        score[~train] = model.predict(features[~train], raw_score=True)
        gain += model.feature_importance("gain")
    return score, gain


def auc(score: FloatArray, is_real: np.ndarray[Any, np.dtype[np.bool_]]) -> float:
    """Chance that a real window scores above a simulated one, ties counted half; NaN if one side is empty."""
    n_real = int(is_real.sum())
    n_other = is_real.size - n_real
    if not n_real or not n_other:
        return float("nan")
    values, index, count = np.unique(score, return_inverse=True, return_counts=True)
    del values
    rank = (np.cumsum(count) - (count - 1) / 2)[index]
    return float((rank[is_real].sum() - n_real * (n_real + 1) / 2) / (n_real * n_other))


def auc_estimate(
    score: FloatArray,
    is_real: np.ndarray[Any, np.dtype[np.bool_]],
    group: IntArray,
    rng: np.random.Generator,
) -> Estimate:
    """`auc` with an interval from resampling whole groups."""
    known = np.isfinite(score)
    score, is_real, group = score[known], is_real[known], group[known]
    value = auc(score, is_real)
    if not np.isfinite(value):
        return UNKNOWN
    members = [np.flatnonzero(group == one) for one in np.unique(group)]
    drawn = []
    for _ in range(BOOTSTRAP_ROUNDS):
        chosen = rng.integers(0, len(members), len(members))
        rows = np.concatenate([members[one] for one in chosen])
        drawn.append(auc(score[rows], is_real[rows]))
    held = np.array(drawn)[np.isfinite(drawn)]
    low, high = np.quantile(held, LEVELS) if held.size else (float("nan"), float("nan"))
    return Estimate(value, float(low), float(high), int(is_real.sum()))
