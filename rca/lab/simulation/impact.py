"""What the faults of a simulated job cost: the job runs again without some of them, with the same noise."""

from __future__ import annotations

from typing import Any

import numpy as np

from rca.arrays import FloatArray, IntArray
from rca.lab.simulation.faults import FAULTS, apply_faults
from rca.lab.simulation.noise import Noise, draw_noise
from rca.lab.simulation.scenario import Fault, SimulationScenario
from rca.lab.simulation.timing import run_steps

#: Least slowdown that users would see.
VISIBLE_SLOWDOWN = 0.05


class Runs:
    """Step times of a job with some of its faults; the job runs once for each set of faults.

    Parameters
    ----------
    noise : Noise
        Of the scenario; it does not depend on the faults.
    actual, calm : ndarray of shape (n_steps,), seconds, optional
        Step times with all faults and without any, where they are known.
    """

    def __init__(
        self,
        scenario: SimulationScenario,
        noise: Noise,
        *,
        actual: FloatArray | None = None,
        calm: FloatArray | None = None,
    ) -> None:
        self.scenario = scenario
        self.everything = tuple(range(len(scenario.faults)))
        self.noise = noise
        given = (((), calm), (self.everything, actual))
        self._known = {faults: seconds for faults, seconds in given if seconds is not None}

    @property
    def actual(self) -> FloatArray:
        """Step times with all faults, shape (n_steps,), seconds."""
        return self.of(self.everything)

    @property
    def calm(self) -> FloatArray:
        """Step times without faults, shape (n_steps,), seconds."""
        return self.of(())

    def of(self, faults: tuple[int, ...]) -> FloatArray:
        """Step times with these faults only, shape (n_steps,), seconds.

        Parameters
        ----------
        faults : tuple of int
            Positions in the scenario, ascending.
        """
        if faults not in self._known:
            timing = run_steps(self.scenario, apply_faults(self.scenario, faults), self.noise)
            self._known[faults] = timing.step_seconds
        return self._known[faults]


def impacts(runs: Runs) -> list[dict[str, float]]:
    """Cost of each slow fault: the job runs again without it, and with it alone.

    Returns
    -------
    list of dict
        Per fault: ``seconds_per_step``, ``alone_seconds_per_step`` and ``ratio``. The first is the mean step
        with all faults minus that without this one, after the warm-up. The second compares this fault alone
        with none. The ratio is the larger of the two step-time ratios over the steps in which the fault acts.
        The two costs differ where ranks wait for both faults at once.
    """
    scenario = runs.scenario
    steps = slice(*_counted(scenario))
    results = []
    for index, fault in enumerate(scenario.faults):
        if FAULTS[fault.cause].straggler_type is None:
            results.append({"seconds_per_step": 0.0, "alone_seconds_per_step": 0.0, "ratio": 1.0})
            continue
        without = runs.of(tuple(other for other in runs.everything if other != index))
        alone = runs.of((index,))
        acting = _acting(fault, scenario)
        ratio = max(_ratio(runs.actual, without, acting), _ratio(alone, runs.calm, acting))
        results.append(
            {
                "seconds_per_step": float((runs.actual - without)[steps].mean()),
                "alone_seconds_per_step": float((alone - runs.calm)[steps].mean()),
                "ratio": ratio,
            }
        )
    return results


def total_impact(runs: Runs) -> dict[str, Any] | None:
    """Step time with and without all slow faults, over the steps in which any of them acts."""
    scenario = runs.scenario
    slow = [fault for fault in scenario.faults if FAULTS[fault.cause].straggler_type is not None]
    if not slow:
        return None
    acting = np.unique(np.concatenate([_acting(fault, scenario) for fault in slow]))
    before, during = float(runs.calm[acting].mean()), float(runs.actual[acting].mean())
    visible = during / before - 1 >= VISIBLE_SLOWDOWN
    return {"step_before_s": before, "step_during_s": during, "ratio": during / before, "visible": visible}


def slowdown(
    scenario: SimulationScenario, noise: Noise | None = None, *, calm: FloatArray | None = None
) -> float:
    """Ratio of the mean step time with the scenario's faults to that without, in the steps where they act.

    Pass `noise`, and the step times `calm` without faults, if they are known: faults do not change them.
    """
    noise = draw_noise(scenario) if noise is None else noise
    impact = total_impact(Runs(scenario, noise, calm=calm))
    return 1.0 if impact is None else float(impact["ratio"])


def stop_step_of(scenario: SimulationScenario) -> int | None:
    """First step that a stopping fault does not let end; None if the job does not stop."""
    stops = [fault.first_step for fault in scenario.faults if FAULTS[fault.cause].straggler_type is None]
    return min(stops, default=None)


def _counted(scenario: SimulationScenario) -> tuple[int, int]:
    """First and past-the-last step of the averages of costs."""
    first, end = scenario.steps_with_rows(stop_step_of(scenario))
    end = max(end, 1)
    return min(max(first, scenario.benign.warmup_steps), end - 1), end


def _acting(fault: Fault, scenario: SimulationScenario) -> IntArray:
    first, end = _counted(scenario)
    last = scenario.n_steps - 1 if fault.last_step is None else fault.last_step
    steps = np.arange(max(first, fault.first_step), min(end, last + 1))
    return steps if steps.size else np.arange(first, end)


def _ratio(slow: FloatArray, calm: FloatArray, steps: IntArray) -> float:
    return float(slow[steps].mean() / calm[steps].mean())
