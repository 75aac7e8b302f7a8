"""Everything a bundle learns about the limits of its own answers, as optional members of ``heads.json``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rca.classify.heads import Head
from rca.training.answers import fit_answers
from rca.training.conformal import fit_sets
from rca.training.corpus import Corpus
from rca.training.familiarity import fit_familiarity, healthy_medians


def fit_doubt(corpus: Corpus, heads: Mapping[str, Head], thresholds: Mapping[str, float]) -> dict[str, Any]:
    """Prediction sets, familiarity, healthy references, usual answers; see `rca.classify.doubt.Doubt`."""
    answers = fit_answers(corpus, heads, thresholds)
    return {
        **({"answers": answers} if answers else {}),
        "sets": fit_sets(corpus, heads),
        "familiarity": fit_familiarity(corpus),
        "healthy": healthy_medians(corpus),
    }
