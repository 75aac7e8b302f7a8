"""Weight of each window in a fit."""

from __future__ import annotations

import numpy as np

from rca.arrays import FloatArray
from rca.lab.training.corpus import Corpus

#: Share of the training weight of real windows (docs/decisions/0021). In head ``mode`` the additional healthy
#: windows reduce it from 0.25 to 0.21 (docs/decisions/0025).
REAL_SHARE = 0.25
#: Weight of a variant of a real window that is not learned from: two dozen variants weigh five windows.
HELD_OUT_VARIANT = 0.2


def balanced(corpus: Corpus, real_share: float) -> FloatArray:
    """Weight per window: one if simulated; real collections share what real windows get.

    Parameters
    ----------
    real_share : float
        Share of the training part's weight that real windows get together.

    Notes
    -----
    A collection gets a share by the square root of its size. A window of a small collection from other
    machines adds more than one more capture of a large testbed. In the other parts, which choose rounds,
    calibration and thresholds, a capture weighs as much as a few simulated windows. With a share of the
    weight, few captures would decide alone.
    """
    real, train = np.array(corpus.real), np.array(corpus.part) == "train"
    weight = np.where(real, HELD_OUT_VARIANT, 1.0)
    simulated = int((~real & train).sum())
    collection = np.array([group.split("/", 1)[0] for group in corpus.group])
    names, sizes = np.unique(collection[real & train], return_counts=True)
    if not simulated or not names.size:
        return weight
    total = real_share / (1 - real_share) * simulated
    parts = np.sqrt(sizes) / np.sqrt(sizes).sum()
    for name, size, part in zip(names, sizes, parts, strict=True):
        weight[real & train & (collection == name)] = total * part / size
    return weight
