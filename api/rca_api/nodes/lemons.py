r"""Is a node a lemon? A small Bayesian model of what it was blamed for, in which jobs, and in which not.

Every job that ran on a node is one trial: did the node have a fault of its own in it? An ordinary node has
with probability ``b`` = `ORDINARY`; a lemon with an unknown rate ``a = b + (1 - b) u``, where ``u`` is drawn
from Beta(1, 4): a fifth of its jobs on average, and never less than an ordinary node. Nobody sees the
trials: a diagnosis gives ``q``, its probability that the node was at fault, reached with the ordinary node's
rate in mind, so that a trial's likelihood ratio for a rate ``a`` is

.. math:: \Lambda(a, q) = \frac{a}{b}\, q + \frac{1 - a}{1 - b}\, (1 - q).

With ``pi`` the share of lemons among all nodes,

.. math:: \frac{P(lemon)}{1 - P(lemon)} = \frac{\pi}{1 - \pi}
          \int_0^1 \prod_i \Lambda(a(u), q_i)\; \mathrm{Beta}(u; 1, 4)\, du.

A job in which the node was never blamed has ``q = 0`` and counts against it. All windows of a job are one
trial with the highest ``q``, because they share whatever misled them; blames of different jobs at the same
time are one trial, too: one event behind both explains them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

#: Share of the jobs in which an ordinary node has a fault of its own.
ORDINARY = 0.005
#: From here on a node is called a lemon.
THRESHOLD = 0.5
_GRID = 256
_DRAWN = (np.arange(_GRID) + 0.5) / _GRID
_RATES = ORDINARY + (1 - ORDINARY) * _DRAWN
_WEIGHTS = (1 - _DRAWN) ** 3 / np.sum((1 - _DRAWN) ** 3)


@dataclass(frozen=True)
class Blame:
    """What one job says against a node.

    Attributes
    ----------
    start, end : float
        From the first to the last window in which the node was blamed, Unix seconds.
    probability : float
        Highest that the node was at fault.
    """

    start: float
    end: float
    probability: float


def lemon_probability(blames: Iterable[Blame], n_jobs: int, prior: float) -> float:
    """Probability that a node is a lemon.

    Parameters
    ----------
    blames : iterable of Blame
        One per job in which the node was blamed.
    n_jobs : int
        Jobs that ran on it, those without a blame included.
    prior : float
        Share of lemons among all nodes, between 0 and 1.
    """
    found = list(blames)
    merged = independent(found)
    # A job that said the same as another one at the same time is no witness for the node either.
    clean = max(n_jobs - len(found), 0)
    log_ratio = clean * np.log((1 - _RATES) / (1 - ORDINARY))
    for each in merged:
        share = _RATES / ORDINARY * each.probability
        log_ratio = log_ratio + np.log(share + (1 - _RATES) / (1 - ORDINARY) * (1 - each.probability))
    # Far out the ratio overflows any float, so the odds stay logarithms until the end.
    highest = log_ratio.max()
    log_odds = highest + np.log(np.sum(_WEIGHTS * np.exp(log_ratio - highest))) + np.log(prior / (1 - prior))
    return float(1 / (1 + np.exp(-np.clip(log_odds, -700, 700))))


def independent(blames: Sequence[Blame]) -> list[Blame]:
    """Merge blames that overlap in time into one with the highest probability."""
    merged: list[Blame] = []
    for each in sorted(blames, key=lambda blame: (blame.start, blame.end)):
        if merged and each.start < merged[-1].end:
            last = merged[-1]
            merged[-1] = Blame(last.start, max(last.end, each.end), max(last.probability, each.probability))
        else:
            merged.append(each)
    return merged
