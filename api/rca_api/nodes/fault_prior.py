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

A job in which the node was never blamed has ``q = 0`` and counts against it. What counts for it are
*independent witnesses*: jobs that blamed the node at times `APART_SECONDS` apart. Blames of different jobs
at the same time are one witness, because one event behind both explains them, and so are a job and its
restart. The windows of a job are one witness, too: they share whatever misled them.

Two jobs are apart if any window of one is apart from any window of the other, so that a job that goes on
blaming takes nothing from those in between. Witnesses are jobs any two of which are apart, as many as can be
found; the surest of them first (`witnesses`). More blames can therefore never acquit a node.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

#: Share of the jobs in which an ordinary node has a fault of its own.
ORDINARY = 0.005
#: From here on a node is called a lemon.
THRESHOLD = 0.5
#: What befalls a node (a backup, a hot aisle, a neighbour's job) takes minutes or hours, and a job that is
#: restarted meets it again; hours later it is likely to be something else.
APART_SECONDS = 6 * 3600.0
#: What a blame weighs by the owner of its cause: a crash, a hang, or what nothing explains is as likely the
#: workload's.
WEIGHTS = {"infrastructure": 1.0, "either": 0.5, "workload": 0.0}
_GRID = 256
_DRAWN = (np.arange(_GRID) + 0.5) / _GRID
_RATES = ORDINARY + (1 - ORDINARY) * _DRAWN
_SHARES = (1 - _DRAWN) ** 3 / np.sum((1 - _DRAWN) ** 3)


@dataclass(frozen=True)
class Blame:
    """One or several windows of a job that blame a node equally surely.

    Attributes
    ----------
    first_end, last_start : float
        End of the earliest and start of the latest of them, Unix seconds.
    probability : float
        That the node was at fault.
    """

    job: str
    first_end: float
    last_start: float
    probability: float


def lemon_probability(blames: Sequence[Blame], n_jobs: int, prior: float) -> float:
    """Probability that a node is a lemon.

    Parameters
    ----------
    blames : sequence of Blame
        In which jobs the node was blamed.
    n_jobs : int
        Jobs that judged it, those without a blame included.
    prior : float
        Share of lemons among all nodes, between 0 and 1.
    """
    # A job that said the same as another one at the same time is no witness for the node either.
    clean = max(n_jobs - len(blaming_jobs(blames)), 0)
    log_ratio = clean * np.log((1 - _RATES) / (1 - ORDINARY))
    for probability in witnesses(blames):
        share = _RATES / ORDINARY * probability
        log_ratio = log_ratio + np.log(share + (1 - _RATES) / (1 - ORDINARY) * (1 - probability))
    # Far out the ratio overflows any float, so the odds stay logarithms until the end.
    highest = log_ratio.max()
    log_odds = highest + np.log(np.sum(_SHARES * np.exp(log_ratio - highest))) + np.log(prior / (1 - prior))
    return float(1 / (1 + np.exp(-np.clip(log_odds, -700, 700))))


def fault_odds(lemon: float, prior: float) -> float:
    """Odds that a node is at fault in a job, as a multiple of those of a node that nothing is known of.

    Parameters
    ----------
    lemon : float
        Probability that it is a lemon.
    prior : float
        Share of lemons among all nodes.
    """
    lemons_mean = float(_RATES @ _SHARES)
    rates = [ORDINARY + chance * (lemons_mean - ORDINARY) for chance in (lemon, prior)]
    known, unknown = (rate / (1 - rate) for rate in rates)
    return known / unknown


def blaming_jobs(blames: Iterable[Blame]) -> set[str]:
    """Jobs that blame the node with a probability to speak of."""
    return {blame.job for blame in blames if _level(blame) > 0}


def witnesses(blames: Sequence[Blame]) -> list[float]:
    """Probabilities of the independent witnesses against a node, highest first.

    The i-th is the highest probability with which i jobs, any two of them apart, blamed the node at least.
    """
    found: list[float] = []
    for level in sorted({_level(blame) for blame in blames} - {0.0}, reverse=True):
        jobs = _by_job(blame for blame in blames if _level(blame) >= level)
        found += [level] * (_most_apart(jobs) - len(found))
    return found


def _level(blame: Blame) -> float:
    # Hundredths bound the number of levels. What rounds to zero is below ORDINARY and would acquit the node.
    return round(blame.probability, 2)


def _by_job(blames: Iterable[Blame]) -> list[tuple[float, float]]:
    """First end and last start of each job, in the order of the first ends."""
    spans: dict[str, tuple[float, float]] = {}
    for each in blames:
        end, start = spans.get(each.job, (each.first_end, each.last_start))
        spans[each.job] = min(end, each.first_end), max(start, each.last_start)
    return sorted(spans.values())


def _most_apart(jobs: Iterable[tuple[float, float]]) -> int:
    """Largest number of jobs any two of which are apart, given in the order of their first ends.

    Taking each job that is apart from all that were taken is optimal: jobs that are not apart from the one
    with the earliest first end are not apart from each other either, so that at most one of them is in any
    solution.
    """
    taken = 0
    # Of the taken ones, only those count that no later one undercuts: both lists ascend.
    ends: list[float] = []
    starts: list[float] = []
    for end, start in jobs:
        near = bisect_right(ends, start - APART_SECONDS)
        if near < len(starts) and starts[near] - end < APART_SECONDS:
            continue
        taken += 1
        while starts and starts[-1] >= start:
            ends.pop()
            starts.pop()
        ends.append(end)
        starts.append(start)
    return taken
