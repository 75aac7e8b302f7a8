"""What limits a GPU's clock: its temperature, its power, a brake.

Notes
-----
A GPU is one heat store. With power ``p`` (relative to full load) and cooling ``c`` (relative to a healthy
one) its temperature goes to ``ambient + (working - ambient) p / c`` with the heat sink's time constant. Power
is ``idle + (1 - idle) clock``. From `SOFT` on the controller takes the clock down in proportion to the
temperature, so a GPU that is cooled too little heats up for a while and settles where both agree.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from rca.arrays import FloatArray
from rca.simulation.resources import Resources
from rca.simulation.scenario import Scenario

AMBIENT, WORKING, SOFT = 30.0, 68.0, 80.0
"""Degrees Celsius: air, a healthy GPU under load, where the controller steps in."""
SPAN = 14.0
"""Degrees above `SOFT` at which nothing of the clock would be left."""
IDLE_POWER = 0.25
LOWEST_CLOCK = 0.05
# A GPU whose clock is this much lower than asked for reports a reason.
NOTICED = 0.01
WORST_STRETCH = 2.5


def cooling_for(clock: npt.ArrayLike) -> FloatArray:
    """Cooling under which a loaded GPU settles at this clock."""
    clock = np.asarray(clock, dtype=np.float64)
    settled = SOFT + SPAN * (1 - clock)
    return np.asarray((WORKING - AMBIENT) * power_at(clock) / (settled - AMBIENT))


def power_at(clock: npt.ArrayLike) -> FloatArray:
    """Power under load at this clock, relative to full clock."""
    return np.asarray(IDLE_POWER + (1 - IDLE_POWER) * np.asarray(clock, dtype=np.float64))


def settle(resources: Resources, scenario: Scenario) -> None:
    """Let the controllers of all GPUs find their clocks, in place.

    Steps count with their healthy length, and a GPU as loaded throughout: how much cooler a waiting one is
    shows only in what is observed.
    """
    by_power = np.clip((resources.power_limit - IDLE_POWER) / (1 - IDLE_POWER), LOWEST_CLOCK, 1.0)
    ceiling = np.minimum(resources.clock_ceiling, by_power)
    clock = ceiling.copy()
    warm = np.flatnonzero((resources.cooling < 1).any(axis=1))
    if warm.size:
        clock[warm], resources.heat[warm] = _heated(resources.cooling[warm], ceiling[warm], scenario)
    if warm.size or (ceiling < 1).any():
        resources.thermal[:] = _held(clock / ceiling)
        resources.power_cap[:] = _held(ceiling)
        resources.clock[:] = clock
        resources.compute_stretch /= clock


def _heated(cooling: FloatArray, ceiling: FloatArray, scenario: Scenario) -> tuple[FloatArray, FloatArray]:
    """Clock, and degrees above the working temperature; the window begins in a steady state."""
    from rca.simulation.kernels import heat_course

    rise = (WORKING - AMBIENT) / cooling[:, 0]
    free = AMBIENT + rise * power_at(ceiling[:, 0])
    loop = rise * (1 - IDLE_POWER) / SPAN
    held = (AMBIENT + rise + loop * SOFT) / (1 + loop)
    first = np.where(held > SOFT + SPAN * (1 - ceiling[:, 0]), held, free)
    temperature, clock = np.empty_like(cooling), np.empty_like(cooling)
    heat_course(
        np.ascontiguousarray(cooling), np.ascontiguousarray(ceiling), first,
        scenario.expected_step_seconds, scenario.fleet.cooling_seconds, AMBIENT, WORKING, SOFT, SPAN,
        IDLE_POWER, LOWEST_CLOCK, temperature, clock,
    )  # fmt: skip
    return clock, temperature - WORKING


def _held(clock: FloatArray) -> FloatArray:
    """Share of time a controller holds back a GPU that reaches only this clock."""
    depth = np.clip((1 / clock - 1) / WORST_STRETCH, 0.0, 1.0) ** 0.625
    return np.where(clock < 1 - NOTICED, 0.4 + 0.6 * depth, 0.0)
