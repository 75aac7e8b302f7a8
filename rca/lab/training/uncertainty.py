"""Members of ``heads.json`` about uncertainty: prediction sets, familiar ranges, shares of answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rca.arrays import FloatArray, IntArray
from rca.classify.classifier import acts_on_all
from rca.classify.head import Head
from rca.classify.preconditions import alarm_thresholds, shows_slowness
from rca.classify.uncertainty import CONFIDENCE_BINS, confidence_bin
from rca.features import WINDOW_FEATURES
from rca.lab.training.conformal import fit_sets
from rca.lab.training.corpus import Corpus
from rca.lab.training.out_of_distribution import fit_familiarity
from rca.lab.training.split import mask


def fit_doubt(corpus: Corpus, heads: Mapping[str, Head], thresholds: Mapping[str, float]) -> dict[str, Any]:
    """Prediction sets, familiar ranges, usual answers: `rca.classify.uncertainty.Doubt`."""
    answers = fit_answers(corpus, heads, thresholds)
    return {
        **({"answers": answers} if answers else {}),
        "sets": fit_sets(corpus, heads),
        "familiarity": fit_familiarity(corpus),
    }


def fit_answers(corpus: Corpus, heads: Mapping[str, Head], thresholds: Mapping[str, float]) -> dict[str, Any]:
    """The member ``answers`` of ``heads.json`` (`AnswerShares`); empty if no window is held out.

    Parameters
    ----------
    heads : mapping of str to Head
        Fitted and calibrated on other parts of the corpus.
    thresholds : mapping of str to float
        Of the bundle: see `rca.classify.preconditions.alarm_thresholds`.
    """
    held = mask(corpus.part, "validation")
    weights = corpus.weight[held]
    if not weights.sum() > 0:
        return {}
    head = heads["mode"]
    chances = head.probabilities(corpus.window[held])
    whole = acts_on_all(heads["scope"], corpus.window[held])
    alarm = alarm_thresholds(thresholds, corpus.window[held], whole)
    said = _said(chances, corpus.window[held], head.classes, alarm)
    sure = chances[np.arange(said.size), said]
    bins = np.array([confidence_bin(float(chance)) for chance in sure])
    total = weights.sum()
    return {
        "mode": {
            name: float(weights[said == place].sum() / total) for place, name in enumerate(head.classes)
        },
        "confidence": [float(weights[bins == place].sum() / total) for place in range(CONFIDENCE_BINS)],
    }


def _said(chances: FloatArray, windows: FloatArray, classes: Sequence[str], alarm: FloatArray) -> IntArray:
    """Column of the failure mode that a diagnosis names, as `Classifier` decides."""
    healthy = classes.index("healthy")
    faults = chances.copy()
    faults[:, healthy] = -1.0
    worst = faults.argmax(axis=1)
    suspicion = 1.0 - chances[:, healthy]
    steps = np.rint(np.exp2(windows[:, WINDOW_FEATURES.index("log2_steps")]))
    calm = suspicion < alarm
    calm |= (worst == classes.index("fail_slow")) & ~shows_slowness(steps, suspicion)
    return np.where(calm, healthy, worst)
