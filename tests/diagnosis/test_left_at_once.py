"""Who stops a job leaves peers that wait; a job gone from all ranks at once was done, or was ended."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from simulated_jobs import job

import rca
from rca.classify.preconditions import silent_enough
from rca.features import extract
from rca.features.post_stop_signals import PostStopSignals
from rca.lab.simulation import simulate
from rca.window.window import Window
from tests.for_each import for_each

MEMORY = "DCGM_FI_DEV_FB_USED"
DEVICE = ("DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_PROF_SM_ACTIVE", "DCGM_FI_DEV_POWER_USAGE", MEMORY)
#: What an idle device shows of a busy one's figures.
IDLE = 0.05
LAST = 59
ALL_IS_WELL = ("log", "step 59 | loss 2.31")


def ended(*found: tuple[str, str], busy: tuple[int, ...] = (), holding: tuple[int, ...] = ()) -> Window:
    """A healthy job without a row after its sixtieth step.

    Parameters
    ----------
    told : (kind, message)
        Events at its end.
    busy, holding : tuple of int
        Ranks whose devices stay busy, or keep their memory.
    """
    window = simulate(job(seed=5)).window
    steps = window.steps.filter(pa.array(window.steps["step"].to_numpy() <= LAST))
    end = float((steps["start_time"].to_numpy() + steps["step_seconds"].to_numpy()).max())
    metrics = window.metrics.to_pandas()
    metrics = metrics[metrics["name"].isin(DEVICE)]
    held = metrics["name"] == MEMORY
    kept = np.where(held, metrics["rank"].isin(holding), metrics["rank"].isin(busy))
    metrics.loc[(metrics["time"] > end) & ~kept, "value"] *= IDLE
    events = [
        {"time": end, "node": None, "rank": None, "kind": kind, "code": None, "message": message}
        for kind, message in found
    ]
    return replace(
        window,
        steps=steps,
        metrics=pa.Table.from_pandas(metrics, schema=window.metrics.schema, preserve_index=False),
        events=pa.Table.from_pylist(events, schema=window.events.schema),
    )


@for_each(
    ("gpu", "memory", "all_ranks"),
    [
        ([0.0, 0.1], [0.0, 0.15], True),
        ([0.0, 0.2], [0.0, 0.0], False),
        ([0.0, 0.0], [0.0, 0.2], False),
        ([0.0, np.nan], [0.0, 0.0], False),
        ([0.0], [0.0], False),
    ],
    ids=["idle and empty", "busy for a while", "held for a while", "one unknown", "a rank alone"],
)
def test_everybody_left_at_once(gpu: list[float], memory: list[float], all_ranks: bool) -> None:
    after = replace(PostStopSignals.unknown(len(gpu)), gpu=np.array(gpu), memory=np.array(memory))
    assert after.all_devices_released is all_ranks


def test_a_job_gone_from_everybody_at_once_is_no_stop_and_no_health() -> None:
    diagnosis = rca.diagnose(ended(ALL_IS_WELL))
    assert diagnosis.failure_mode == "healthy"
    assert diagnosis.abstention_reason is not None
    assert diagnosis.abstention_reason.code == "left_at_once"
    assert "sacct" in diagnosis.next_check


@for_each(
    "found",
    [
        ("process_exit", "exited with 1"),
        ("restart", "attempt 2"),
        ("xid", "79"),
        ("log", "Traceback (most recent call last)"),
        ("log", "rank 3 died"),
        ("log", "worker exited with code 137"),
        ("log", "received SIGTERM, shutting down"),
        ("log", "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus."),
        ("log", "step 59 failed"),
        ("log", "loss is nan, stopping"),
    ],
    ids=lambda found: found[1],
)
def test_a_silent_job_with_a_trouble_event_is_never_certainly_healthy(found: tuple[str, str]) -> None:
    window = ended(found)
    assert extract(window).job_end.trouble_events == 1
    assert not extract(window).job_end.all_released
    diagnosis = rca.diagnose(window)
    assert diagnosis.failure_mode == "fail_stop" or diagnosis.abstained
    assert diagnosis.quality.events_used == 1


@for_each(
    "found",
    [
        ("log", "wandb: Synced 5 files"),
        ("log", "Uploading artifacts to s3"),
        ("log", "checkpoint saved, no errors"),
        ("log", "Job 123 COMPLETED"),
        ("log", "skipping eval, step 59"),
        ("log", "received preemption notice from scheduler"),
        ("log", "Running evaluation"),
        ("log", "collective retried and recovered from error 5"),
        ("pod_scheduled", "scheduled"),
        ("pod_deleted", "deleted"),
    ],
    ids=lambda found: found[1],
)
def test_what_is_neither_harmless_nor_a_complaint_decides_nothing(found: tuple[str, str]) -> None:
    job_end = extract(ended(found)).job_end
    assert not job_end.all_released
    assert job_end.trouble_events == 0
    assert may_have_stopped(ended(found))


def ten_minutes_later(window: Window) -> Window:
    """The same rows, and nothing else, in a window that ends later."""
    later = window.job.model_copy(update={"end": window.job.end + 600.0})
    return Window.from_tables(later, window.steps)


@pytest.mark.parametrize("n_steps", [60, 120, 400])
def test_without_rows_nobody_is_told_that_all_is_well(make_window, n_steps: int) -> None:
    """Ten minutes without a row, an event or a metric: done or stopped, and the answer says so."""
    diagnosis = rca.diagnose(ten_minutes_later(make_window(8, n_steps)))
    if diagnosis.failure_mode == "healthy":
        assert diagnosis.abstained
        assert "fail_stop" in diagnosis.failure_mode_set
        assert diagnosis.abstention_reason is not None
        assert diagnosis.abstention_reason.code in {"fell_silent", "undecided_mode"}
    else:
        assert diagnosis.failure_mode == "fail_stop"


def test_a_job_that_fell_silent_asks_how_it_ended(make_window) -> None:
    diagnosis = rca.diagnose(ten_minutes_later(make_window(8, 400)))
    assert diagnosis.abstention_reason is not None
    assert diagnosis.abstention_reason.code == "fell_silent"
    assert "600 s" in diagnosis.abstention_reason.sentence
    assert "sacct" in diagnosis.next_check


def test_who_collects_no_events_cannot_say_that_nobody_complained() -> None:
    assert extract(ended(ALL_IS_WELL)).job_end.all_released
    assert not extract(ended()).job_end.all_released
    assert may_have_stopped(ended())


def may_have_stopped(window: Window) -> bool:
    """A job that died or finished without an event: no verdict, and it says so."""
    diagnosis = rca.diagnose(window)
    reason, stop = diagnosis.abstention_reason, diagnosis.failure_mode_probability["fail_stop"]
    undecided = reason is not None and reason.code in {"fell_silent", "undecided_mode"} and stop > 0.15
    return undecided and set(diagnosis.failure_mode_set) >= {"healthy", "fail_stop"}


@pytest.mark.parametrize(
    ("kind", "before", "stop"),
    [("oom_kill", 0.0, True), ("oom_kill", 20.0, False), ("heartbeat_missed", 20.0, False)],
    ids=["kills at the end", "killed something else", "was missed and came back"],
)
def test_what_a_job_outlives_did_not_stop_it(kind: str, before: float, *, stop: bool) -> None:
    """All ranks have rows until the window's end; the kernel's killer knows the node only."""
    window = ended()
    end = float(np.max(window.steps["start_time"].to_numpy() + window.steps["step_seconds"].to_numpy()))
    name = window.job.topology.node_names[1]
    row = {"time": end - before, "node": name, "rank": None, "kind": kind, "code": None, "message": "killed"}
    events = pa.Table.from_pylist([row], schema=window.events.schema)
    job = window.job.model_copy(update={"end": end + 0.5})
    metrics = window.metrics.filter(pa.array(window.metrics["time"].to_numpy() < end))
    cut = Window.from_tables(job, window.steps, metrics, events)
    assert silent_enough(extract(cut)) is stop


def test_a_device_that_had_failed_before_is_not_forgotten() -> None:
    window = ended(ALL_IS_WELL)
    early = {"time": window.job.start, "node": None, "rank": 3, "kind": "xid", "code": "79", "message": None}
    events = pa.Table.from_pylist([early, *window.events.to_pylist()], schema=window.events.schema)
    assert not extract(replace(window, events=events)).job_end.all_released


@pytest.mark.parametrize("who", [{"busy": (3,)}, {"holding": (3,)}], ids=["spins", "keeps its memory"])
def test_a_silent_job_with_one_device_in_use_is_never_certainly_healthy(
    who: dict[str, tuple[int, ...]],
) -> None:
    assert not extract(ended(ALL_IS_WELL, **who)).job_end.all_released
    diagnosis = rca.diagnose(ended(ALL_IS_WELL, **who))
    assert diagnosis.failure_mode == "fail_stop" or diagnosis.abstained


def test_without_a_device_known_of_every_rank_nobody_can_say_it() -> None:
    window = ended(ALL_IS_WELL)
    ranks = window.metrics["rank"].to_pandas()
    unknown = replace(window, metrics=window.metrics.filter(pa.array((ranks != 7).to_numpy())))
    assert extract(window).job_end.all_released
    assert not extract(unknown).job_end.all_released
    assert may_have_stopped(unknown)


def test_who_did_fewer_steps_was_the_first_to_go() -> None:
    window = ended(ALL_IS_WELL)
    early = (window.steps["rank"].to_numpy() == 2) & (window.steps["step"].to_numpy() > LAST - 2)
    assert not extract(replace(window, steps=window.steps.filter(pa.array(~early)))).job_end.all_released


def test_a_complaint_in_the_last_steps_counts_one_of_long_ago_does_not() -> None:
    window = ended(ALL_IS_WELL)
    end = window.events["time"].to_numpy()[0]
    for before, left in ((3.0, False), (30.0, True)):
        row = {
            "time": end - before,
            "node": None,
            "rank": 3,
            "kind": "log",
            "code": None,
            "message": "CUDA error",
        }
        events = pa.Table.from_pylist([row, *window.events.to_pylist()], schema=window.events.schema)
        assert extract(replace(window, events=events)).job_end.all_released is left


def test_who_had_begun_another_step_did_not_leave_with_the_others() -> None:
    gone = replace(PostStopSignals.unknown(16), gpu=np.zeros(16), memory=np.zeros(16))
    job_end = replace(extract(ended(ALL_IS_WELL)).job_end, all_released=False, steps_since_progress=30.0)
    assert job_end.with_released_devices(gone).all_released
    begun = replace(job_end, unfinished=np.arange(16) == 3)
    assert begun.with_released_devices(gone) == begun
