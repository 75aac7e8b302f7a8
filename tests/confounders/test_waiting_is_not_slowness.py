"""Confounder 1: one slow rank makes every rank's step long, and the others spend it waiting."""

from __future__ import annotations

import numpy as np
import pytest
from hand_made import blamed

import rca
from rca.window.times.phases import PhaseArrays
from tests.for_each import for_each

WHOLE, MIDDLE, END = slice(None), slice(15, 30), slice(20, None)


@for_each("steps", [WHOLE, MIDDLE, END], ids=["always", "for a while", "from then on"])
@for_each("seconds", [0.012, 0.03, 0.2], ids=["a tenth", "a quarter", "twice the step"])
@for_each("n_ranks", [2, 8, 64])
def test_waiting_ranks_are_not_blamed(make_window, n_ranks: int, seconds: float, steps: slice) -> None:
    slow = n_ranks - 1
    window = make_window(
        n_ranks, late={slow: seconds}, steps=steps, ranks_per_node=max(1, min(8, n_ranks // 4))
    )
    diagnosis = rca.diagnose(window)
    if (n_ranks, steps) == (2, WHOLE) and seconds < 0.2:
        # A little, from the first step on, beside a single peer: too little to alarm, too much to acquit.
        assert blamed(diagnosis) <= {slow}
        assert diagnosis.failure_mode == "fail_slow" or diagnosis.abstained
        return
    assert diagnosis.failure_mode == "fail_slow"
    assert blamed(diagnosis) == {slow}


def test_the_rank_with_the_shortest_communication_is_the_suspect(make_window) -> None:
    """Ranked by communication time, seven healthy ranks would come before the slow one."""
    window = make_window(late={5: 0.06})
    phases = PhaseArrays.from_window(window)
    communication = phases.phase("communication_wait_seconds") + phases.phase(
        "communication_transfer_seconds"
    )
    assert communication.mean(axis=1).argmin() == 5
    assert np.ptp(phases.phase("step_seconds"), axis=0).max() < 1e-9
    assert blamed(rca.diagnose(window)) == {5}


@pytest.mark.parametrize(
    "phase", ["data_loading_seconds", "host_to_device_seconds", "backward_seconds", "optimizer_seconds"]
)
def test_whatever_makes_a_rank_late_its_peers_are_not_blamed(make_window, phase: str) -> None:
    assert blamed(rca.diagnose(make_window(late={3: 0.04}, phase=phase))) == {3}


def test_waiting_ranks_are_not_blamed_when_waiting_is_not_told_from_transfer(make_window) -> None:
    window = make_window(late={6: 0.04})
    whole = PhaseArrays.from_window(window)
    together = (
        whole.phase("communication_wait_seconds") + whole.phase("communication_transfer_seconds")
    ).ravel()
    steps = window.steps.drop_columns(["communication_wait_seconds", "communication_transfer_seconds"])
    unsplit = rca.Window.from_tables(window.job, steps.append_column("communication_seconds", [together]))
    assert blamed(rca.diagnose(unsplit)) == {6}


def test_with_step_times_alone_nobody_is_blamed(make_window) -> None:
    """All ranks' steps are equally long: naming one of them would be a guess."""
    window = make_window(late={6: 0.05}, steps=MIDDLE, columns=("rank", "step", "start_time", "step_seconds"))
    assert not [each for each in rca.diagnose(window).stragglers if each.scope != "job"]


@for_each("n_ranks", [2, 4, 8, 64])
@for_each("steps", [WHOLE, END], ids=["always", "from then on"])
def test_what_the_slow_rank_costs_is_what_it_is_late(make_window, n_ranks: int, steps: slice) -> None:
    window = make_window(n_ranks, late={1: 0.03}, steps=steps)
    share = 1.0 if steps == WHOLE else 0.5
    assert rca.diagnose(window).slowdown.seconds_per_step == pytest.approx(0.03 * share, rel=0.2)
