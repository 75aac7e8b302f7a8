"""One score per resource out of the comparison with peers and the comparison with the past."""

from __future__ import annotations

import numpy as np

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
