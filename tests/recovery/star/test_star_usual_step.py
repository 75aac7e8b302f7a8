"""The usual step follows lasting changes, and a straggler is clearly slower than the fastest worker."""

from __future__ import annotations

import numpy as np
import pytest

from rca.errors import InvalidInput
from rca.runtime.star.usual_step import is_straggler, usual_seconds


def test_the_usual_step_follows_a_lasting_change_and_ignores_one_pause() -> None:
    seconds = np.full((3, 30), 0.1)
    seconds[0, -1] = 5.0
    seconds[1, -6:] = 0.3
    seconds[2, -10:] = np.nan
    assert usual_seconds(seconds).tolist() == [0.1, 0.3, 0.1]
    assert np.isnan(usual_seconds(np.full((1, 4), np.nan))).all()


def test_a_straggler_is_more_than_a_fifth_slower_than_the_fastest() -> None:
    assert is_straggler(np.array([1.0, 1.2, 1.25, np.nan])).tolist() == [False, False, True, False]
    assert is_straggler(np.array([1.0, 1.2]), share=0.1).tolist() == [False, True]
    for wrong in ([np.nan], [], [0.0, 1.0]):
        with pytest.raises(InvalidInput, match="step time"):
            is_straggler(np.array(wrong))
