"""The shipped bundle with limits of its own made up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from made_up_doubt import NOTHING_KNOWN, OPEN, SETTLED

from rca.classify.conformal import PredictionSets
from rca.classify.doubt import Doubt
from rca.diagnosis.bundle import Bundle, baseline

Doubting = Callable[..., Bundle]


@pytest.fixture
def doubting() -> Doubting:
    """Build the shipped bundle with the given limits; without any it knows none."""

    def build(**limits: Any) -> Bundle:
        shipped = baseline()
        doubt = Doubt(**({"sets": None, "familiarity": None, "healthy": NOTHING_KNOWN} | limits))
        return replace(shipped, classifier=replace(shipped.classifier, doubt=doubt))

    return build


@pytest.fixture
def settled() -> PredictionSets:
    """Only classes with half of the probability are plausible."""
    return PredictionSets(0.9, SETTLED)


@pytest.fixture
def undecided() -> PredictionSets:
    """Nothing is ever ruled out."""
    return PredictionSets(0.9, OPEN)
