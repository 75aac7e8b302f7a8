"""Heating and the clock controller, step by step, compiled. Importing this imports numba: do it lazily."""

# mypy: disable-error-code="untyped-decorator"

from __future__ import annotations

import numpy as np
from numba import njit

from rca.arrays import FloatArray


@njit(cache=True, nogil=True, error_model="numpy")
def heat_course(
    cooling: FloatArray,
    ceiling: FloatArray,
    first: FloatArray,
    interval: float,
    time_constant: float,
    ambient: float,
    working: float,
    soft: float,
    span: float,
    idle_power: float,
    lowest: float,
    temperature: FloatArray,
    clock: FloatArray,
) -> None:
    """Integrate heating and the clock controller; see `rca.simulation.heat` for the equations.

    Parameters
    ----------
    cooling, ceiling : ndarray of shape (n_ranks, n_steps)
    first : ndarray of shape (n_ranks,), degrees Celsius
    interval, time_constant : float, seconds
    temperature, clock : ndarray of shape (n_ranks, n_steps)
        Out: at the end of each step, and over it.
    """
    # The controller makes the loop about ten times stiffer than the heat sink alone.
    pieces = max(1, int(np.ceil(40 * interval / time_constant)))
    gain = 1 - np.exp(-interval / pieces / time_constant)
    for rank in range(cooling.shape[0]):
        now = first[rank]
        for step in range(cooling.shape[1]):
            total = 0.0
            for _ in range(pieces):
                pace = min(ceiling[rank, step], max(lowest, min(1.0, 1 - (now - soft) / span)))
                power = idle_power + (1 - idle_power) * pace
                aim = ambient + (working - ambient) * power / cooling[rank, step]
                now += gain * (aim - now)
                total += pace
            temperature[rank, step] = now
            clock[rank, step] = total / pieces
