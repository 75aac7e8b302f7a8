"""Waiting inside a phase is not slowness either: an early rank is not to blame for how long it took."""

from __future__ import annotations

import numpy as np
import pytest
from hand_made import blamed

import rca
from rca.lab.simulation import Fault, PhaseAccounting, SimulationScenario, Telemetry, Workload, simulate
from rca.lab.simulation.exporters import EXPORTERS
from rca.whatif import what_if
from rca.whatif.phases.phase_analysis import HIDDEN_WAITS
from rca.window.job import Parallelism

VICTIM = 5


def window(**phase_accounting: object) -> rca.Window:
    """A throttled GPU in a tensor group of four (ranks 4 to 7), timed in a way that blurs it."""
    scenario = SimulationScenario(
        seed=11,
        dialect="mixed",
        parallelism=Parallelism(data=4, tensor=4),
        ranks_per_node=4,
        workload=Workload(
            forward_seconds=0.25, backward_seconds=0.5, transfer_seconds=0.2, launch_seconds=0.12
        ),
        faults=(
            Fault(
                cause="gpu_throttling", ranks=(VICTIM,), nodes=(1,), severity=0.8, first_step=20, last_step=50
            ),
        ),
        telemetry=Telemetry(exporters=tuple(EXPORTERS), phase_accounting=PhaseAccounting(**phase_accounting)),
    )
    return simulate(scenario).window


@pytest.mark.parametrize("phase_accounting", [{}, {"batch_shared": True}, {"tensor_waits_inside": True}])
def test_the_slow_member_of_a_tensor_group_is_named_and_no_mate(phase_accounting: dict[str, bool]) -> None:
    found = rca.diagnose(window(**phase_accounting))
    assert found.failure_mode == "fail_slow"
    assert blamed(found) == {VICTIM}
    assert found.causes[0].cause == "gpu_throttling"


@pytest.mark.parametrize("phase_accounting", [{"batch_shared": True}, {"tensor_waits_inside": True}])
def test_the_cost_does_not_depend_on_the_timers(phase_accounting: dict[str, bool]) -> None:
    plain, blurred = rca.diagnose(window()).causes[0], rca.diagnose(window(**phase_accounting)).causes[0]
    assert blurred.seconds_per_step == pytest.approx(plain.seconds_per_step, rel=0.25)


def test_the_replay_sees_the_same_waiting_and_says_so() -> None:
    """With the exchange inside the backward pass everybody's backward is as long as the last rank's."""
    plain, blurred = what_if(window()), what_if(window(exchange_in="backward"))
    for found in (plain, blurred):
        assert int(np.argmax(found.workers.slowdown(found.ideal))) == VICTIM
    assert HIDDEN_WAITS in blurred.notes
    assert HIDDEN_WAITS not in plain.notes
