"""Mechanisms of the corpus's second version: labels agree with what the windows show, costs with replays."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from simulated import change, cluster_workload, phase, scenario

from rca.lab.simulation import (
    Fault,
    LabelledWindow,
    SimulationScenario,
    Telemetry,
    sample_scenario,
    simulate,
)
from rca.lab.simulation.corpus import sampled
from rca.lab.simulation.exporters import EXPORTERS
from rca.lab.simulation.faults import FIRST_CAUSES, apply_faults
from rca.lab.simulation.impact import VISIBLE_SLOWDOWN
from rca.lab.simulation.mechanisms import MECHANISMS, sample_second
from rca.lab.simulation.mechanisms.parts import changed, with_timers
from rca.lab.simulation.resources import FACTORS
from rca.lab.training.corpus import example
from rca.sources.labels import WindowLabel
from rca.window.window import Window
from tests.for_each import for_each

SLOW = [
    name for name, each in MECHANISMS.items() if each.labels and each.job not in {"hang", "process_crash"}
]
SLOW.remove("flapping_port")
STOPS = (
    "gang",
    "flapping_port",
    "hang_after_slowness",
    "hang_before_first_step",
    "silent_hang",
    "vanished_rank",
)
HEALTHY = [name for name, each in MECHANISMS.items() if not each.labels]
LATER_RESOURCES = (
    "compile_stall", "untimed_stall", "memory_held", "adapter_stretch", "ring_stretch", "crowding",
    "own_cores", "sockets", "crossed_port", "port_down", "port_rate",
)  # fmt: skip


@cache
def drawn(name: str, seed: int = 3) -> SimulationScenario:
    """A scenario of a mechanism whose window has all timers and rows."""
    found = sample_second(np.random.default_rng([seed, 1]), mechanism=name)
    telemetry = Telemetry(
        exporters=tuple(EXPORTERS) if found.dialect != "cpu_testbed" else found.telemetry.exporters,
        interval_seconds=found.telemetry.interval_seconds,
        events=found.telemetry.events,
        watchdogs=found.telemetry.watchdogs,
    )
    return changed(found, telemetry=telemetry)


@cache
def made(name: str, seed: int = 3) -> LabelledWindow:
    return simulate(drawn(name, seed))


def on_cluster(found: Fault, **telemetry) -> SimulationScenario:
    """Eight ranks on four nodes with one fault, all exporters and timers."""
    return scenario(
        None,
        dialect="mixed",
        faults=(found,),
        corpus=2,
        workload=cluster_workload().model_copy(update={"prefetch_steps": 0}),
        telemetry=Telemetry(exporters=tuple(EXPORTERS), interval_seconds=1.0, **telemetry),
    )


def everywhere(cause: str, **fields) -> Fault:
    held = {"ranks": tuple(range(8)), "nodes": (0, 1, 2, 3), "severity": 0.9, "last_step": 65}
    return Fault(cause=cause, **(held | fields))


def events(window: Window) -> list[tuple[str, int, str | None, float]]:
    return sorted(
        ((each["kind"], each["rank"], each["code"], each["time"]) for each in window.events.to_pylist()),
        key=lambda each: each[3],
    )


def test_the_first_version_draws_none_of_them() -> None:
    for seed in range(6):
        found = sample_scenario(np.random.default_rng([9, seed]))
        assert (found.corpus, found.mechanism) == (1, "")
        assert {each.cause for each in found.faults} <= set(FIRST_CAUSES)
        assert found.telemetry.steps_reported
        resources = apply_faults(found)
        for name in LATER_RESOURCES:
            assert (getattr(resources, name) == (1.0 if name in FACTORS else 0.0)).all()


def test_a_version_has_its_own_causes() -> None:
    rng = np.random.default_rng(1)
    with pytest.raises(ValueError, match="unknown cause"):
        sampled(rng, 1, cause="recompilation")
    with pytest.raises(ValueError, match="version 1"):
        sampled(rng, 1, mechanism="gang")
    with pytest.raises(ValueError, match="unknown mechanism"):
        sampled(rng, 2, mechanism="gangs")
    assert sampled(rng, 2, cause="recompilation").mechanism == "recompilation"
    assert sampled(rng, 2, cause="gpu_throttling").faults[0].cause == "gpu_throttling"


@for_each("name", MECHANISMS)
def test_windows_keep_the_format_and_have_a_label_of_the_mechanism(name: str) -> None:
    found = made(name)
    window = found.window
    checked = Window.from_tables(window.job, window.steps, window.metrics, window.events, window.ops)
    assert checked.notes == ()
    label = WindowLabel.model_validate(found.label)
    assert found.label["mechanism"] == name
    modes = {"fail_stop"} if name in STOPS else {"fail_slow", "healthy"} if name in SLOW else {"healthy"}
    assert label.failure_mode in modes
    if name not in {"hang_after_slowness"}:
        assert {each.cause for each in label.causes} <= set(MECHANISMS[name].labels)
    example(window, label, group="", seed=0)


@for_each("name", SLOW)
def test_the_cost_in_the_label_is_what_the_clocks_of_both_windows_differ_by(name: str) -> None:
    clean = changed(drawn(name), benign={"warmup_steps": 0})
    found = simulate(clean)
    starts = [phase_starts(each.window) for each in (found, simulate(clean.without(0)))]
    lost = (starts[0] - starts[1]) / (clean.n_steps - 1)
    (cause,) = found.label["causes"]
    # The clocks do not see the last step's own part.
    assert cause["seconds_per_step"] == pytest.approx(lost, rel=0.03, abs=0.005 * clean.expected_step_seconds)
    assert lost > 0.9 * VISIBLE_SLOWDOWN * clean.expected_step_seconds


def phase_starts(window: Window) -> float:
    """Time from the first step's start to the last step's, as the rows' clocks say."""
    start = window.steps.column("start_time").to_numpy()
    return float(start.max() - start.min())


