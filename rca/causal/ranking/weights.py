"""Weights of the evidence: a conditional logit with fixed weights, fitted on synthetic data.

``score = exp(w . evidence) / (exp(nothing) + sum over candidates)`` is the probability that the column is the
root cause, given that at most one column is. `benchmarks.tabular.calibrate` draws random structural causal
models, injects faults and maximises the likelihood of the true columns. It uses no public or real data.
``outside`` is fitted last, with the other weights held, on models whose incidents have a time course.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from rca.arrays import FloatArray
from rca.causal.ranking.evidence import BootstrapEvidence

#: Key of the log-odds that none of the columns is the root cause.
NOTHING = "nothing"
#: Weights by the caller's input (graph given, target given). `benchmarks.tabular.calibrate` prints them.
WEIGHTS: Mapping[tuple[bool, bool], Mapping[str, float]] = {
    (False, False): {
        "nothing": 1.74, "size": 1.11, "certain": 0.80, "early": 0.67, "unpredicted": 0.06,
    },
    (False, True): {
        "nothing": 1.79, "size": 1.11, "certain": 0.78, "early": 0.65, "unpredicted": 0.06,
        "resemblance": 0.48,
    },
    (True, False): {
        "nothing": 2.00, "size": 1.04, "certain": 0.41, "early": 0.08, "unpredicted": 0.00,
        "own": 0.45, "inherited": -0.71, "coverage": 2.17,
    },
    (True, True): {
        "nothing": 1.37, "size": 1.18, "certain": 0.01, "early": 0.02, "unpredicted": 0.00,
        "own": 0.30, "inherited": -0.53, "coverage": 1.77, "resemblance": 0.42,
        "outside": -0.73,
    },
}  # fmt: skip


def scores(evidence: BootstrapEvidence, weights: Mapping[str, float]) -> tuple[FloatArray, FloatArray]:
    """Probability of being the root cause per round and column, and that no column is.

    Parameters
    ----------
    weights : mapping of str to float
        Per feature, and `NOTHING`.

    Returns
    -------
    scores : ndarray of shape (n_rounds, n_columns)
        0 for columns that are not candidates; a row's sum is 1 less its `nothing`.
    nothing : ndarray of shape (n_rounds,)
    """
    logits = evidence.values @ np.array([weights[name] for name in evidence.features])
    logits = np.where(evidence.candidates, logits, -np.inf)
    top = np.maximum(logits.max(axis=1, keepdims=True), weights[NOTHING])
    odds = np.exp(logits - top)
    nothing = np.exp(weights[NOTHING] - top[:, 0])
    total = odds.sum(axis=1) + nothing
    return odds / total[:, None], nothing / total
