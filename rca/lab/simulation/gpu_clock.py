"""Limits of a GPU's clock: temperature, power, a brake.

Notes
-----
A GPU is one heat store. Let ``p`` be its power relative to full load, and ``c`` its cooling relative to a
healthy GPU. Its temperature approaches ``ambient + (working - ambient) p / c`` with the heat sink's time
constant. Power is ``idle + (1 - idle) clock``. From `THROTTLE_DEGREES` on the controller lowers the clock in
proportion to the temperature. A badly cooled GPU therefore heats up until both agree.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from rca.arrays import FloatArray
from rca.lab.simulation.resources import Resources
from rca.lab.simulation.scenario import SimulationScenario

AMBIENT_DEGREES, WORKING_DEGREES, THROTTLE_DEGREES = 30.0, 68.0, 80.0
"""Degrees Celsius: air, a healthy GPU under load, where the controller starts to lower the clock."""
SPAN_DEGREES = 14.0
"""Degrees above `THROTTLE_DEGREES` at which the clock would be zero."""
IDLE_POWER = 0.25
LOWEST_CLOCK = 0.05
# A GPU reports a reason if its clock is at least this share below the requested one.
REPORTED_CLOCK_LOSS = 0.01
WORST_CLOCK_STRETCH = 2.5


def cooling_for(clock: npt.ArrayLike) -> FloatArray:
    """Cooling under which a loaded GPU settles at this clock."""
    clock = np.asarray(clock, dtype=np.float64)
    settled = THROTTLE_DEGREES + SPAN_DEGREES * (1 - clock)
    return np.asarray((WORKING_DEGREES - AMBIENT_DEGREES) * power_at(clock) / (settled - AMBIENT_DEGREES))


def power_at(clock: npt.ArrayLike) -> FloatArray:
    """Power under load at this clock, relative to full clock."""
    return np.asarray(IDLE_POWER + (1 - IDLE_POWER) * np.asarray(clock, dtype=np.float64))


def apply_clock_limits(resources: Resources, scenario: SimulationScenario) -> None:
    """Apply the clock controllers of all GPUs to the resources, in place.

    Steps count with their healthy length, and GPUs as always loaded. Exporters show waiting GPUs cooler.
    """
    by_power = np.clip((resources.power_limit - IDLE_POWER) / (1 - IDLE_POWER), LOWEST_CLOCK, 1.0)
    ceiling = np.minimum(resources.clock_ceiling, by_power)
    clock = ceiling.copy()
    warm = np.flatnonzero((resources.cooling < 1).any(axis=1))
    if warm.size:
        clock[warm], resources.heat[warm] = _clock_and_heat(resources.cooling[warm], ceiling[warm], scenario)
    if warm.size or (ceiling < 1).any():
        resources.thermal[:] = _share_held_back(clock / ceiling)
        resources.power_cap[:] = _share_held_back(ceiling)
        resources.clock[:] = clock
        resources.compute_stretch /= clock


def _clock_and_heat(
    cooling: FloatArray, ceiling: FloatArray, scenario: SimulationScenario
) -> tuple[FloatArray, FloatArray]:
    """Clock, and degrees above the working temperature; the window begins in a steady state."""
    from rca.lab.simulation.kernels import heat_trajectory

    rise = (WORKING_DEGREES - AMBIENT_DEGREES) / cooling[:, 0]
    free = AMBIENT_DEGREES + rise * power_at(ceiling[:, 0])
    loop = rise * (1 - IDLE_POWER) / SPAN_DEGREES
    held = (AMBIENT_DEGREES + rise + loop * THROTTLE_DEGREES) / (1 + loop)
    first = np.where(held > THROTTLE_DEGREES + SPAN_DEGREES * (1 - ceiling[:, 0]), held, free)
    temperature, clock = np.empty_like(cooling), np.empty_like(cooling)
    heat_trajectory(
        np.ascontiguousarray(cooling), np.ascontiguousarray(ceiling), first,
        scenario.expected_step_seconds, scenario.fleet.cooling_seconds, AMBIENT_DEGREES, WORKING_DEGREES,
        THROTTLE_DEGREES, SPAN_DEGREES, IDLE_POWER, LOWEST_CLOCK, temperature, clock,
    )  # fmt: skip
    return clock, temperature - WORKING_DEGREES


def _share_held_back(clock: FloatArray) -> FloatArray:
    """Share of time in which the controller limits a GPU that reaches only this clock."""
    depth = np.clip((1 / clock - 1) / WORST_CLOCK_STRETCH, 0.0, 1.0) ** 0.625
    return np.where(clock < 1 - REPORTED_CLOCK_LOSS, 0.4 + 0.6 * depth, 0.0)