@pytest.mark.parametrize("name", HEALTHY)
def test_what_costs_little_or_only_looks_alike_is_healthy(name: str) -> None:
    assert made(name).label["failure_mode"] == "healthy"


def test_a_chronic_link_shows_its_generation_under_load_from_the_first_step_on() -> None:
    window = simulate(on_cluster(everywhere("pcie_degradation", variant="generation"))).window
    top = change(window, "DCGM_FI_DEV_PCIE_MAX_LINK_GEN", "rank", *window_of(window))
    now = change(window, "DCGM_FI_DEV_PCIE_LINK_GEN", "rank", *window_of(window))
    assert all(now[rank] < top[rank] for rank in range(8))


def window_of(window: Window) -> tuple[float, float]:
    return window.job.start, window.job.end


def test_saves_without_a_timer_are_in_the_step_and_in_no_phase() -> None:
    saves = everywhere("checkpoint_stall", every=10, seconds=5.0)
    window = simulate(on_cluster(saves, missing_phases=("checkpoint_seconds",))).window
    step = phase(window, "step_seconds").max(axis=0)
    saved = np.flatnonzero(step > 4.0)[1:]
    assert (np.diff(saved) == 10).all()
    assert not np.isfinite(phase(window, "checkpoint_seconds")).any()
    timed = sum(phase(window, f"{name}_seconds") for name in PHASES)
    assert (phase(window, "step_seconds") - timed)[:, saved].min() > 3.0


PHASES = (
    "data_loading", "host_to_device", "forward", "backward", "communication_wait", "communication_transfer",
    "optimizer",
)  # fmt: skip


def test_saves_after_the_timer_of_the_step_are_gaps_between_rows() -> None:
    saves = everywhere("checkpoint_stall", every=10, seconds=5.0)
    window = simulate(with_timers(on_cluster(saves), step_ends="before saves")).window
    assert phase(window, "step_seconds")[:, 1:].max() < 4.0
    starts = np.sort(window.steps.column("start_time").to_numpy().reshape(8, -1), axis=1)
    assert (np.diff(starts, axis=1).max(axis=0) > 4.0).sum() == 7


def test_a_blocking_rank_has_the_untimed_excess_and_no_other() -> None:
    blocked = everywhere("unknown", variant="blocking", ranks=(0,), nodes=(0,), every=3, seconds=1.0)
    found = simulate(on_cluster(blocked))
    timed = sum(phase(found.window, f"{name}_seconds") for name in PHASES)
    untimed = np.nanmean((phase(found.window, "step_seconds") - timed)[:, 1:], axis=1)
    assert untimed.argmax() == 0
    assert untimed[0] > 0.25
    assert untimed[1:].max() < 0.05
    assert found.label["causes"][0]["ranks"] == [0]
    assert found.label["straggler_type"] == "host"


