"""A folder of the collector becomes a window; gaps are listed, several runs are refused."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Mapping
from pathlib import Path
from threading import Barrier
from typing import Any

import numpy as np
import pytest
from collected_files import BEGIN, write_job, write_rank

import rca
from rca.collect.counters import SERIES
from rca.collect.segments import OPEN_STEP, table_block
from rca.collect.timers import COLUMNS
from rca.errors import InvalidInput
from rca.sources.collector.window import WINDOW_STEPS


def rows(window: rca.Window, rank: int) -> list[Mapping[str, Any]]:
    return [row for row in window.steps.to_pylist() if row["rank"] == rank]


def test_a_folder_is_a_window_of_all_ranks(tmp_path: Path) -> None:
    window = rca.read_window(write_job(tmp_path, forward=0.25, communication=0.5))
    assert (window.job.job_id, window.job.world_size, window.steps.num_rows) == ("job-1", 4, 120)
    assert window.job.topology.node_names == ("node-0", "node-1")
    assert "optimizer_seconds" not in window.steps.column_names
    assert rows(window, 2)[5] == {
        "rank": 2, "step": 5, "start_time": BEGIN + 5, "forward_seconds": 0.25, "communication_seconds": 0.5,
        "step_seconds": 1.0,
    }  # fmt: skip
    # All series but the last, which the kernel did not have.
    assert window.metrics.num_rows == 4 * 30 * (len(SERIES) - 1)
    sample = window.metrics.slice(31, 1).to_pylist()[0]
    name, device = SERIES[1]
    assert sample == {
        "time": BEGIN + 1, "node": "node-0", "rank": 0, "device": device, "name": name, "value": 1.0,
    }  # fmt: skip
    assert window.notes == ()


def test_steps_have_the_number_of_their_attempt(tmp_path: Path) -> None:
    write_job(tmp_path, ranks=range(3), attempt=1002)
    write_rank(tmp_path, 3)
    steps = rca.read_window(tmp_path).steps
    attempts = dict(zip(steps["rank"].to_pylist(), steps["attempt"].to_pylist(), strict=True))
    assert attempts == {0: 1002, 1: 1002, 2: 1002, 3: None}


def test_a_rank_that_falls_silent_is_missed(tmp_path: Path) -> None:
    write_job(tmp_path, ranks=[0, 1, 3], samples_until=60.0, open_step=30)
    write_rank(tmp_path, 2, steps=range(20), samples_until=20.0, ends=False)
    window = rca.read_window(tmp_path)
    assert [(row["rank"], row["kind"], row["time"]) for row in window.events.to_pylist()] == [
        (2, "heartbeat_missed", BEGIN + 20)
    ]
    assert np.isnan(rows(window, 0)[-1]["step_seconds"])
    diagnosis = rca.diagnose(window)
    assert diagnosis.failure_mode == "fail_stop"
    assert diagnosis.stragglers[0].ranks == (2,) or list(diagnosis.stragglers[0].ranks) == [2]


def test_ranks_that_are_killed_together_are_not_missed(tmp_path: Path) -> None:
    write_job(tmp_path, ranks=[0, 1, 2], ends=False)
    write_rank(tmp_path, 3, ends=False, samples_until=25.0)
    assert rca.read_window(tmp_path).events.num_rows == 0


def test_a_step_in_progress_that_was_finished_or_given_up_has_no_row(tmp_path: Path) -> None:
    write_rank(tmp_path, 0, world_size=2, open_step=29)
    write_rank(tmp_path, 1, world_size=2, open_step=30)
    (path,) = tmp_path.glob("rank-00001*")
    with path.open("ab") as file:
        file.write(table_block(OPEN_STEP, np.full(len(COLUMNS), np.nan)))
    window = rca.read_window(tmp_path)
    assert [len(rows(window, rank)) for rank in (0, 1)] == [30, 30]


def test_the_newest_steps_of_long_runs_are_read(tmp_path: Path) -> None:
    steps = range(3 * WINDOW_STEPS)
    for rank in range(2):
        paths = write_rank(tmp_path, rank, world_size=2, steps=steps, samples_until=10, max_bytes=1 << 20)
        assert len(paths) > 3
    window = rca.read_window(tmp_path)
    numbers = window.steps.column("step").to_numpy()
    assert (numbers.min(), numbers.max()) == (2 * WINDOW_STEPS, 3 * WINDOW_STEPS - 1)
    assert (window.job.start, window.metrics.num_rows) == (BEGIN + 2 * WINDOW_STEPS, 0)
    assert window.notes == (f"the newest {WINDOW_STEPS:,} steps were used, up to step {steps[-1]}",)


def test_damage_and_missing_ranks_are_listed(tmp_path: Path) -> None:
    write_job(tmp_path, ranks=[0, 1], lost_rows=5)
    (path,) = write_rank(tmp_path, 2)
    path.write_bytes(path.read_bytes()[:-40])
    (tmp_path / "rank-00003-1.rcac").write_bytes(b'{"rca_collect": {"form')
    notes = "\n".join(rca.read_window(tmp_path).notes)
    assert "rank-00003-1.rcac was skipped: its first line is damaged" in notes
    assert "1 of 4 ranks have no collector files: 3" in notes
    assert "rank 2: " in notes
    assert "damaged bytes were skipped" in notes
    assert "rank 1: 5 steps were lost" in notes


@pytest.mark.parametrize("names", [(None, None), ("77.0", "77.1"), ("a.0", "a.0")])
def test_two_runs_are_refused_and_a_file_picks_one(
    tmp_path: Path, names: tuple[str | None, str | None]
) -> None:
    write_job(tmp_path, run=names[0], forward=0.1)
    write_job(tmp_path, run=names[1], forward=0.2, started=BEGIN + 1000)
    with pytest.raises(
        InvalidInput, match="files of 2 runs: 4 ranks from 2023-11-14 22:13:20 UTC on"
    ) as found:
        rca.read_window(tmp_path)
    assert found.value.hint is not None
    assert "one file of a run" in found.value.hint
    window = rca.read_window(next(tmp_path.glob(f"rank-00002-{BEGIN + 1000:.0f}*")))
    assert {row["forward_seconds"] for row in window.steps.to_pylist()} == {0.2}
    assert window.steps.num_rows == 120


def test_a_folder_without_a_whole_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "rank-00000-1.rcac").write_bytes(b'{"rca_collect": ')
    with pytest.raises(InvalidInput, match="no collector file is complete: rank-00000-1"):
        rca.read_window(tmp_path)


@pytest.mark.parametrize(
    "header",
    [
        b"{}",
        b"[]",
        b'{"format": 1, "steps": [], "series": [], "rank": 9, "world_size": 2, "started": 1, "pid": 1}',
    ],
)
def test_a_header_that_makes_no_sense_is_skipped(tmp_path: Path, header: bytes) -> None:
    (tmp_path / "rank-00000-1.rcac").write_bytes(b'{"rca_collect": ' + header + b"}\n")
    with pytest.raises(InvalidInput, match="was skipped"):
        rca.read_window(tmp_path)


def _train(rank: int, barrier: Barrier, folder: str) -> None:
    from rca import collect

    collect.start(folder, rank=rank, world_size=4, node=f"node-{rank}")
    for _ in collect.steps(_batches(rank)):
        with collect.phase("forward"):
            time.sleep(0.002)
        with collect.phase("backward"):
            time.sleep(0.004)
        with collect.phase("communication"):
            barrier.wait()
        with collect.phase("optimizer"):
            time.sleep(0.001)
    collect.stop()


def _batches(rank: int) -> Any:
    for step in range(90):
        time.sleep(0.012 if rank == 2 and step >= 30 else 0.001)
        yield step


@pytest.mark.system
@pytest.mark.smoke
def test_a_real_job_with_a_slow_loader_is_diagnosed(tmp_path: Path) -> None:
    """Four processes that meet at a barrier in each step, as at a collective."""
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(4)
    processes = [context.Process(target=_train, args=(rank, barrier, str(tmp_path))) for rank in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0, 0, 0]
    window = rca.read_window(tmp_path)
    assert window.steps.num_rows == 4 * 90
    diagnosis = rca.diagnose(window)
    assert diagnosis.failure_mode == "fail_slow"
    assert list(diagnosis.stragglers[0].ranks) == [2]
    assert diagnosis.stragglers[0].straggler_type == "input"
