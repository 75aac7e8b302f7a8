"""Decision thresholds, chosen on held-out scenarios: false alarms on healthy jobs are worse than misses."""

from __future__ import annotations

import numpy as np

from rca.arrays import FloatArray
from rca.classify.head import Head
from rca.classify.preconditions import loses_much, work_seen
from rca.training.corpus import Corpus
from rca.training.split import mask

#: Share of healthy windows that may be called faulty, and how sure held-out windows must make us of it: two
#: fifths of what is promised, as healthy jobs elsewhere do more than simulated ones (docs/decisions/0025).
FALSE_ALARM_BUDGET = 0.004
#: The same where much time is lost: twice what is promised, of a quarter of the healthy jobs, so that all of
#: them together keep the promise (docs/decisions/0025).
COSTLY_BUDGET = 0.02
#: The same where nobody's own work was timed. Such answers always abstain, so an alarm wakes nobody.
UNSEEN_BUDGET = 0.02
CONFIDENCE = 0.95
GRID = np.round(np.arange(0.30, 0.99, 0.01), 2)


def choose_thresholds(
    corpus: Corpus, heads: dict[str, Head], innocents: FloatArray | None = None
) -> dict[str, float]:
    """Smallest thresholds that keep to the false-alarm budget, and the best rank threshold by F1.

    Jobs whose own work nobody timed look faulty by chance far more often, and where much time is lost a miss
    costs more, so each kind of job has a threshold of its own: one for all would break its promise to the
    first and cost the others their detections.

    Parameters
    ----------
    corpus : Corpus
    heads : dict of str to Head
        Fitted and calibrated on other parts of the corpus.
    innocents : ndarray of shape (n, n_window_features), optional
        More healthy windows, of which no head has seen any: rare alarms are counted, and few windows
        have few of them.
    """
    # No tree was fitted on either part. Rounds and four numbers come from calibration, too few to adapt to
    # the handful of windows that decide here; half as many would make the bound twice as cautious.
    held = (mask(corpus.part, "validation") | mask(corpus.part, "calibration")) & ~np.array(corpus.real)
    # A fault that costs too little to be felt may be told or not: it is no false alarm.
    innocent = (np.array(corpus.mode) == "healthy") & ~np.array(corpus.unfelt)
    head = heads["mode"]
    rows = corpus.window[held & innocent]
    rows = rows if innocents is None else np.concatenate([rows, innocents])
    faulty = 1.0 - head.probabilities(rows)[:, head.classes.index("healthy")]
    seen, costly = work_seen(rows), loses_much(rows)
    return {
        "fault": _alarm(faulty[seen & ~costly], FALSE_ALARM_BUDGET),
        "fault_costly": _alarm(faulty[seen & costly], COSTLY_BUDGET),
        "fault_unseen": _alarm(faulty[~seen], UNSEEN_BUDGET),
        "decide": 0.5,
        "straggler": _rank_threshold(corpus, heads["straggler"]),
        "name": 0.4,
    }


def _alarm(innocent: FloatArray, budget: float) -> float:
    """Smallest grid value whose share of innocent windows above it keeps to the budget, with confidence.

    A few hundred validation windows say little about a rate below one per cent, so the upper bound
    (Clopper and Pearson, 1934) of the rate is held to the budget, not the rate itself. Where even no alarm
    at all would not prove the budget, no alarm at all is asked for.
    """
    n = innocent.size
    budget = max(budget, _upper_bound(0, n))
    alarms = [int((innocent >= value).sum()) for value in GRID]
    kept = [value for value, count in zip(GRID, alarms, strict=True) if _upper_bound(count, n) <= budget]
    return float(kept[0] if kept else GRID[-1])


def _upper_bound(alarms: int, n: int) -> float:
    from scipy.stats import beta

    return float(beta.ppf(CONFIDENCE, alarms + 1, n - alarms)) if alarms < n else 1.0


def _rank_threshold(corpus: Corpus, head: Head) -> float:
    """Threshold with the best F1 over the ranks of slow validation windows."""
    owner_mode = np.array(corpus.mode)[corpus.owner]
    rows = mask(corpus.part, "validation")[corpus.owner] & (owner_mode == "fail_slow")
    rows &= np.array(corpus.scope)[corpus.owner] == "some"
    chance, truth = head.probabilities(corpus.rank[rows])[:, 1], corpus.faulty[rows]
    scores = []
    for value in GRID:
        named = chance >= value
        hits = (named & truth).sum()
        scores.append(2 * hits / max(named.sum() + truth.sum(), 1))
    return float(GRID[int(np.argmax(scores))])
