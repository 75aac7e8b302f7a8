"""End of the job: time without progress, margins of the window, and normal ends by events."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from rca.features import WINDOW_FEATURES, FeatureSet, extract
from rca.lab.simulation import Benign, Fault, SimulationScenario, Telemetry, Workload, simulate
from rca.lab.simulation.exporters import EXPORTERS
from rca.window.job import Parallelism
from rca.window.window import Window
from tests.for_each import for_each

MARGIN = 9
EVERY = tuple(EXPORTERS)


def job(
    *faults: Fault, first_step_number: int = 400, exporters: tuple[str, ...] = EVERY, **telemetry: int
) -> SimulationScenario:
    """Eight ranks on two nodes, a hundred steps."""
    return SimulationScenario(
        seed=4,
        dialect="mixed",
        parallelism=Parallelism(data=8),
        ranks_per_node=4,
        n_steps=100,
        first_step_number=first_step_number,
        workload=Workload(
            forward_seconds=0.25, backward_seconds=0.5, transfer_seconds=0.2, gradient_bytes=4e9
        ),
        faults=faults,
        benign=Benign(warmup_steps=0),
        telemetry=Telemetry(exporters=exporters, interval_seconds=2.0, **telemetry),
    )


def hang() -> Fault:
    return Fault(cause="hang", variant="stopped", ranks=(2,), nodes=(0,), first_step=80, severity=0.8)


def features(scenario: SimulationScenario) -> FeatureSet:
    return extract(simulate(scenario).window)


def test_equal_margins_before_and_after_the_rows_are_no_stop() -> None:
    wide = features(job(rows_skipped=MARGIN, rows_behind=MARGIN))
    assert wide.work.steps[0] == 400 + MARGIN
    assert wide.work.steps[-1] == 499 - MARGIN
    assert wide.job_end.steps_since_progress < 1.5


def test_late_rows_of_a_working_job_are_no_stop() -> None:
    assert features(job(rows_behind=MARGIN)).job_end.steps_since_progress == 0.0


@pytest.mark.parametrize("exporters", [(), ("cpu", "memory")], ids=["none", "none of devices"])
def test_rows_missing_at_the_end_count_without_signals_of_work(exporters: tuple[str, ...]) -> None:
    found = features(job(rows_behind=MARGIN, exporters=exporters))
    assert found.job_end.steps_since_progress == pytest.approx(MARGIN, abs=1.5)


def test_a_hang_counts_alike_with_and_without_a_margin() -> None:
    """Devices that wait show that the time is no margin."""
    narrow, wide = features(job(hang())), features(job(hang(), rows_skipped=MARGIN))
    assert wide.job_end.cut_margin > MARGIN - 2
    assert wide.job_end.steps_since_progress == pytest.approx(narrow.job_end.steps_since_progress, abs=0.5)


def resized(window: Window, *, before: float = 0.0, after: float = 0.0) -> Window:
    """The window with its bounds so many seconds beyond its rows, and nothing measured there."""
    ends = np.asarray(window.steps.column("start_time")) + np.asarray(window.steps.column("step_seconds"))
    start = float(np.min(window.steps.column("start_time")))
    job = window.job.model_copy(update={"start": start - before, "end": float(ends.max()) + after})
    return replace(window, job=job)


@pytest.mark.parametrize(("after", "silent"), [(20.0, False), (60.0, True)])
def test_time_before_the_first_step_is_a_margin_only_if_as_much_follows_the_last(
    after: float, *, silent: bool
) -> None:
    """Twenty seconds before step 0 are a margin if there are twenty after the last row, too."""
    window = simulate(job(first_step_number=0, exporters=())).window
    assert (extract(resized(window, before=20.0, after=after)).job_end.steps_since_progress > 10) == silent


def test_exporters_that_end_with_the_job_show_no_work() -> None:
    window = simulate(job()).window
    assert extract(resized(window, after=60.0)).job_end.steps_since_progress > 30


def test_a_row_may_stand_for_several_steps() -> None:
    """Every fifth step logged: nine seconds after the last row are no stop."""
    window = simulate(job(exporters=())).window
    logged = window.steps.filter(pa.array(np.asarray(window.steps.column("step")) % 5 == 0))
    sparse = replace(window, steps=logged)
    assert extract(resized(sparse, after=9.0)).job_end.steps_since_progress < 1.5
    assert extract(resized(window, after=9.0)).job_end.steps_since_progress > 5


def exits(window: Window, codes: list[str]) -> Window:
    """Every rank's process ends when the window does."""
    ranks = range(window.job.world_size)
    rows = [
        {
            "time": window.job.end - 1.0,
            "node": None,
            "rank": rank,
            "kind": "process_exit",
            "code": code,
            "message": None,
        }
        for rank, code in zip(ranks, codes, strict=True)
    ]
    return replace(window, events=pa.Table.from_pylist(rows, schema=window.events.schema))


