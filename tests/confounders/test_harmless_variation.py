"""What only looks like a fault: odd counters, honest noise, jobs that change as a whole, jobs that end."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hand_made import Exported, exported

import rca
from rca.features import extract
from rca.lab.simulation import Benign, HarmlessSignal, SimulationScenario, Telemetry, Workload, simulate
from rca.lab.simulation.exporters import EXPORTERS
from rca.window.job import Parallelism
from tests.for_each import for_each

ODDITIES = {
    "a hot GPU at full clock": Exported("DCGM_FI_DEV_GPU_TEMP", [[60.0]] * 3 + [[89.0]] + [[61.0]] * 4),
    "some corrected memory errors": Exported(
        "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", [[0.0]] * 3 + [[3.0]] + [[0.0]] * 4, counter=True
    ),
    "a busy neighbour without effect": Exported("node_load1", [[1.0], [40.0], [1.0], [1.0]], scope="node"),
    "retransmissions without effect": Exported(
        "node_netstat_Tcp_RetransSegs", [[1.0], [60.0], [1.0], [1.0]], scope="node", counter=True
    ),
    "busy disks without effect": Exported(
        "node_pressure_io_waiting_seconds_total", [[0.0], [0.6], [0.0], [0.0]], scope="node", counter=True
    ),
}


@for_each("oddity", ODDITIES.values(), ids=ODDITIES)
def test_a_signal_without_a_cost_is_no_fault_but_a_late_rank_is(make_window, oddity: Exported) -> None:
    diagnosis = rca.diagnose(exported(make_window(), oddity))
    assert (diagnosis.failure_mode, diagnosis.stragglers) == ("healthy", [])
    late = rca.diagnose(exported(make_window(late={3: 0.05}), oddity))
    assert late.failure_mode == "fail_slow"
    assert [each.ranks for each in late.stragglers] == [[3]]


@for_each("kind", get_args(HarmlessSignal.model_fields["kind"].annotation))
def test_simulated_harmless_signals_blame_nobody(kind: str) -> None:
    scenario = SimulationScenario(
        seed=1,
        dialect="mixed",
        workload=Workload(forward_seconds=0.25, backward_seconds=0.5, transfer_seconds=0.2),
        benign=Benign(harmless=(HarmlessSignal(kind=kind, rank=3),)),
        telemetry=Telemetry(exporters=tuple(EXPORTERS)),
    )
    assert rca.diagnose(simulate(scenario).window).failure_mode == "healthy"


@for_each("seed", range(4))
@for_each("n_ranks", [2, 8, 64])
@for_each("noise", [0.0005, 0.002])
def test_honest_noise_blames_nobody(make_window, n_ranks: int, noise: float, seed: int) -> None:
    window = make_window(n_ranks, noise=noise, seed=seed, ranks_per_node=max(1, min(8, n_ranks // 4)))
    diagnosis = rca.diagnose(window)
    assert (diagnosis.failure_mode, diagnosis.stragglers) == ("healthy", [])


@pytest.mark.parametrize("n_ranks", [8, 64])
@pytest.mark.parametrize("noise", [0.0005, 0.002])
def test_a_late_rank_is_found_in_the_same_noise(make_window, n_ranks: int, noise: float) -> None:
    window = make_window(n_ranks, noise=noise, late={1: 0.03}, ranks_per_node=max(1, min(8, n_ranks // 4)))
    diagnosis = rca.diagnose(window)
    assert diagnosis.failure_mode == "fail_slow"
    assert [each.ranks for each in diagnosis.stragglers] == [[1]]


@for_each("n_ranks", [2, 8, 64])
@for_each("seed", range(6))
def test_very_noisy_ranks_blame_nobody_in_particular(make_window, n_ranks: int, seed: int) -> None:
    """Each rank's phases jump by 4 ms at random: the last rank changes from step to step."""
    diagnosis = rca.diagnose(make_window(n_ranks, noise=0.004, seed=seed))
    assert [each for each in diagnosis.stragglers if each.scope != "job"] == []


@pytest.mark.parametrize("steps", [slice(10, 11), slice(20, 22)], ids=["one step", "two steps"])
def test_a_single_hiccup_is_not_a_straggler(make_window, steps: slice) -> None:
    assert rca.diagnose(make_window(n_steps=60, late={4: 0.05}, steps=steps)).failure_mode == "healthy"


