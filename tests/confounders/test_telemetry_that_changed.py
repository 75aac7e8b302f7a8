"""Confounder 8: counters reset, exporters vanish, metrics are renamed. None of it is the job's fault."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hand_made import KERNELS, Exported, believed, blamed, exported, idle_gpus, names_of

import rca
from rca.window.catalogue import resolve

SLOW = ("compute-duty-cycle", "cpu-contention-node", "garbage-collection", "slow-dataset")


def with_metrics(window: rca.Window, metrics: pa.Table) -> rca.Window:
    return rca.Window.from_tables(window.job, window.steps, metrics, window.events)


def renamed(window: rca.Window, names: dict[str, str]) -> rca.Window:
    column = [names.get(name, name) for name in window.metrics["name"].to_pylist()]
    place = window.metrics.column_names.index("name")
    return with_metrics(window, window.metrics.set_column(place, "name", pa.array(column)))


def without(window: rca.Window, prefix: str) -> rca.Window:
    names = window.metrics["name"].cast(pa.string())
    return with_metrics(window, window.metrics.filter(pc.invert(pc.starts_with(names, prefix))))


COUNTERS = (
    "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL",
    "DCGM_FI_DEV_PCIE_REPLAY_COUNTER",
    "DCGM_FI_DEV_THERMAL_VIOLATION",
    "process_schedstat_waiting_seconds_total",
)


@pytest.mark.parametrize("name", COUNTERS)
def test_a_counter_that_restarts_is_not_a_burst(make_window, name: str) -> None:
    """Rank 3's exporter restarts in step 20 after counting to a thousand million."""
    restarted = Exported(name, 0.02, counter=True, starts_at=1e9, resets_in=((3, 20),))
    assert rca.diagnose(exported(make_window(), restarted)).failure_mode == "healthy"


@pytest.mark.parametrize("resets", [((3, 20),), tuple((rank, 18) for rank in range(8))], ids=["one", "all"])
def test_a_restarted_exporter_changes_neither_who_nor_why(
    make_window, resets: tuple[tuple[int, int], ...]
) -> None:
    window = make_window(late={2: 0.05, 3: 0.05}, phase=KERNELS, n_steps=60, steps=slice(15, 40))
    waiting = np.full((8, 60), 0.02)
    waiting[2:4, 15:40] = 0.8
    diagnoses = [
        rca.diagnose(
            exported(
                window,
                Exported("process_schedstat_waiting_seconds_total", waiting, counter=True, resets_in=held),
                Exported("node_pressure_cpu_waiting_seconds_total", waiting[::2], scope="node", counter=True),
            )
        )
        for held in ((), resets)
    ]
    assert [believed(each) for each in diagnoses] == [{("cpu_contention", (2, 3))}] * 2


@pytest.mark.parametrize("name", SLOW)
def test_absence_of_metrics_does_not_change_who_is_blamed(real_windows, name: str) -> None:
    window = rca.read_window(real_windows / name)
    bare = rca.diagnose(with_metrics(window, window.metrics.slice(0, 0)))
    assert blamed(bare) == blamed(rca.diagnose(window))
    assert "cpu_wait" in bare.missing_signals


@pytest.mark.parametrize("prefix", ["process_", "container_", "node_", "node_pressure", "node_netstat"])
@pytest.mark.parametrize("name", [*SLOW, "healthy", "killed-rank"])
def test_a_missing_exporter_does_not_change_who_is_blamed(real_windows, name: str, prefix: str) -> None:
    window = rca.read_window(real_windows / name)
    partial, whole = rca.diagnose(without(window, prefix)), rca.diagnose(window)
    assert partial.failure_mode == whole.failure_mode
    assert blamed(partial) == blamed(whole)


@pytest.mark.parametrize("rank", [0, 5])
def test_one_ranks_missing_exporter_is_not_its_fault(make_window, rank: int) -> None:
    """Its driver crashed with its metrics: no reason to suspect a rank that is as fast as the others."""
    window = make_window()
    watched = exported(window, *idle_gpus(window))
    seen = watched.metrics.filter(pc.not_equal(watched.metrics["rank"], rank))
    assert rca.diagnose(with_metrics(watched, seen)).failure_mode == "healthy"


@pytest.mark.parametrize("sick", [2, 5])
def test_a_fault_on_the_rank_without_metrics_is_still_found(make_window, sick: int) -> None:
    window = make_window(late={sick: 0.05}, phase=KERNELS, steps=slice(12, 30))
    watched = exported(window, *idle_gpus(window))
    seen = watched.metrics.filter(pc.not_equal(watched.metrics["rank"], sick))
    assert blamed(rca.diagnose(with_metrics(watched, seen))) == {sick}


OLD_NAMES = {
    "DCGM_FI_DEV_CLOCKS_EVENT_REASONS": "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS",
    "DCGM_FI_DEV_GPU_TEMP": "nvidia_smi_temperature_gpu",
    "DCGM_FI_DEV_SM_CLOCK": "nvidia_smi_clocks_current_sm_mhz",
}


def test_a_name_of_an_older_exporter_means_the_same(make_window) -> None:
    window = make_window(late={5: 0.16}, phase=KERNELS, steps=slice(15, 32))
    new = exported(window, *idle_gpus(window))
    old = rca.diagnose(renamed(new, OLD_NAMES))
    assert old.quality.unknown_metrics == []
    assert old.causes == rca.diagnose(new).causes


def test_a_renamed_metric_is_reported_by_name_not_silently_lost(make_window) -> None:
    """An exporter that renames its metrics must be noticed, and its signals count as missing."""
    window = make_window(late={5: 0.05}, phase=KERNELS)
    clock = exported(window, Exported("DCGM_FI_DEV_SM_CLOCK", 1755.0))
    assert "gpu_clock" not in rca.diagnose(clock).missing_signals
    changed = rca.diagnose(renamed(clock, {"DCGM_FI_DEV_SM_CLOCK": "gpu_sm_frequency_v2"}))
    assert changed.quality.unknown_metrics == ["gpu_sm_frequency_v2"]
    assert changed.quality.metric_samples_unused == clock.metrics.num_rows
    assert "gpu_clock" in changed.missing_signals


def test_a_producer_that_renamed_everything_does_not_make_a_job_healthy(real_windows) -> None:
    window = rca.read_window(real_windows / "slow-dataset")
    names = set(window.metrics["name"].to_pylist())
    known = {name for name in names if resolve(name) is not None}
    diagnosis = rca.diagnose(renamed(window, {name: f"vendor_{name}" for name in names}))
    assert {f"vendor_{name}" for name in known} <= set(diagnosis.quality.unknown_metrics)
    assert diagnosis.failure_mode == "fail_slow"
    assert blamed(diagnosis) == {7}


def test_the_page_says_that_metrics_were_not_recognised(make_window) -> None:
    window = make_window(late={5: 0.05})
    diagnosis = rca.diagnose(exported(window, Exported("gpu_sm_frequency_v2", 1755.0)))
    assert "gpu_sm_frequency_v2" in diagnosis.to_markdown()


def test_a_named_cause_needs_no_metric_of_a_foreign_family(make_window) -> None:
    """Absent is not healthy and not sick: without GPU metrics a late loader is a loader problem still."""
    diagnosis = rca.diagnose(make_window(late={5: 0.05}, phase="data_loading_seconds"))
    assert names_of(believed(diagnosis)) <= {"data_loader_stall", "storage_degradation"}
    assert believed(diagnosis)