def test_normal_exits_of_all_ranks_are_no_stop() -> None:
    wide = resized(simulate(job(exporters=())).window, after=60.0)
    assert extract(exits(wide, ["0"] * 8)).job_end.steps_since_progress == 0.0
    assert extract(exits(wide, ["0"] * 7 + ["1"])).job_end.steps_since_progress > 30


def traffic_after(found: FeatureSet) -> float:
    return float(found.window[WINDOW_FEATURES.index("mean_traffic_after")])


def test_a_hung_job_has_no_traffic() -> None:
    assert traffic_after(features(job(hang()))) < 0.2


def test_a_fault_that_no_row_shows_is_labelled_healthy() -> None:
    early = Fault(
        cause="gpu_throttling", ranks=(5,), nodes=(1,), severity=0.8, first_step=0, last_step=MARGIN - 1
    )
    assert simulate(job(early)).label["failure_mode"] == "fail_slow"
    assert simulate(job(early, rows_skipped=MARGIN)).label["failure_mode"] == "healthy"


def test_rows_skipped_do_not_change_the_pattern() -> None:
    lasting = Fault(cause="gpu_throttling", ranks=(5,), nodes=(1,), severity=0.8, first_step=MARGIN - 2)
    assert simulate(job(lasting)).label["pattern"] == "persistent"
    assert simulate(job(lasting, rows_skipped=MARGIN)).label["pattern"] == "persistent"


def with_events(window: Window, rows: list[dict]) -> Window:
    """The window with these events, seconds after its last row."""
    last = float(np.max(window.steps.column("start_time")))
    missing = {"node": None, "rank": None, "code": None, "message": None}
    events = [missing | row | {"time": last + row["time"]} for row in rows]
    return replace(window, events=pa.Table.from_pylist(events, schema=window.events.schema))


def test_a_watchdog_that_fired_rules_out_late_rows() -> None:
    """Machines look as before, but a watchdog fired for a rank. So the rows are not only late."""
    window = simulate(job(rows_behind=MARGIN, begun_steps_reported=False)).window
    assert extract(window).job_end.steps_since_progress == 0.0
    fired = with_events(window, [{"time": 5.0, "rank": 2, "kind": "nccl_timeout"}])
    assert extract(fired).job_end.steps_since_progress == pytest.approx(MARGIN, abs=1.5)


def test_normal_exits_after_a_missed_heartbeat_are_no_normal_end() -> None:
    window = resized(simulate(job(exporters=())).window, after=60.0)
    exited = [{"time": 40.0, "rank": rank, "kind": "process_exit", "code": "0"} for rank in range(8)]
    assert extract(with_events(window, exited)).job_end.steps_since_progress == 0.0
    missed = {"time": 20.0, "rank": 3, "kind": "heartbeat_missed"}
    assert extract(with_events(window, [missed, *exited])).job_end.steps_since_progress > 30


