"""What the collector knows of its rank, and the counters it reads."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import numpy as np

from rca.collect import counters, identity
from rca.collect.timers import StepTimer
from tests.for_each import for_each


@for_each(
    ("environment", "rank", "world_size", "gpu", "run"),
    [
        ({}, 0, 1, None, None),
        ({"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "SLURM_PROCID": "0"}, 3, 8, 1, None),
        ({"SLURM_PROCID": "5", "SLURM_NTASKS": "6", "SLURM_JOB_ID": "77"}, 5, 6, None, "77.0"),
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}, 1, 2, None, None),
        ({"RANK": "2", "WORLD_SIZE": "x"}, 2, 3, None, None),
        ({"TORCHELASTIC_RUN_ID": "none", "RANK": "0"}, 0, 1, None, None),
        ({"TORCHELASTIC_RUN_ID": "a", "TORCHELASTIC_RESTART_COUNT": "2"}, 0, 1, None, "a.2"),
        ({"SLURM_JOB_ID": "77", "SLURM_RESTART_COUNT": "1"}, 0, 1, None, "77.1000"),
    ],
)
def test_launchers_say_which_rank_this_is(
    environment: dict[str, str], rank: int, world_size: int, gpu: int | None, run: str | None
) -> None:
    found = identity.identify(environment=environment)
    assert (found.rank, found.world_size, found.gpu, found.run) == (rank, world_size, gpu, run)
    assert found.node
    assert identity.identify(1, 4, "n", "j", environment).header() | {"gpu": None} == {
        "rank": 1, "world_size": 4, "gpu": None, "node": "n", "job_id": "j",
        "run": f"j.{found.attempt or 0}", "attempt": found.attempt,
    }  # fmt: skip


def test_a_restart_has_a_higher_attempt_number_than_all_before() -> None:
    counts = [
        {"TORCHELASTIC_RESTART_COUNT": "0"},
        {"TORCHELASTIC_RESTART_COUNT": "3"},
        {"TORCHELASTIC_RESTART_COUNT": "0", "SLURM_RESTART_COUNT": "1"},
        {"TORCHELASTIC_RESTART_COUNT": "2", "SLURM_RESTART_COUNT": "1"},
        {"TORCHELASTIC_RESTART_COUNT": "0", "JOBSET_RESTART_ATTEMPT": "2"},
        {"RCA_COLLECT_ATTEMPT": "3", "SLURM_RESTART_COUNT": "1"},
    ]
    attempts = [identity.identify(environment=each).attempt for each in counts]
    assert attempts == [0, 3, 1000, 1002, 2000, 3000]
    assert identity.identify(environment={}).attempt is None


def test_counters_of_this_process() -> None:
    timer = StepTimer()
    pauses = counters.CollectorPauses(timer)
    pauses.start()
    gc.collect()
    pauses.stop()
    values = dict(zip(counters.SERIES, counters.Counters(timer, pauses).read().tolist(), strict=True))
    assert values["process_cpu_seconds_total", "host/user"] > 0
    assert 1e6 < values["process_resident_memory_bytes", "host"] < 1e11
    assert values["python_gc_collections_total", None] >= 1
    assert 0 < values["python_gc_pause_seconds_total", None] == timer.collected


def test_counters_of_threads_children_and_the_container(tmp_path: Path) -> None:
    own, child = tmp_path / "proc" / "self", tmp_path / "proc" / "77"
    for folder, threads in ((own, ("1", "2")), (child, ("77",))):
        for thread in threads:
            (folder / "task" / thread).mkdir(parents=True)
            (folder / "task" / thread / "schedstat").write_text("2000000000 500000000 9\n")
    (own / "task" / "1" / "children").write_text("77 78 ")  # 78 has just ended
    (own / "io").write_text("rchar: 1\nread_bytes: 4096\n")
    (own / "cgroup").write_text("0::/job\n")
    fields = ["S"] + ["0"] * 8 + ["3", "0", "150", "50", "0", "0"]
    (child / "stat").write_text(f"77 (a (b) c) {' '.join(fields)}\n")
    (child / "io").write_text("rchar: 1\nread_bytes: 100\n")
    group = tmp_path / "groups" / "job"
    group.mkdir(parents=True)
    (group / "cgroup.type").write_text("domain\n")
    (group / "cpu.stat").write_text("usage_usec 1\nthrottled_usec 2500000\n")
    (group / "cpu.pressure").write_text("some avg10=0.00 total=1000000\nfull avg10=0.00 total=5\n")
    timer = StepTimer()
    reader = counters.Counters(timer, counters.CollectorPauses(timer), tmp_path / "proc", tmp_path / "groups")
    values = dict(zip(counters.SERIES, reader.read().tolist(), strict=True))
    assert values["process_schedstat_running_seconds_total", "host"] == 4.0
    assert values["process_schedstat_waiting_seconds_total", "host"] == 1.0
    assert values["process_io_read_bytes_total", "host"] == 4096
    assert values["process_cpu_seconds_total", "loader/user"] == 150 / os.sysconf("SC_CLK_TCK")
    assert values["process_schedstat_running_seconds_total", "loader"] == 2.0
    assert values["process_io_read_bytes_total", "loader"] == 100
    assert values["container_cpu_cfs_throttled_seconds_total", None] == 2.5
    assert values["container_pressure_cpu_waiting_seconds_total", None] == 1.0
    assert np.isnan(values["container_pressure_io_waiting_seconds_total", None])


def test_every_series_is_in_the_catalogue() -> None:
    from rca.window.catalogue import process

    known = {signal.name: signal for signal in process.SIGNALS}
    assert {name for name, _ in counters.SERIES} <= known.keys()
