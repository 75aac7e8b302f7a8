"""One score per resource out of the comparison with peers and the comparison with the past."""

from __future__ import annotations

import numpy as np

from rca.causal.mechanisms import Mechanisms
from rca.features import RANK_FEATURES, FeatureSet
from rca.features.comparison import stretch_mean
from rca.features.evidence import resource_names
from rca.robust import FloatArray

#: Shared by all nodes: everybody's counters rise together, so peers say nothing and the past counts too.
SHARED_RESOURCES = ("fabric", "tcp")


def resource_scores(versus_peers: FloatArray, versus_past: FloatArray) -> FloatArray:
    """Scores the mechanisms are fitted on and evaluated with.

    Parameters
    ----------
    versus_peers, versus_past : ndarray of shape (..., n_resources), units

    Returns
    -------
    ndarray of shape (..., n_resources), units
        Against peers where there are any, else against the past; the larger of both for shared resources.
    """
    shared = np.isin(resource_names(), SHARED_RESOURCES)
    single = np.where(np.isfinite(versus_peers), versus_peers, versus_past)
    result: FloatArray = np.where(shared, np.fmax(versus_peers, versus_past), single)
    return result


def busy_scores(features: FeatureSet, rows: list[int], mechanisms: Mechanisms) -> FloatArray:
    """`resource_scores` of some ranks less what their waiting explains, shape (len(rows), n_resources)."""
    return resource_scores(*busy_evidence(features, rows, mechanisms))


def busy_evidence(
    features: FeatureSet, rows: list[int], mechanisms: Mechanisms
) -> tuple[FloatArray, FloatArray]:
    """Scores versus peers and versus the past, less what waiting longer than *they* did explains.

    Parameters
    ----------
    features : FeatureSet
    rows : list of int
        Ranks.
    mechanisms : Mechanisms

    Returns
    -------
    versus_peers, versus_past : ndarray of shape (len(rows), n_resources), units
    """
    beside, since = _waiting_versus_peers(features)[rows], _waiting_versus_past(features)[rows]
    return (
        mechanisms.without_waiting(features.evidence.versus_peers[rows], beside[:, None]),
        mechanisms.without_waiting(features.evidence.versus_past[rows], since[:, None]),
    )


def _waiting_versus_peers(features: FeatureSet) -> FloatArray:
    result: FloatArray = -features.rank[:, RANK_FEATURES.index("wait_deficit")]
    return result


def _waiting_versus_past(features: FeatureSet) -> FloatArray:
    wait = features.work.wait
    inside = features.comparison.segment.mask(wait.shape[1])
    return (stretch_mean(wait, inside) - stretch_mean(wait, ~inside)) / features.work.step_reference
