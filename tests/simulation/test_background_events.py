"""What healthy jobs go through, and what of a fault only its own rank, link or reader feels."""

from __future__ import annotations

import numpy as np
import pytest
from pydantic import ValidationError
from simulated import TESTBED, change, cluster_workload, fault, phase, scenario

from rca.lab.simulation import Benign, Telemetry, Workload, simulate
from rca.lab.simulation.faults import apply_faults
from rca.lab.simulation.healthy_job import Burst, HarmlessSignal
from rca.lab.simulation.impact import slowdown
from rca.lab.simulation.noise import draw_noise
from rca.lab.simulation.timing import run_steps

CALM = Benign(warmup_steps=0, hiccup_probability=0.0, copy_noise=0.0, loading_noise=0.0)
FIRST, LAST = 20, 50


def _run(drawn):
    return run_steps(drawn, apply_faults(drawn), draw_noise(drawn))


def _grown(seconds: np.ndarray) -> np.ndarray:
    """Mean during the usual fault over the mean before, per rank."""
    return seconds[:, FIRST + 5 : LAST].mean(axis=1) / seconds[:, 2:FIRST].mean(axis=1)


def _sharing(part: float) -> np.ndarray:
    load = Workload(copy_sharing=part, prefetch_steps=0)
    late = fault("data_loader_stall", severity=0.8)
    return _grown(_run(scenario(workload=load, benign=CALM, faults=(late,))).phases["host_to_device_seconds"])


def test_a_rank_that_copies_alone_has_the_whole_link():
    alone = _sharing(0.6)
    assert alone[2] == pytest.approx(0.4, abs=0.05)
    # Its neighbour on the node is spared as much; other nodes do not notice.
    assert alone[3] == pytest.approx(0.4, abs=0.05)
    np.testing.assert_allclose(np.delete(alone, [2, 3]), 1.0, atol=0.1)
    np.testing.assert_allclose(_sharing(0.0), 1.0, atol=1e-9)


def test_a_hiccup_falls_into_one_phase_and_rarely_into_the_backward():
    often = Benign(warmup_steps=0, hiccup_probability=0.5, hiccup_backward=0.1, noise=0.0, rank_offset=0.0)
    never = often.model_copy(update={"hiccup_probability": 0.0})
    restless, even = (_run(scenario(benign=each, seed=3)) for each in (often, never))
    extra = {
        name: restless.phases[f"{name}_seconds"] - even.phases[f"{name}_seconds"]
        for name in ("forward", "backward", "optimizer")
    }
    hit = {name: seconds > 1e-6 for name, seconds in extra.items()}
    assert not (hit["forward"] & hit["backward"]).any()
    assert hit["forward"].sum() > 3 * hit["backward"].sum() > 0
    assert restless.queued[hit["forward"]].min() > 0


def test_a_throttled_reader_is_slow_alone_and_its_disk_has_less_work():
    held = fault("storage_degradation", variant="throttle", ranks=(2,), nodes=(1,), severity=0.9)
    window = simulate(scenario(dialect="mixed", faults=(held,), benign=CALM)).window
    loading = _grown(phase(window, "data_loading_seconds"))
    assert loading[2] > 50
    assert np.delete(loading, 2).max() < 1.5
    start = window.job.start + 0.4
    starts = window.steps.filter(np.asarray(window.steps["rank"]) == 0)["start_time"].to_numpy() - start
    moments = [(starts[2], starts[FIRST]), (starts[FIRST + 5], starts[LAST])]
    pressed, busy = (
        [change(window, name, scope, start + first, start + last) for first, last in moments]
        for name, scope in (
            ("container_pressure_io_waiting_seconds_total", "rank"),
            ("node_disk_io_time_seconds_total", "node"),
        )
    )
    assert pressed[1][2] > 0.6
    assert pressed[1][3] < 0.1
    assert sum(busy[1].values()) < 0.8 * sum(busy[0].values())


