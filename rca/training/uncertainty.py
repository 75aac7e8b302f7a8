"""Everything a bundle learns about the limits of its own answers, as optional members of ``heads.json``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rca.classify.head import Head
from rca.training.answer_distribution import fit_answers
from rca.training.conformal import fit_sets
from rca.training.corpus import Corpus
from rca.training.out_of_distribution import fit_familiarity, healthy_medians


def fit_doubt(corpus: Corpus, heads: Mapping[str, Head], thresholds: Mapping[str, float]) -> dict[str, Any]:
    """Prediction sets, familiar ranges, usual answers: `rca.classify.uncertainty.Doubt`."""
    answers = fit_answers(corpus, heads, thresholds)
    return {
        **({"answers": answers} if answers else {}),
        "sets": fit_sets(corpus, heads),
        "familiarity": fit_familiarity(corpus),
        "healthy": healthy_medians(corpus),
    }
