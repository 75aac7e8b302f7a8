"""Whether the model has begun to answer otherwise than it did to the windows it was tried on.

Drift of windows needs no memory: `rca.classify.out_of_distribution` judges each one.
Counters give the share.
Drift of answers compares the latest answers with those to held-out windows, if the bundle has them.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Sequence
from threading import Lock

from prometheus_client import CollectorRegistry, Gauge

from rca.classify.answer_distribution import CONFIDENCE_BINS, AnswerShares, confidence_bin
from rca.features.resource_evidence import RESOURCES
from rca.features.work import OWN_PHASES

#: Everything a diagnosis may list as missing: see `rca.diagnosis.pipeline.missing_signals`.
SIGNALS = (*OWN_PHASES, "communication_wait_seconds", "phases", *RESOURCES)
#: Answers that are compared, and how many have to be there before a comparison says anything: without any
#: drift the index of `k` bins is about ``(k - 1) / n``, so 0.09 for ten bins after a hundred answers.
RECENT, FEWEST = 500, 100


def population_stability_index(expected: Sequence[float], counts: Sequence[int]) -> float:
    """How far shares have moved: ``sum((p - q) * ln(p / q))`` over the bins.

    Jeffreys' divergence between the recent shares `p` and the expected ones `q`; as "population stability
    index" it is what scorecards of lenders are watched by (N. Siddiqi, Credit Risk Scorecards, 2006), where
    0.1 is taken for a hint and 0.25 for a shift. Shares are smoothed by half a count a bin (and `q` by as
    much), so that an empty bin does not make it infinite.

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
    """The gauge ``rca_answer_drift``; without series while there is nothing to compare.

    Parameters
    ----------
    registry : CollectorRegistry
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._gauge = Gauge(
            "rca_answer_drift",
            f"Population stability index of the last {RECENT} answers against those to held-out windows.",
            ("of",),
            registry=registry,
        )
        self._lock = Lock()
        self._model = ""
        self._recent: deque[tuple[str, int]] = deque(maxlen=RECENT)

    def observe(self, model: str, failure_mode: str, confidence: float, usual: AnswerShares | None) -> None:
        """Take note of one answer.

        Parameters
        ----------
        model : str
            SHA-256 of the bundle; another one begins anew.
        failure_mode : str
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
            if usual is not None and len(self._recent) >= FEWEST:
                self._compare(usual)

    def _compare(self, usual: AnswerShares) -> None:
        modes = Counter(mode for mode, _ in self._recent)
        bins = Counter(place for _, place in self._recent)
        by_mode = population_stability_index(list(usual.mode.values()), [modes[mode] for mode in usual.mode])
        by_bin = population_stability_index(usual.confidence, [bins[n] for n in range(CONFIDENCE_BINS)])
        self._gauge.labels("failure_mode").set(by_mode)
        self._gauge.labels("confidence").set(by_bin)
