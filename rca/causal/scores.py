"""One score per resource from its comparisons with peers and with the past."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rca.arrays import FloatArray
from rca.causal.mechanisms import Mechanisms
from rca.features import RANK_FEATURES, FeatureSet
from rca.features.resource_evidence import resource_names
from rca.features.slow_segment import segment_mean

#: Shared by all nodes: the counters of all rise together, so the past counts as well as the peers.
SHARED_RESOURCES = ("fabric", "tcp")


def resource_scores(versus_peers: FloatArray, versus_past: FloatArray) -> FloatArray:
    """Scores with which the mechanisms are fitted and evaluated.

    Parameters
    ----------
    versus_peers, versus_past : ndarray of shape (..., n_resources), units

    Returns
    -------
    ndarray of shape (..., n_resources), units
        The comparison with peers, without peers that with the past; for shared resources the larger one.
    """
    shared = np.isin(resource_names(), SHARED_RESOURCES)
    single = np.where(np.isfinite(versus_peers), versus_peers, versus_past)
    result: FloatArray = np.where(shared, np.fmax(versus_peers, versus_past), single)
    return result


@dataclass(frozen=True)
class BusyEvidence:
    """Scores of all ranks, less the effect of waiting longer than their reference.

    Attributes
    ----------
    versus_peers, versus_past : ndarray of shape (n_ranks, n_resources), units
    """

    versus_peers: FloatArray
    versus_past: FloatArray

    @classmethod
    def from_features(cls, features: FeatureSet, mechanisms: Mechanisms) -> BusyEvidence:
        """Subtract the effect of waiting, by the mechanisms' arrows from waiting to idle signals."""
        versus_peers, versus_past = _waiting_versus_peers(features), _waiting_versus_past(features)
        evidence = features.evidence
        return cls(
            mechanisms.without_waiting(evidence.versus_peers, versus_peers[:, None]),
            mechanisms.without_waiting(evidence.versus_past, versus_past[:, None]),
        )

    def scores(self, rows: list[int]) -> FloatArray:
        """`resource_scores` of some ranks, shape (len(rows), n_resources)."""
        return resource_scores(self.versus_peers[rows], self.versus_past[rows])


def _waiting_versus_peers(features: FeatureSet) -> FloatArray:
    result: FloatArray = -features.rank[:, RANK_FEATURES.index("wait_deficit")]
    return result


def _waiting_versus_past(features: FeatureSet) -> FloatArray:
    wait = features.work.wait
    inside = features.comparison.segment.mask(wait.shape[1])
    return (segment_mean(wait, inside) - segment_mean(wait, ~inside)) / features.work.step_reference