@for_each("n_ranks", [2, 8, 64])
@for_each("seconds", [0.01, 0.03, 0.1])
def test_a_job_slow_on_all_ranks_alike_stays_healthy(make_window, n_ranks: int, seconds: float) -> None:
    """Nobody straggles; that the job became slower shows in `versus_own_past`."""
    window = make_window(
        n_ranks,
        late=dict.fromkeys(range(n_ranks), seconds),
        steps=slice(20, None),
        ranks_per_node=max(1, n_ranks // 4),
    )
    diagnosis = rca.diagnose(window)
    assert (diagnosis.failure_mode, diagnosis.stragglers) == ("healthy", [])
    assert diagnosis.slowdown.versus_own_past == pytest.approx(1 + seconds / 0.113, rel=0.05)


def test_a_warm_up_is_not_a_fault(make_window) -> None:
    """First steps compile and connect, on one rank longer than on the others."""
    late = dict.fromkeys(range(8), 1.5) | {3: 1.9}
    assert rca.diagnose(make_window(late=late, steps=slice(0, 2))).failure_mode == "healthy"


@for_each("n_ranks", [2, 8, 64])
@for_each("silence", [0.0, 0.05, 0.11], ids=["at once", "half a step", "a step"])
def test_a_job_that_is_cut_by_the_window_is_not_stopped(make_window, n_ranks: int, silence: float) -> None:
    window = make_window(n_ranks)
    job = window.job.model_copy(update={"end": window.job.end - 0.1 + silence + 1e-3})
    assert rca.diagnose(rca.Window.from_tables(job, window.steps)).failure_mode == "healthy"


@pytest.mark.parametrize("lagging", [1, 4])
def test_rows_that_arrive_late_are_not_a_stopped_rank(make_window, lagging: int) -> None:
    """The reporters of some ranks had not yet sent their last row when the window was taken."""
    window = make_window()
    last = pc.equal(window.steps["step"], 39)
    steps = window.steps.filter(pc.invert(pc.and_(last, pc.less(window.steps["rank"], lagging))))
    assert rca.diagnose(rca.Window.from_tables(window.job, steps)).failure_mode == "healthy"


def test_a_step_that_all_have_begun_is_not_a_hang(make_window) -> None:
    """The window ends in the middle of a backward: no rank's last row is finished."""
    window = make_window(n_steps=41)
    step = window.steps["step"].to_numpy()
    begun = step == 40
    columns = {name: window.steps[name] for name in window.steps.column_names}
    for name in (
        "backward_seconds",
        "communication_wait_seconds",
        "communication_transfer_seconds",
        "optimizer_seconds",
        "step_seconds",
    ):
        columns[name] = pa.array(np.where(begun, np.nan, window.steps[name].to_numpy()))
    end = float(window.steps["start_time"].to_numpy()[begun].max() + 0.05)
    job = window.job.model_copy(update={"end": end})
    assert rca.diagnose(rca.Window.from_tables(job, pa.table(columns))).failure_mode == "healthy"


@pytest.mark.parametrize("dialect", ["cpu_testbed", "mixed"])
@pytest.mark.parametrize("events", [True, False], ids=["exits reported", "no events"])
def test_a_job_that_ends_normally_is_not_fail_stop(dialect: str, events: bool) -> None:
    """Every rank finished the last step and left with exit code 0; then nothing happens any more."""
    for seed in range(3):
        scenario = SimulationScenario(
            seed=seed,
            dialect=dialect,
            parallelism=Parallelism(data=8),
            telemetry=Telemetry(exporters=tuple(EXPORTERS), ending="finished", events=events),
        )
        assert rca.diagnose(simulate(scenario).window).failure_mode == "healthy"


def test_exit_events_with_code_0_are_no_crash(make_window) -> None:
    window = make_window()
    end = window.job.end
    job = window.job.model_copy(update={"end": end + 3.0})
    events = pa.table(
        {
            "time": [end] * 8,
            "node": [f"node-{rank // 2}" for rank in range(8)],
            "rank": pa.array(range(8), pa.int32()),
            "kind": ["process_exit"] * 8,
            "code": ["0"] * 8,
            "message": ["exited"] * 8,
        }
    )
    window = rca.Window.from_tables(job, window.steps, None, events)
    assert rca.diagnose(window).failure_mode == "healthy"


def test_an_exit_that_the_job_survived_does_not_excuse_its_silence(make_window) -> None:
    """Everybody exited with code 0 early on, was started again, and then it hung: no likelier healthy."""
    window = make_window()
    begin, end = window.job.start, window.job.end
    events = pa.table(
        {
            "time": [begin + 0.5] * 8 + [begin + 0.6] * 8,
            "node": [f"node-{rank // 2}" for rank in range(8)] * 2,
            "rank": pa.array([*range(8)] * 2, pa.int32()),
            "kind": ["process_exit"] * 8 + ["restart"] * 8,
            "code": ["0"] * 16,
            "message": [""] * 16,
        }
    )
    job = window.job.model_copy(update={"end": end + 100.0})
    hung = rca.Window.from_tables(job, window.steps, None, events)
    answer = rca.diagnose(hung)
    untold = rca.diagnose(rca.Window.from_tables(job, window.steps, None, None))
    assert answer.failure_mode_probability["fail_stop"] >= untold.failure_mode_probability["fail_stop"]
    assert answer.failure_mode in {"fail_stop", untold.failure_mode}
    assert extract(hung).job_end.steps_since_progress > 50