def test_ranks_that_collect_in_turns_pause_at_different_steps() -> None:
    pauses = everywhere("runtime_gc", variant="turns", every=16, seconds=1.0)
    window = simulate(on_cluster(pauses)).window
    paused = phase(window, "gc_seconds") > 0.3
    assert (paused.sum(axis=1) >= 4).all()
    assert (paused.sum(axis=0) <= 3).all()


def test_flushes_move_from_rank_to_rank_while_memory_is_nearly_full_and_inputs_are_alike() -> None:
    flushes = everywhere("allocator_retries", every=16, seconds=1.5)
    window = simulate(on_cluster(flushes, load_columns=True)).window
    compute = phase(window, "forward_seconds") + phase(window, "backward_seconds")
    long = compute[:, 1:] > np.median(compute) + 0.5
    assert (long.sum(axis=1) >= 1).all()
    assert long.any(axis=0).mean() < 0.7
    tokens = phase_load(window, "tokens")
    assert np.ptp(tokens) == 0
    used = change(window, "DCGM_FI_DEV_FB_USED", "rank", *window_of(window))
    free = change(window, "DCGM_FI_DEV_FB_FREE", "rank", *window_of(window))
    assert all(used[rank] / (used[rank] + free[rank]) > 0.85 for rank in range(8))


def phase_load(window: Window, name: str) -> np.ndarray:
    return window.steps.column(name).to_numpy()


def test_ranks_that_share_an_adapter_exchange_twice_as_long_without_errors() -> None:
    shared = everywhere(
        "communication_misconfiguration", variant="shared_adapter", ranks=(2, 3), nodes=(1,), own_share=1.0
    )
    with_ports = on_cluster(shared).model_copy(update={"seed": 10})
    window = simulate(with_ports).window
    transfer = phase(window, "communication_transfer_seconds")[:, 1:].mean(axis=1)
    ratio = transfer[[2, 3]].mean() / transfer[[0, 1, 4, 5, 6, 7]].mean()
    assert 1.5 < ratio < 2.2
    sent = rates(window, "node_infiniband_port_data_transmitted_bytes_total")
    second = [rate for (node, _), rate in sent.items() if node == str(window.job.ranks[2].node)]
    assert max(second) > 1.7 * np.median(list(sent.values()))
    assert min(second) < 0.1 * np.median(list(sent.values()))
    errors = change(window, "node_infiniband_link_downed_total", "node", *window_of(window))
    assert max(errors.values()) == 0


def rates(window: Window, name: str, device: str | None = None) -> dict[tuple[str, str], float]:
    """Mean rate of each node's devices, or of one of them."""
    frame = window.metrics.to_pandas()
    frame = frame[frame["name"].astype(str) == name]
    return {
        key: float((part.value.iloc[-1] - part.value.iloc[0]) / (part.time.iloc[-1] - part.time.iloc[0]))
        for key, part in frame.groupby([frame["node"].astype(str), frame["device"].astype(str)])
        if device in (None, key[1])
    }


def test_a_node_on_sockets_sends_over_its_ethernet_port_instead_of_its_adapters() -> None:
    fallen = everywhere("communication_misconfiguration", variant="sockets", ranks=(2, 3), nodes=(1,))
    window = simulate(on_cluster(fallen)).window
    node = str(window.job.ranks[2].node)
    ethernet = change(window, "node_network_transmit_bytes_total", "node", *window_of(window))
    adapters = change(window, "node_infiniband_port_data_transmitted_bytes_total", "node", *window_of(window))
    assert max(ethernet, key=ethernet.__getitem__) == node
    assert min(adapters, key=adapters.__getitem__) == node
    assert adapters[node] < 0.1 * max(adapters.values())


def test_a_port_with_less_bandwidth_may_have_trained_to_a_lower_rate() -> None:
    rates_of = {}
    for seed in range(6):
        slow = everywhere("nic_degradation", variant="bandwidth", ranks=(2, 3), nodes=(1,))
        window = simulate(on_cluster(slow).model_copy(update={"seed": 6 * seed})).window
        frame = window.metrics.to_pandas()
        frame = frame[frame["name"].astype(str) == "node_infiniband_rate_bytes_per_second"]
        least = frame.groupby("node", observed=True)["value"].min()
        rates_of[seed] = float(
            least[str(window.job.ranks[2].node)] / least.drop(str(window.job.ranks[2].node)).min()
        )
    assert {1.0} < set(rates_of.values()) <= {1.0, 0.5, 0.25, 0.125}


