"""Decision thresholds, chosen on held-out scenarios: false alarms are worse than missed faults."""

from __future__ import annotations

import numpy as np

from rca.arrays import FloatArray
from rca.classify.classifier import acts_on_all
from rca.classify.decision_table import DECIDE, NAME
from rca.classify.head import Head
from rca.classify.preconditions import loses_much, work_seen
from rca.lab.training.corpus import Corpus
from rca.lab.training.split import mask

#: Share of healthy windows that may be called faulty: two fifths of the promised rate, because real healthy
#: jobs vary more than simulated ones (docs/decisions/0025).
FALSE_ALARM_BUDGET = 0.004
#: The same if much time is lost: twice the promised rate for a quarter of the healthy jobs. All jobs together
#: keep the promised rate (docs/decisions/0025).
COSTLY_BUDGET = 0.02
#: The same for jobs that would be a suspect as a whole: real healthy jobs change as a whole more often than
#: simulated ones. Chosen on external windows that were looked at (docs/model-history.md).
WHOLE_BUDGET = 0.003
#: The same without phase timings. Such answers always abstain, so they raise no alarm.
UNSEEN_BUDGET = 0.02
#: Confidence with which held-out windows must show that a budget is kept.
CONFIDENCE = 0.95
#: Values that a threshold may have. Alarms are decided close to 1, so hundredths are too coarse.
GRID = np.round(np.arange(0.30, 0.9995, 0.001), 3)


def choose_thresholds(
    corpus: Corpus, heads: dict[str, Head], more_healthy: FloatArray | None = None
) -> dict[str, float]:
    """Smallest thresholds that keep to the false-alarm budget, and the best rank threshold by F1.

    Each kind of job has its own threshold. Jobs without phase timings look faulty by chance more often. If
    much time is lost, a missed fault costs more.

    Parameters
    ----------
    heads : dict of str to Head
        Fitted and calibrated on other parts of the corpus.
    more_healthy : ndarray of shape (n, n_window_features), optional
        More healthy windows that no head was fitted on: counting rare alarms needs many windows.
    """
    # No tree was fitted on either part. Only the number of rounds and the calibration depend on the part
    # ``calibration``. Without it the upper bound would be twice as cautious.
    held = (mask(corpus.part, "validation") | mask(corpus.part, "calibration")) & ~np.array(corpus.real)
    # To report a fault without visible effect is no false alarm.
    healthy = (np.array(corpus.mode) == "healthy") & ~np.array(corpus.unfelt)
    head = heads["mode"]
    rows = corpus.window[held & healthy]
    rows = rows if more_healthy is None else np.concatenate([rows, more_healthy])
    faulty = 1.0 - head.probabilities(rows)[:, head.classes.index("healthy")]
    seen, costly, whole = work_seen(rows), loses_much(rows), acts_on_all(heads["scope"], rows)
    fault = _alarm(faulty[seen & ~costly & ~whole], FALSE_ALARM_BUDGET)
    return {
        "fault": fault,
        # Few windows show a high budget only: then it would be lower than for other jobs.
        "fault_whole": max(fault, _alarm(faulty[seen & ~costly & whole], WHOLE_BUDGET)),
        "fault_costly": _alarm(faulty[seen & costly], COSTLY_BUDGET),
        "fault_unseen": _alarm(faulty[~seen], UNSEEN_BUDGET),
        "decide": DECIDE,
        "straggler": _rank_threshold(corpus, heads["straggler"]),
        "name": NAME,
    }


def _alarm(suspicion: FloatArray, budget: float) -> float:
    """Smallest grid value above which the share of healthy windows keeps the budget, with confidence.

    The upper bound (Clopper and Pearson, 1934) of the rate is compared with the budget, because few windows
    say little about a small rate. If even 0 alarms do not show the budget, 0 alarms are required.

    Parameters
    ----------
    suspicion : ndarray of shape (n_healthy_windows,)
        Probability of a fault.
    """
    n = suspicion.size
    budget = max(budget, _upper_bound(0, n))
    alarms = [int((suspicion >= value).sum()) for value in GRID]
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
