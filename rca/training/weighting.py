"""How much each window counts in a fit."""

from __future__ import annotations

import numpy as np

from rca.arrays import FloatArray
from rca.training.corpus import Corpus

#: Share of the training weight that real windows get (docs/decisions/0021). In head ``mode`` it is less by
#: what the additional healthy windows weigh: .21 of .25 (docs/decisions/0025).
REAL_SHARE = 0.25
#: Weight of a variant of a real window that is not learned from: some two dozen of them make five windows.
WITNESS = 0.2


def balanced(corpus: Corpus, real_share: float) -> FloatArray:
    """Weight per window: one if simulated; real collections share what real windows get.

    Parameters
    ----------
    corpus : Corpus
    real_share : float
        Share of the training part's weight that real windows get together.

    Notes
    -----
    A collection gets its part of it by the square root of its size: a small one from other machines says
    more per window than the next capture of the same testbed. Where rounds, calibration and thresholds are
    chosen, real windows are witnesses only, each capture as good as a few simulated windows: with a share of
    the weight, a handful of captures would decide alone.
    """
    real, train = np.array(corpus.real), np.array(corpus.part) == "train"
    weight = np.where(real, WITNESS, 1.0)
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
