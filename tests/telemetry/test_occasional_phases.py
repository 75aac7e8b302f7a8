"""Phases that most steps do not have: who leaves them out there means zero, who writes zeros does not."""

from __future__ import annotations

import numpy as np
from telemetry_windows import steps, window

from rca.telemetry.phases import PhaseArrays


def told(name: str, values: list[float | None]) -> list[float]:
    """The phase as arrays have it, of two ranks and two steps."""
    return PhaseArrays.from_window(window(steps=steps(**{name: values}))).phase(name).ravel().tolist()


def test_a_checkpoint_written_where_it_happened_is_zero_elsewhere() -> None:
    assert told("checkpoint_seconds", [None, 3.0, None, None]) == [0.0, 3.0, 0.0, 0.0]


def test_what_was_not_measured_beside_zeros_stays_unknown() -> None:
    np.testing.assert_array_equal(told("gc_seconds", [0.0, 3.0, None, 0.0]), [0.0, 3.0, np.nan, 0.0])


def test_a_phase_of_every_step_is_unknown_where_it_is_missing() -> None:
    np.testing.assert_array_equal(told("forward_seconds", [0.4, None, 0.4, 0.4]), [0.4, np.nan, 0.4, 0.4])
