"""A healthy verdict is not certain if events report a failure, or if much time lies between steps."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import rca
from rca.features import extract
from rca.features.end_events import Event, ranks_that_failed
from tests.for_each import for_each


@pytest.fixture(scope="module")
def healthy(real_windows: Path) -> rca.Window:
    """A captured window that is healthy with certainty."""
    return rca.read_window(real_windows / "healthy")


def with_events(window: rca.Window, ranks: range, kind: str, code: str | None) -> rca.Window:
    """The window with one event per rank in its middle."""
    middle = (window.job.start + window.job.end) / 2
    columns = {"time": middle, "node": None, "kind": kind, "code": code, "message": None}
    rows = [{**columns, "rank": rank} for rank in ranks]
    events = pa.Table.from_pylist(rows, schema=window.events.schema)
    return rca.Window.from_tables(window.job, window.steps, window.metrics, events)


def with_pauses(window: rca.Window, pause: float, every: int = 1) -> rca.Window:
    """The window with `pause` more seconds before every `every`-th step."""
    steps = window.steps["step"].to_numpy()
    pauses = pause * ((steps - steps.min()) // every)
    start = pa.array(window.steps["start_time"].to_numpy() + pauses)
    column = window.steps.column_names.index("start_time")
    job = window.job.model_copy(update={"end": window.job.end + float(pauses.max())})
    return rca.Window.from_tables(job, window.steps.set_column(column, "start_time", start))


def test_without_events_and_pauses_the_window_is_healthy_with_certainty(healthy) -> None:
    diagnosis = rca.diagnose(healthy)
    assert (diagnosis.failure_mode, diagnosis.abstained) == ("healthy", False)
    assert not any("between the steps" in note for note in diagnosis.quality.notes)


@for_each(
    ("kind", "code"),
    [
        ("xid", "79"),
        ("xid", "Xid (PCI:0000:3b:00): 95, pid=1"),
        ("ecc", "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL"),
        ("process_exit", "1"),
        ("process_exit", "-9"),
        ("oom_kill", None),
        ("nccl_timeout", None),
    ],
)
@for_each("ranks", [range(8), range(3, 4)], ids=["all", "one"])
def test_a_reported_failure_while_rows_go_on_is_not_certainly_healthy(healthy, ranks, kind, code) -> None:
    diagnosis = rca.diagnose(with_events(healthy, ranks, kind, code))
    assert diagnosis.failure_mode == "healthy"
    assert diagnosis.abstention_reason is not None
    assert diagnosis.abstention_reason.code == "failure_reported"
    assert (
        "rank 3" in diagnosis.abstention_reason.sentence
        or "ranks 0, 1" in diagnosis.abstention_reason.sentence
    )
    assert "fail_stop" in diagnosis.failure_mode_set
    assert "launcher's log" in diagnosis.next_check


@for_each(
    ("kind", "code"),
    [("xid", "43"), ("xid", "63"), ("ecc", "sbe"), ("process_exit", "0"), ("log", None)],
    ids=["another program", "remapped row", "corrected", "exit 0", "log line"],
)
def test_an_event_that_a_job_survives_leaves_the_verdict_certain(healthy, kind, code) -> None:
    assert not rca.diagnose(with_events(healthy, range(8), kind, code)).abstained


def test_events_before_the_first_row_and_of_unknown_processes_do_not_count(healthy) -> None:
    topology = healthy.job.topology
    events = [
        Event(99.0, "process_exit", "1", 2, -1),
        Event(101.0, "oom_kill", None, None, 0),
        Event(101.0, "xid", "79", 5, -1),
    ]
    failed = ranks_that_failed(events, topology, since=100.0)
    assert np.flatnonzero(failed).tolist() == [5]


@pytest.mark.parametrize(("pause", "every"), [(6.0, 1), (3600.0, 1), (0.1, 1), (60.0, 9)])
def test_time_between_steps_is_not_certainly_healthy(healthy, pause, every) -> None:
    diagnosis = rca.diagnose(with_pauses(healthy, pause, every))
    assert diagnosis.failure_mode == "healthy"
    assert diagnosis.abstention_reason is not None
    # Either the model doubts that the job is healthy, or the pauses do.
    assert diagnosis.abstention_reason.code in ("time_between_steps", "undecided_mode")
    assert "fail_slow" in diagnosis.failure_mode_set
    assert any("between the steps" in note for note in diagnosis.quality.notes)


def test_one_long_pause_is_a_single_event(healthy) -> None:
    """A restart or an evaluation. Its time is lost, but no rank loses it."""
    steps = np.unique(healthy.steps["step"].to_numpy())
    diagnosis = rca.diagnose(with_pauses(healthy, 300.0, steps.size // 2 + 1))
    reason = diagnosis.abstention_reason
    assert (diagnosis.failure_mode, reason.code) == ("healthy", "single_event")
    last = steps[steps.size // 2]
    assert reason.sentence == f"the job paused after step {last} (up to 300 s); without it the job is healthy"
    assert f"what ran after step {last}" in diagnosis.next_check
    assert diagnosis.slowdown.seconds_per_step == pytest.approx(300.0 / steps.size, rel=0.1)


def test_a_slow_job_keeps_its_verdict_with_a_note_on_time_between_steps(real_windows: Path) -> None:
    diagnosis = rca.diagnose(with_pauses(rca.read_window(real_windows / "slow-dataset"), 0.1))
    assert (diagnosis.failure_mode, diagnosis.abstained) == ("fail_slow", False)
    assert any("between the steps" in note for note in diagnosis.quality.notes)


def test_the_share_of_time_between_steps_is_measured(healthy) -> None:
    step = extract(healthy).work.step_reference
    work = extract(with_pauses(healthy, step)).work
    assert work.share_between_steps == pytest.approx(0.5, abs=0.02)


def with_untimed_work(window: rca.Window, seconds: float, every: int) -> rca.Window:
    """The window with longer steps, outside every phase: a save without a timer."""
    steps = window.steps["step"].to_numpy()
    saves = np.where(steps % every == 0, seconds, 0.0)
    begun = seconds * (-(-steps // every) - -(-steps.min() // every))
    table = window.steps
    for name, more in (("start_time", begun), ("step_seconds", saves)):
        column = table.column_names.index(name)
        table = table.set_column(column, name, pa.array(table[name].to_numpy() + more))
    job = window.job.model_copy(update={"end": window.job.end + float(begun.max()) + seconds})
    return rca.Window.from_tables(job, table, window.metrics.slice(0, 0))


def test_saves_without_a_timer_are_lost_time_and_not_certainly_healthy(healthy) -> None:
    step = extract(healthy).work.step_reference
    saved = with_untimed_work(healthy, 3 * step, every=10)
    assert extract(saved).work.untimed.seconds == pytest.approx(0.3 * step, rel=0.15)
    diagnosis = rca.diagnose(saved)
    assert diagnosis.verdict != "healthy"
    assert diagnosis.slowdown.seconds_per_step == pytest.approx(0.3 * step, rel=0.25)
    assert diagnosis.unexplained_seconds_per_step == pytest.approx(0.3 * step, rel=0.25)


def test_steps_without_timers_are_no_lost_time(healthy) -> None:
    """A trainer may leave out the phases of some steps."""
    left_out = healthy.steps["step"].to_numpy() % 5 == 0
    table = healthy.steps
    for name in [each for each in table.column_names if each.endswith("_seconds") and each != "step_seconds"]:
        seconds = np.where(left_out, np.nan, table[name].to_numpy())
        table = table.set_column(table.column_names.index(name), name, pa.array(seconds))
    window = rca.Window.from_tables(healthy.job, table, healthy.metrics)
    assert extract(window).work.untimed.seconds == 0.0


def test_pauses_between_steps_are_lost_time(healthy) -> None:
    step = extract(healthy).work.step_reference
    before = rca.diagnose(healthy).slowdown.seconds_per_step
    after = rca.diagnose(with_pauses(healthy, 4 * step, every=20)).slowdown.seconds_per_step
    assert before is not None
    assert after is not None
    assert after - before == pytest.approx(0.2 * step, rel=0.2)


def test_even_time_between_steps_is_no_pause(healthy) -> None:
    step = extract(healthy).work.step_reference
    assert extract(with_pauses(healthy, 0.1 * step)).work.pauses.seconds == 0.0


def test_skipped_step_numbers_are_no_time_between_steps(healthy) -> None:
    even = healthy.steps.filter(pa.array(healthy.steps["step"].to_numpy() % 2 == 0))
    work = extract(rca.Window.from_tables(healthy.job, even)).work
    assert np.all(np.diff(work.steps) == 2)
    assert work.share_between_steps < 0.02
