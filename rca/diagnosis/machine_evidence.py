"""Whether a resource was measured on some machines, and is normal there."""

from __future__ import annotations

import numpy as np

from rca.arrays import BoolArray, FloatArray
from rca.causal.scores import BusyEvidence
from rca.features import FeatureSet
from rca.features.resource_evidence import resource_names
from rca.robust import nan_max
from rca.window.causes import DECIDING

#: Scores below this are normal, in units. It is below 1 (remarkable) because mild faults score less than 1.
MAX_NORMAL_SCORE = 0.3
#: Other ranks are closer to nominal if this share of them has at most this part of the suspects' score.
CLOSER_RANKS, CLOSER_SCORE = 0.2, 0.5


def is_contradicted(cause: str, unlike: FloatArray) -> bool:
    """Whether every resource that the cause always affects was measured on its ranks and is normal.

    Parameters
    ----------
    unlike : ndarray of shape (n_resources,), units
        From `most_unlike`.
    """
    if cause not in DECIDING:
        return False
    worst = unlike[[resource_names().index(name) for name in DECIDING[cause]]]
    return bool(np.isfinite(worst).all() and (worst < MAX_NORMAL_SCORE).all())


def most_unlike(ranks: list[int], features: FeatureSet, busy: BusyEvidence) -> FloatArray:
    """Largest score of every resource over ranks, against peers, past or nominal values, (n_resources,).

    A score against the nominal value counts only if some peers are closer to it, or if there are no peers.
    Where most ranks are suspected they are their own peers, so a score against peers alone proves nothing.
    """
    peers, past = busy.versus_peers[ranks], busy.versus_past[ranks]
    nominal = features.evidence.versus_nominal[ranks]
    if 2 * len(ranks) <= features.topology.n_ranks:
        alike = np.isfinite(peers) & ~_others_are_closer_to_nominal(nominal, ranks, features)
        return nan_max(np.fmax(np.fmax(peers, past), np.where(alike, np.nan, nominal)))
    others = np.fmax(past, nominal)
    return nan_max(np.where(np.isfinite(others), np.fmax(peers, others), np.nan))


def _others_are_closer_to_nominal(nominal: FloatArray, ranks: list[int], features: FeatureSet) -> BoolArray:
    """Whether enough others are closer to nominal than the suspects' worst, (n_resources,); true if unknown.

    The others are the ranks of other nodes, if there are any, because a node's metrics show on all its ranks.
    """
    node = features.topology.node
    elsewhere = np.flatnonzero(~np.isin(node, node[ranks]))
    others = elsewhere if elsewhere.size else np.setdiff1d(np.arange(node.size), ranks)
    shown = features.evidence.versus_nominal[others]
    closer = (shown <= CLOSER_SCORE * nan_max(nominal)).sum(axis=0)
    return np.asarray(closer >= CLOSER_RANKS * np.isfinite(shown).sum(axis=0))
