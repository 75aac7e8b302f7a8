r"""Lemon probability of a node: a Bayesian model of the jobs that blamed it, and of those that did not.

A lemon is a node with a fault of its own. Every job on a node is one trial: did the node have a fault of its
own in it? For an ordinary node the rate is ``b`` = `ORDINARY`. For a lemon it is an unknown ``a = b + (1 - b)
u`` with ``u`` from Beta(1, 4). That is a fifth of its jobs on average, never less than an ordinary node. The
outcome of a trial is not known. A diagnosis gives ``q``, the probability that the node was at fault, with the
rate of an ordinary node in mind. So the likelihood ratio of a trial for a rate ``a`` is

.. math:: \Lambda(a, q) = \frac{a}{b}\, q + \frac{1 - a}{1 - b}\, (1 - q).

With ``pi`` the share of lemons among all nodes,

.. math:: \frac{P(lemon)}{1 - P(lemon)} = \frac{\pi}{1 - \pi}
          \int_0^1 \prod_i \Lambda(a(u), q_i)\; \mathrm{Beta}(u; 1, 4)\, du.

A job that never blamed the node has ``q = 0`` and lowers the probability. What raises it are *independent
blames*: jobs that blamed the node at times `APART_SECONDS` apart. The following count as one blame:

- jobs that blame the node at the same time, because one event may explain all of them;
- a job and its restart;
- the windows of one job, because they share their errors.

Two jobs are apart if any window of one is apart from any window of the other. So a job that blames for long
takes nothing from the jobs in between. The independent blames are as many jobs as possible, any two of them
apart, the most probable first (`independent_blames`). More blames therefore never lower the probability.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

#: Share of the jobs in which an ordinary node has a fault of its own.
ORDINARY = 0.005
#: A node with at least this probability is a lemon.
THRESHOLD = 0.5
#: Passing causes (a backup, a hot aisle, another job on the node) last minutes or hours, and a restarted job
#: meets them again. A blame hours later probably has another reason.
APART_SECONDS = 6 * 3600.0
#: Weight of a blame by the owner of its cause: a crash, a hang or an unknown cause may as well be the
#: workload's.
WEIGHTS = {"infrastructure": 1.0, "either": 0.5, "workload": 0.0}
_GRID = 256
_DRAWN = (np.arange(_GRID) + 0.5) / _GRID
_RATES = ORDINARY + (1 - ORDINARY) * _DRAWN
_SHARES = (1 - _DRAWN) ** 3 / np.sum((1 - _DRAWN) ** 3)


@dataclass(frozen=True)
class JobBlame:
    """One or several windows of a job that blame a node with the same probability.

    Attributes
    ----------
    first_end, last_start : float
        End of the earliest and start of the latest of them, Unix seconds.
    probability : float
        Probability that the node was at fault.
    """

    job: str
    first_end: float
    last_start: float
    probability: float


def lemon_probability(blames: Sequence[JobBlame], n_jobs: int, prior: float) -> float:
    """Probability that a node is a lemon.

    Parameters
    ----------
    blames : sequence of JobBlame
        All blames of the node.
    n_jobs : int
        Jobs with a verdict about it, including those without a blame.
    prior : float
        Share of lemons among all nodes, between 0 and 1.
    """
    # A blaming job that is not independent is no job without a blame either.
    clean = max(n_jobs - len(blaming_jobs(blames)), 0)
    return _probability(clean, tuple(independent_blames(blames)), prior)


@lru_cache(maxsize=16_384)
def _probability(clean: int, blames: tuple[float, ...], prior: float) -> float:
    """The formula above; many nodes of a cluster have the same few numbers."""
    log_ratio = clean * np.log((1 - _RATES) / (1 - ORDINARY))
    for probability in blames:
        share = _RATES / ORDINARY * probability
        log_ratio = log_ratio + np.log(share + (1 - _RATES) / (1 - ORDINARY) * (1 - probability))
    # In logarithms, because the ratio may overflow.
    highest = log_ratio.max()
    log_odds = highest + np.log(np.sum(_SHARES * np.exp(log_ratio - highest))) + np.log(prior / (1 - prior))
    return float(1 / (1 + np.exp(-np.clip(log_odds, -700, 700))))


def fault_odds(lemon: float, prior: float) -> float:
    """Odds that a node is at fault in a job, as a multiple of the odds of a node without records.

    Parameters
    ----------
    lemon : float
        Probability that the node is a lemon.
    prior : float
        Share of lemons among all nodes.
    """
    lemons_mean = float(_RATES @ _SHARES)
    rates = [ORDINARY + chance * (lemons_mean - ORDINARY) for chance in (lemon, prior)]
    known, unknown = (rate / (1 - rate) for rate in rates)
    return known / unknown


def blaming_jobs(blames: Iterable[JobBlame]) -> set[str]:
    """Jobs that blame the node with a probability of at least 0.01 after rounding."""
    return {blame.job for blame in blames if _level(blame) > 0}


def independent_blames(blames: Sequence[JobBlame]) -> list[float]:
    """Probabilities of the independent blames of a node, highest first.

    The i-th is the highest probability with which at least i jobs, any two of them apart, blamed the node.
    """
    found: list[float] = []
    for level in sorted({_level(blame) for blame in blames} - {0.0}, reverse=True):
        jobs = _by_job(blame for blame in blames if _level(blame) >= level)
        found += [level] * (_most_apart(jobs) - len(found))
    return found


def _level(blame: JobBlame) -> float:
    # Rounded, to bound the number of levels. A blame below ORDINARY is 0, because it would lower the
    # probability.
    return round(blame.probability, 2)


def _by_job(blames: Iterable[JobBlame]) -> list[tuple[float, float]]:
    """First end and last start of each job, sorted by the first end."""
    spans: dict[str, tuple[float, float]] = {}
    for each in blames:
        end, start = spans.get(each.job, (each.first_end, each.last_start))
        spans[each.job] = min(end, each.first_end), max(start, each.last_start)
    return sorted(spans.values())


def _most_apart(jobs: Iterable[tuple[float, float]]) -> int:
    """Largest number of jobs any two of which are apart; `jobs` are sorted by their first ends.

    The greedy choice is optimal. Jobs that are not apart from the job with the earliest first end are not
    apart from each other either, so any solution has at most one of them.
    """
    taken = 0
    # Taken jobs that can still limit a later one: both lists ascend.
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