def test_a_launchers_exit_counts_for_all_ranks_of_its_node() -> None:
    window = resized(simulate(job(exporters=())).window, after=60.0)
    nodes = window.job.topology.node_names
    agents = [{"time": 2.0, "node": node, "kind": "process_exit", "code": "0"} for node in nodes]
    assert extract(with_events(window, agents)).job_end.steps_since_progress == 0.0
    assert extract(with_events(window, agents[:1])).job_end.steps_since_progress > 30


DONE = [
    "`Trainer.fit` stopped: `max_steps=400` reached.",
    "Training completed. Do not forget to share your model",
    "exiting program at iteration 400",
    "PyTorchJob sft-7b is successfully completed.",
    "max_steps reached, saving final checkpoint; training finished",
]


@for_each("words", DONE)
def test_a_message_of_completion_is_a_normal_end(words: str) -> None:
    window = resized(simulate(job(exporters=())).window, after=60.0)
    done = {"time": 1.0, "rank": 0, "kind": "log", "message": words}
    assert extract(with_events(window, [done])).job_end.steps_since_progress == 0.0


@for_each(
    ("changes", "more"),
    [
        ({"message": "training step 12 done"}, []),
        ({"message": "training of the tokenizer was finished elsewhere"}, []),
        ({"time": -60.0}, []),
        ({"kind": "process_exit", "code": "1"}, []),
        ({}, [{"time": 5.0, "kind": "restart"}]),
        ({}, [{"time": 5.0, "rank": 2, "kind": "nccl_timeout"}]),
    ],
    ids=["a step", "something else", "long before", "a bad exit", "started again", "a rank is missed"],
)
def test_other_messages_and_times_are_no_normal_end(changes: dict, more: list[dict]) -> None:
    window = resized(simulate(job(exporters=())).window, after=60.0)
    done = {"time": 1.0, "rank": 0, "kind": "log", "message": "training finished"} | changes
    assert extract(with_events(window, [done, *more])).job_end.steps_since_progress > 30


@pytest.mark.parametrize(
    "started",
    [{"kind": "restart"}, {"kind": "process_exit", "rank": 1, "code": "1"}],
    ids=["restart", "exit"],
)
def test_a_job_that_restarts_in_the_window_has_no_margin(started: dict) -> None:
    window = resized(simulate(job(exporters=())).window, before=25.0, after=60.0)
    assert extract(window).job_end.cut_margin > 10
    first = float(np.min(window.steps.column("start_time")) - np.max(window.steps.column("start_time")))
    assert extract(with_events(window, [started | {"time": first - 20.0}])).job_end.cut_margin == 0.0


def test_a_large_part_of_the_window_is_no_margin() -> None:
    window = resized(simulate(job(exporters=())).window, before=140.0, after=60.0)
    assert extract(window).job_end.cut_margin == 0.0


def test_a_rank_that_loses_its_peer_within_a_step_shows_a_stop() -> None:
    window = simulate(job(hang())).window
    rows = [
        {"time": 1.0, "rank": rank, "kind": "log", "message": "Connection reset by peer"} for rank in (0, 5)
    ]
    end = extract(with_events(window, rows)).job_end
    assert (np.flatnonzero(end.lost).tolist(), end.broke_off) == ([0, 5], True)
    assert not extract(window).job_end.broke_off


def test_a_peer_that_is_lost_between_steps_shows_no_stop() -> None:
    """As at the end of a job, when the first process closes its connections."""
    window = simulate(job(exporters=())).window
    rows = [
        {"time": 1.0, "rank": rank, "kind": "log", "message": "Connection reset by peer"} for rank in range(7)
    ]
    end = extract(with_events(window, rows)).job_end
    assert end.lost.any()
    assert not end.broke_off


def test_a_rank_whose_peers_lost_it_did_not_hang() -> None:
    window = simulate(job(hang())).window
    rows = [
        {"time": 1.0, "rank": rank, "kind": "log", "message": "Connection reset by peer"} for rank in range(8)
    ]
    end = extract(with_events(window, [row for row in rows if row["rank"] != 2])).job_end
    assert (np.flatnonzero(end.origin).tolist(), np.flatnonzero(end.died).tolist()) == ([2], [2])