def test_compilations_are_few_long_forwards() -> None:
    window = simulate(
        on_cluster(everywhere("recompilation", variant="together", every=12, seconds=4.0))
    ).window
    forward = phase(window, "forward_seconds")[:, 1:].min(axis=0)
    assert 4 <= (forward > 1.0).sum() <= 8


def test_own_loaders_starve_their_own_containers_and_no_stranger_runs() -> None:
    starved = everywhere("cpu_contention", variant="own_loaders", severity=1.0)
    found = simulate(on_cluster(starved))
    window, label = found.window, found.label
    loading = phase(window, "data_loading_seconds")[:, 1:].mean()
    assert loading > 0.3 * phase(window, "step_seconds")[:, 1:].mean()
    pressed = change(window, "container_pressure_cpu_waiting_seconds_total", "rank", *window_of(window))
    assert min(pressed.values()) > 0.85
    own = change(window, "container_cpu_usage_seconds_total", "rank", *window_of(window))
    users = rates(window, "node_cpu_seconds_total", "user")
    assert sum(users.values()) == pytest.approx(sum(own.values()), rel=0.25)
    assert apply_faults(found.scenario).foreign_cpu.max() == 0
    assert label["causes"][0]["processes"] == "own"
    strangers = simulate(on_cluster(everywhere("cpu_contention", variant="hogs")))
    assert strangers.label["causes"][0]["processes"] == "others"


def test_a_gang_ends_with_one_code_and_its_first_exit_is_the_labelled_rank() -> None:
    found = made("gang")
    exits = [each for each in events(found.window) if each[0] == "process_exit"]
    assert exits[0][1] in found.label["causes"][0]["ranks"]
    assert {each[1] for each in exits} == set(range(found.scenario.world_size))
    assert len({each[2] for each in exits}) == 1
    assert 0.1 < exits[-1][3] - exits[0][3] <= 60


def test_a_port_flaps_before_the_job_ends_of_it() -> None:
    found = made("flapping_port")
    rows = found.window.metrics.to_pandas()
    rows = rows[rows["name"].astype(str) == "node_infiniband_link_downed_total"]
    grown = rows.groupby(["node", "device"], observed=True)["value"].agg(
        lambda part: part.iloc[-1] - part.iloc[0]
    )
    assert grown.max() >= 1
    assert [grown.idxmax()[0]] == found.label["causes"][0]["nodes"]
    assert {"nic_degradation", "process_crash"} <= set(found.label["causes"][0]["accepted"])


def test_a_hang_before_the_first_step_has_no_finished_row_and_all_other_watchdogs() -> None:
    found = made("hang_before_first_step")
    assert not np.isfinite(phase(found.window, "step_seconds")).any()
    assert reported(found) == set(range(found.scenario.world_size)) - missing(found)


@pytest.mark.parametrize("seed", [3, 4, 5])
def test_silent_ranks_are_those_that_hang(seed: int) -> None:
    found = made("silent_hang", seed)
    assert reported(found) == set(range(found.scenario.world_size)) - missing(found)


def reported(found: LabelledWindow) -> set[int]:
    return {each[1] for each in events(found.window) if each[0] == "nccl_timeout"}


def missing(found: LabelledWindow) -> set[int]:
    return set(found.label["causes"][0]["ranks"])


def test_a_slow_job_that_hangs_is_stopped_and_its_slowness_is_labelled() -> None:
    found = made("hang_after_slowness")
    assert found.label["failure_mode"] == "fail_stop"
    assert found.label["causes"][0]["cause"] == "hang"
    assert found.scenario.faults[1].first_step == 0


def test_only_its_empty_device_shows_a_vanished_rank() -> None:
    found = made("vanished_rank")
    (gone,) = found.label["causes"][0]["ranks"]
    frame = found.window.metrics.to_pandas()
    last = {
        name: frame[frame["name"].astype(str) == name].groupby("rank")["value"].last()
        for name in ("DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_FB_USED")
    }
    assert all(values[gone] == 0 for values in last.values())
    others = last["DCGM_FI_DEV_GPU_UTIL"].drop(gone)
    assert np.median(others) >= 85
    assert found.window.events.num_rows == 0
