"""The shipped bundle with limits of its own made up, and a job whose fabric is congested all along."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from fabrics import HOUR, fabric_window
from faults_in_turns import both  # noqa: F401 - a fixture
from made_up_uncertainty import OPEN, SETTLED

from rca.classify.conformal import PredictionSets
from rca.classify.uncertainty import Doubt
from rca.diagnosis.bundle import Bundle, baseline
from rca.window import Window
from tests.shifted_windows import shifted

Doubting = Callable[..., Bundle]


@pytest.fixture
def doubting() -> Doubting:
    """Build the shipped bundle with the given limits; without any it knows none."""

    def build(**limits: Any) -> Bundle:
        shipped = baseline()
        doubt = Doubt(**({"sets": None, "familiarity": None} | limits))
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


@pytest.fixture
def fabric(make_window: Callable[..., Window]) -> Callable[..., Window]:
    """Build a job by its transfer and whether its fabric is congested."""
    return partial(fabric_window, make_window)


@pytest.fixture
def before(fabric: Callable[..., Window]) -> Window:
    """The hour before, without congestion."""
    return shifted(fabric(0.008, congested=False), -HOUR)


@pytest.fixture
def congested(fabric: Callable[..., Window]) -> Window:
    """The same job, all of whose steps are congested alike."""
    return fabric(0.02, congested=True)
