"""Faults that a first one hides while it acts: the job is asked again with the first suspects mended."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from rca.classify.classifier import Classification, Classifier, named_ranks
from rca.classify.mended import Mending
from rca.features import FeatureSet
from rca.telemetry.window import Window


def with_hidden_faults(
    found: Classification,
    window: Window,
    features: FeatureSet,
    classifier: Classifier,
    priors: Mapping[str, float] | None,
    node_odds: Mapping[str, float] | None,
) -> Classification:
    """The answer, with what is said for sure of the same job without the lateness of its suspects.

    Parameters
    ----------
    found : Classification
    window : Window
    features : FeatureSet
        Of the window.
    classifier : Classifier
    priors, node_odds
        As in `Classifier.classify`.
    """
    if not _can_be_mended(found, features):
        return found
    mending = Mending.of(features, named_ranks(found.suspects))
    if not mending.leaves_it_slow():
        return found
    return classifier.with_left_over(found, features, mending.mended(window), priors, node_odds)


def _can_be_mended(found: Classification, features: FeatureSet) -> bool:
    """Whether some of a slow job's ranks are late in work that was timed, and others are there to compare."""
    if found.mode != "fail_slow" or not found.suspects or features.comparison.slowed is not None:
        return False
    some = len(named_ranks(found.suspects)) < features.topology.n_ranks
    return some and bool(np.isfinite(features.work.own).any())
