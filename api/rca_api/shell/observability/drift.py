"""Drift of answers: whether the latest answers differ from those to held-out windows.

The comparison needs a bundle that holds its answers to held-out windows. Drift of windows needs no state:
`rca.classify.out_of_distribution` judges each window, and counters give the share.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Sequence
from threading import Lock

from prometheus_client import CollectorRegistry, Gauge

from rca.classify.uncertainty import CONFIDENCE_BINS, AnswerShares, confidence_bin
from rca.features.resource_evidence import MACHINE_RESOURCES
from rca.features.work import OWN_PHASES

#: All signals that a diagnosis may list as missing, see `rca.diagnosis.pipeline.missing_signals`.
SIGNALS = (*OWN_PHASES, "communication_wait_seconds", "phases", *MACHINE_RESOURCES)
#: Number of latest answers that are compared, and fewest answers for a comparison. Without drift the index of
#: `k` bins is about ``(k - 1) / n``: 0.09 for ten bins after a hundred answers.
RECENT, MIN_ANSWERS = 500, 100


def population_stability_index(expected: Sequence[float], counts: Sequence[int]) -> float:
    """How far shares have moved: ``sum((p - q) * ln(p / q))`` over the bins.

    This is Jeffreys' divergence between the recent shares `p` and the expected shares `q`. Lenders call it
    population stability index: 0.1 is a hint and 0.25 a shift (N. Siddiqi, Credit Risk Scorecards, 2006).
    Half a count is added to each bin of both, so that an empty bin does not make the index infinite.

    Parameters
    ----------
    expected : sequence of float
        Shares that add up to 1.
    counts : sequence of int
        Recent observations per bin.

    Examples
    --------
    >>> population_stability_index([0.5, 0.5], [50, 50])
    0.0
    >>> round(population_stability_index([0.5, 0.5], [80, 20]), 2)
    0.41
    """
    n, bins = sum(counts), len(counts)
    smoothed = n + 0.5 * bins
    total = 0.0
    for share, count in zip(expected, counts, strict=True):
        p, q = (count + 0.5) / smoothed, (share * n + 0.5) / smoothed
        total += (p - q) * math.log(p / q)
    return total


class AnswerDrift:
    """The gauge ``rca_answer_drift``; it has no series while there is nothing to compare."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._gauge = Gauge(
            "rca_answer_drift",
            f"Population stability index of the last {RECENT} answers and those to held-out windows.",
            ("of",),
            registry=registry,
        )
        self._lock = Lock()
        self._model = ""
        self._recent: deque[tuple[str, int]] = deque(maxlen=RECENT)

    def observe(self, model: str, failure_mode: str, confidence: float, usual: AnswerShares | None) -> None:
        """Count one answer.

        Parameters
        ----------
        model : str
            SHA-256 of the bundle; another bundle starts from zero.
        confidence : float
            Probability of that failure mode.
        usual : AnswerShares or None
            Shares of that model's answers to held-out windows.
        """
        with self._lock:
            if model != self._model:
                self._model = model
                self._recent.clear()
                self._gauge.clear()
            self._recent.append((failure_mode, confidence_bin(confidence)))
            if usual is not None and len(self._recent) >= MIN_ANSWERS:
                self._compare(usual)

    def _compare(self, usual: AnswerShares) -> None:
        modes = Counter(mode for mode, _ in self._recent)
        bins = Counter(place for _, place in self._recent)
        by_mode = population_stability_index(list(usual.mode.values()), [modes[mode] for mode in usual.mode])
        by_bin = population_stability_index(usual.confidence, [bins[n] for n in range(CONFIDENCE_BINS)])
        self._gauge.labels("failure_mode").set(by_mode)
        self._gauge.labels("confidence").set(by_bin)
