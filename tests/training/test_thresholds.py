"""The false-alarm threshold keeps to its budget with confidence, and asks the impossible of nobody."""

from __future__ import annotations

import numpy as np
import pytest

from rca.training.thresholds import FALSE_ALARM_BUDGET, _alarm


def chances(n: int, loud: int) -> np.ndarray:
    """`n` innocent windows, of which `loud` look 0.8 faulty."""
    return np.where(np.arange(n) < loud, 0.8, 0.1)


@pytest.mark.parametrize(("n", "loud", "expected"), [(2000, 4, 0.30), (2000, 60, 0.81), (400, 1, 0.81)])
def test_the_upper_bound_of_the_rate_decides(n: int, loud: int, expected: float) -> None:
    assert loud / n <= FALSE_ALARM_BUDGET or expected > 0.8
    assert _alarm(chances(n, loud), np.ones(n, dtype=bool)) == expected


def test_a_small_validation_set_asks_for_no_alarm_at_all() -> None:
    """Forty windows cannot prove one per cent; they can still tell 0.8 from 0.1."""
    assert _alarm(chances(40, 0), np.ones(40, dtype=bool)) == 0.30
    assert _alarm(chances(40, 1), np.ones(40, dtype=bool)) == 0.81


def test_guilty_windows_raise_no_false_alarm() -> None:
    assert _alarm(chances(400, 100), np.arange(400) >= 100) == 0.30