def test_a_short_burst_of_a_neighbour_is_visible_and_healthy():
    visit = Burst(node=1, first_step=30, steps=3, level=0.85)
    visited = simulate(scenario(benign=CALM.model_copy(update={"bursts": (visit,)})))
    undisturbed = simulate(scenario(benign=CALM))
    assert visited.label["failure_mode"] == "healthy"
    longer = phase(visited.window, "forward_seconds") - phase(undisturbed.window, "forward_seconds")
    assert longer[2:4, 30:33].min() > 0
    assert np.delete(longer, [30, 31, 32], axis=1).max() < 1e-9
    assert np.delete(longer, [2, 3], axis=0).max() < 1e-9


def test_cold_caches_delay_the_first_batches_of_all_ranks():
    cold = CALM.model_copy(update={"slow_batches": 6, "slow_batch_factor": 0.8})
    drawn = scenario(benign=cold, workload=Workload(prefetch_steps=0))
    loading, usual = _run(drawn).phases["data_loading_seconds"], drawn.expected_step_seconds
    assert loading[:, :6].min() > 0.7 * usual
    assert loading[:, 7:].max() < 0.1 * usual


def test_a_burst_beyond_the_job_is_refused():
    with pytest.raises(ValidationError, match="a burst on node 9"):
        scenario(benign=Benign(bursts=(Burst(node=9, first_step=0),)))


@pytest.mark.parametrize("own", [0.0, 0.3])
def test_ranks_behind_a_slow_port_leave_the_collective_last(own):
    load = cluster_workload().model_copy(update={"own_port": own})
    even = CALM.model_copy(update={"transfer_ends": 0.0})
    slow = fault("nic_degradation", severity=1.0)
    timing = _run(scenario(dialect="mixed", workload=load, benign=even, faults=(slow,)))
    grown = _grown(timing.phases["communication_transfer_seconds"])
    others = np.delete(grown, [2, 3])
    assert others.min() > 1.5
    assert bool(grown[2:4].min() > 1.1 * others.max()) == (own > 0)


def test_a_trainer_that_calls_the_collector_pauses_between_steps():
    called, left_to_python = (
        _run(scenario("runtime_gc", workload=Workload(calls_collector=each))) for each in (True, False)
    )
    timed = ("data_loading", "host_to_device", "forward", "backward", "communication_wait")
    timed += ("communication_transfer", "optimizer", "checkpoint")
    for timing, expected in ((called, 1.0), (left_to_python, 0.0)):
        untimed = timing.phases["step_seconds"] - sum(timing.phases[f"{name}_seconds"] for name in timed)
        share = untimed[2, FIRST : LAST + 1].sum() / timing.phases["gc_seconds"][2, FIRST : LAST + 1].sum()
        assert share == pytest.approx(expected, abs=0.15)


@pytest.mark.parametrize("cause", ["gpu_throttling", "nic_degradation", "cpu_contention", "stage_imbalance"])
def test_strength_and_curve_change_the_cost_of_a_severity(cause):
    usual, stronger, steeper = (
        slowdown(scenario(cause, faults=(fault(cause, severity=0.5, **changes),)))
        for changes in ({}, {"strength": 1.3}, {"curve": 1.5})
    )
    assert steeper < usual < stronger


def _event_kinds(**changes) -> set[tuple[str, str | None, int]]:
    """Kind, code and rank of all events of thirty runs."""
    telemetry = Telemetry(events=True, exporters=TESTBED)
    runs = (scenario(telemetry=telemetry, seed=seed, **changes) for seed in range(30))
    rows = [row for run in runs for row in simulate(run).window.events.to_pylist()]
    return {(row["kind"], row["code"], row["rank"]) for row in rows}


@pytest.mark.system
def test_corrected_errors_of_healthy_memory_are_logged():
    harmless = Benign(harmless=(HarmlessSignal(kind="ecc_sbe", rank=3),))
    assert _event_kinds(benign=harmless) == {("ecc", "SBE", 3)}
    assert _event_kinds(benign=Benign()) == set()


def test_failing_memory_has_several_kinds_of_events():
    found = _event_kinds(faults=(fault("gpu_memory_errors"),), benign=Benign())
    assert found == {("xid", "94", 2), ("xid", "63", 2), ("ecc", "SBE", 2)}
