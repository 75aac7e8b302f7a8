"""When an answer's trouble began, where its ranks are, and how long a stopped job was idle."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

import rca
from rca.diagnosis.result import Diagnosis
from rca.diagnosis.when_and_where import utc
from rca.window.window import Window

SLOW = "data/windows/cpu-contention-node"
STOPPED = "data/windows/killed-rank"


@pytest.fixture(scope="module")
def slow_window() -> Window:
    return rca.read_window(SLOW)


@pytest.fixture(scope="module")
def slow(slow_window: Window) -> Diagnosis:
    return rca.diagnose(slow_window)


@pytest.fixture(scope="module")
def stopped() -> Diagnosis:
    return rca.diagnose(rca.read_window(STOPPED))


def begin_of(window: Window, step: int) -> list[float]:
    rows = window.steps.to_pylist()
    return sorted(row["start_time"] for row in rows if row["step"] == step)


def test_a_straggler_has_the_times_of_its_steps(slow: Diagnosis, slow_window: Window) -> None:
    (straggler,) = slow.stragglers
    assert straggler.first_step is not None
    assert straggler.since is not None
    assert straggler.until is not None
    first, *_, last = begin_of(slow_window, straggler.first_step)
    assert first - 0.001 <= straggler.since.timestamp() <= last + 0.001
    assert straggler.since < straggler.until < slow.window.end
    assert (slow.since, slow.until) == (straggler.since, straggler.until)


def test_an_answer_has_the_span_of_its_window(slow: Diagnosis, slow_window: Window) -> None:
    span, job = slow.window, slow_window.job
    assert span is not None
    assert span.start == datetime.fromtimestamp(round(job.start, 3), UTC)
    assert (span.world_size, span.nodes) == (8, 4)
    steps = slow_window.steps.column("step").to_pylist()
    assert (span.first_step, span.last_step) == (min(steps), max(steps))


def test_who_is_late_to_the_end_has_no_end(slow_window: Window, slow: Diagnosis) -> None:
    """The same window, cut while the node was slow."""
    from rca.window.times.step_clock import StepClock

    found = rca.diagnose(StepClock.of(slow_window).cut(45))
    assert found.verdict == "fail_slow"
    assert found.since == slow.since
    assert (found.until, found.stragglers[0].until) == (None, None)


def test_blamed_ranks_have_node_gpu_adapter_and_stage(slow_window: Window) -> None:
    job = slow_window.job
    ranks = tuple(
        place.model_copy(update={"pci_address": "0000:3b:00.0", "nic": "mlx5_0"})
        if place.rank == 2
        else place.model_copy(update={"gpu": None})
        for place in job.ranks or ()
    )
    found = rca.diagnose(replace(slow_window, job=job.model_copy(update={"ranks": ranks})))
    one, other = found.causes[0].places
    assert (one.rank, one.node, one.gpu) == (2, "node-1", (job.ranks or ())[2].gpu)
    assert (one.pci_address, one.nic, one.stage) == ("0000:3b:00.0", "mlx5_0", None)
    assert (other.rank, other.node, other.gpu, other.nic) == (3, "node-1", None, None)
    assert found.stragglers[0].places == found.causes[0].places


def test_a_stopped_job_counts_its_idle_hours(stopped: Diagnosis) -> None:
    assert stopped.verdict == "fail_stop"
    assert stopped.since is not None
    assert stopped.until is None
    idle = 8 * (stopped.window.end - stopped.since).total_seconds() / 3600
    assert stopped.slowdown.gpu_hours_idle == pytest.approx(idle, abs=1e-5)
    assert stopped.slowdown.gpu_hours_lost >= stopped.slowdown.gpu_hours_idle


def test_without_steps_the_first_failure_is_the_begin() -> None:
    job = {"job_id": "a", "world_size": 4, "start": 1e9, "end": 1e9 + 3600}
    events = [{"time": 1e9 + 600, "rank": 2, "kind": "process_exit", "code": "1"}]
    found = rca.diagnose(rca.Window.from_tables(job, events=events))
    assert found.since == datetime.fromtimestamp(1e9 + 600, UTC)
    assert found.slowdown.gpu_hours_idle == pytest.approx(4 * 3000 / 3600)
    assert (found.slowdown.seconds_per_step, found.causes[0].seconds_per_step) == (None, None)


@pytest.mark.parametrize("moment", [None, float("nan"), float("inf"), -1e11])
def test_a_number_that_is_no_calendar_time_gives_no_time(moment: float | None) -> None:
    assert utc(moment) is None


def test_the_verdict_follows_from_mode_and_abstention(slow: Diagnosis) -> None:
    assert slow.verdict == "fail_slow"
    assert slow.model_copy(update={"abstained": True}).verdict == "undecided"
    assert slow.model_copy(update={"failure_mode": "healthy"}).verdict == "healthy"


def test_signals_with_too_few_samples_are_not_called_missing(slow_window: Window) -> None:
    job = slow_window.job
    one = [{"time": job.start + 1, "rank": 0, "name": "DCGM_FI_DEV_SM_CLOCK", "value": 1755.0}]
    found = rca.diagnose(rca.Window.from_tables(job, steps=slow_window.steps, metrics=one))
    assert "gpu_clock" not in found.missing_signals
    assert "gpu_memory" in found.missing_signals
    assert "gpu_clock: 1 sample with nothing to compare with" in found.quality.notes


def test_evidence_of_a_network_names_its_worst_port() -> None:
    window = rca.read_window("data/windows/nic-rate-limited")
    quiet = [row | {"device": "ib0", "value": 0.0} for row in window.metrics.to_pylist()]
    quiet = [row for row in quiet if row["name"] == "node_qdisc_overlimits_total"]
    metrics = [*quiet, *window.metrics.to_pylist()]
    both = rca.Window.from_tables(window.job, steps=window.steps, metrics=metrics)
    (cause, *_) = rca.diagnose(both).causes
    devices = {each.signal: each.device for each in cause.evidence}
    assert devices["qdisc_overlimits"] == "eth0"
    assert devices["communication_transfer_seconds"] is None
