"""Timers in Megatron-LM's job logs become steps; logs that name no rank say what to set."""

from __future__ import annotations

import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from watchdog_logs import FIRED, hang

import rca
from rca.errors import InvalidInput
from rca.sources import megatron_timers

#: An old log of the last rank's timers, which is not part of the project.
REAL = Path(__file__).resolve().parents[3] / "shared" / "traces" / "logs" / "megatron-timers-old.log"
SIZES = (
    "using world size: 8, data-parallel size: 4, context-parallel size: 1, hierarchical context-parallel "
    "sizes: None, tensor-model-parallel size: 2, pipeline-model-parallel size: 1"
)


def iteration(number: int, *, seconds: float = 1.0, stamp: bool = True, of: int = 100) -> str:
    minute, second = divmod(int(number * seconds), 60)
    time = f" [2025-03-21 01:{minute:02d}:{second:02d}]" if stamp else ""
    return (
        f"{time} iteration {number:8d}/{of:8d} | consumed samples: {number * 64:12d} | elapsed time per "
        f"iteration (ms): {seconds * 1e3:.1f} | learning rate: 1.0E-04 | lm loss: 2.5E+00 |"
    )


def block(timers: dict[str, dict[int, float]]) -> list[str]:
    """Timers in seconds; zeros are left out, as Megatron does."""
    lines = ["times across ranks (ms):"]
    for name, values in timers.items():
        lines.append(f"  {name}:")
        lines += [f"     rank {rank:2d}: {value * 1e3:.2f}" for rank, value in values.items() if value > 0]
    return lines


def timers(slow: int | None, n_ranks: int = 8, noise: float = 0.0) -> dict[str, dict[int, float]]:
    ranks = range(n_ranks)
    more = {rank: 0.2 if rank == slow else noise * (rank % 3) for rank in ranks}
    return {
        "forward-backward": dict.fromkeys(ranks, 0.9),
        "forward-compute": {rank: 0.25 + more[rank] / 2 for rank in ranks},
        "backward-compute": {rank: 0.35 + more[rank] / 2 for rank in ranks},
        "batch-generator": {rank: 0.01 if rank % 2 == 0 else 0.0 for rank in ranks},
        "all-grads-sync": {rank: 0.3 - more[rank] for rank in ranks},
        "params-all-gather": dict.fromkeys(ranks, 0.02),
        "optimizer": dict.fromkeys(ranks, 0.05),
    }


def log_of(path: Path, n_steps: int, *, slow: int | None = None, every: int = 1, label: str = "") -> Path:
    lines = [SIZES, *block({"model-and-optimizer-setup": {0: 3.0}})]
    for number in range(every, n_steps + 1, every):
        # Without noise, a real job's ranks would be no reference.
        lines += [iteration(number), *block(timers(slow, noise=0.002 * (number % 5)))]
    path.write_text("\n".join(label + line for line in lines) + "\n")
    return path


def test_timers_of_all_ranks_are_phases(tmp_path: Path) -> None:
    window = rca.read_window(log_of(tmp_path / "job.log", 3, slow=5))
    assert (window.job.world_size, window.job.framework, window.steps.num_rows) == (8, "megatron", 24)
    sizes = window.job.parallelism
    assert sizes is not None
    assert (sizes.data, sizes.tensor, sizes.pipeline, sizes.context) == (4, 2, 1, 1)
    row = next(row for row in window.steps.to_pylist() if row["rank"] == 5 and row["step"] == 2)
    assert row["start_time"] == pytest.approx(FIRED - 4027.0)
    assert row["forward_seconds"] == pytest.approx(0.35)
    assert row["backward_seconds"] == pytest.approx(0.45)
    assert row["communication_seconds"] == pytest.approx(0.1 + 0.02)
    assert row["optimizer_seconds"] == pytest.approx(0.05 - 0.02)
    assert np.isnan(row["data_loading_seconds"])


@pytest.mark.parametrize("label", ["", "7: ", "[default7]:"])
def test_the_slow_rank_is_named(tmp_path: Path, label: str) -> None:
    answer = rca.diagnose(rca.read_window(log_of(tmp_path / "job.log", 40, slow=5, label=label)))
    assert answer.failure_mode == "fail_slow"
    assert answer.stragglers[0].ranks == [5]
    assert answer.stragglers[0].straggler_type == "compute"


def test_a_healthy_job_is_healthy(tmp_path: Path) -> None:
    assert rca.diagnose(rca.read_window(log_of(tmp_path / "job.log", 40))).failure_mode == "healthy"


def test_means_over_several_iterations_are_noted(tmp_path: Path) -> None:
    window = rca.read_window(log_of(tmp_path / "job.log", 40, every=10))
    assert window.steps.column("step").unique().to_pylist() == [10, 20, 30, 40]
    assert any("one report in 10 iterations" in note for note in window.notes)


def test_iterations_after_a_restart_count_once(tmp_path: Path) -> None:
    path = log_of(tmp_path / "job.log", 5)
    path.write_text(path.read_text() + "\n".join([iteration(4, seconds=1.5), *block(timers(None))]) + "\n")
    window = rca.read_window(path)
    rows = [row for row in window.steps.to_pylist() if row["step"] == 4]
    assert {row["step_seconds"] for row in rows} == {1.5}
    assert any("1 iterations were repeated" in note for note in window.notes)


def test_messages_of_the_watchdog_in_the_same_log_are_events(tmp_path: Path) -> None:
    path = log_of(tmp_path / "job.log", 20)
    lines = [line for each in hang(8, [5]).values() for line in each]
    path.write_text(path.read_text() + "\n".join(lines) + "\n")
    os.utime(path, (FIRED, FIRED))
    window = rca.read_window(path)
    fired = [row["rank"] for row in window.events.to_pylist() if row["kind"] == "nccl_timeout"]
    assert fired == [0, 1, 2, 3, 4, 6, 7]
    assert window.job.end == pytest.approx(FIRED + 1.0, abs=1.0)
    answer = rca.diagnose(window)
    assert (answer.failure_mode, answer.stragglers[0].ranks) == ("fail_stop", [5])


def _old(number: int) -> list[str]:
    return [
        f"time (ms) | forward-compute: {250 + number:.2f} | forward-recv: 1.50 | backward-compute: 350.00 | "
        "backward-params-all-reduce: 27.34 | optimizer: 50.00 | batch-generator: 10.00"
    ]


def _minmax(number: int) -> list[str]:
    return [
        "(min, max) time across ranks (ms):",
        f"    {'forward-compute ':.<48}: (250.00, {500 + number:.2f})",
    ]


def _max(_: int) -> list[str]:
    return ["max time across ranks (ms):", f"    {'forward-compute ':.<48}: 500.00"]


@pytest.mark.parametrize(
    ("lines", "note"),
    [
        (_old, "the timers are of the last rank only"),
        (_minmax, "forward-compute takes the slowest rank 2.01 times as long"),
        (_max, "the timers name no rank"),
    ],
    ids=["old", "minmax", "max"],
)
def test_logs_that_name_no_rank_say_what_to_set(
    tmp_path: Path, lines: Callable[[int], list[str]], note: str
) -> None:
    path = tmp_path / "job.log"
    path.write_text("\n".join(x for n in range(1, 6) for x in (iteration(n, stamp=False), *lines(n))))
    os.utime(path, (FIRED, FIRED))
    window = rca.read_window(path)
    assert (window.job.world_size, window.steps.num_rows) == (1, 5)
    assert any(note in each for each in window.notes)
    assert any("--timing-log-option all" in each for each in window.notes)
    assert window.steps.column("start_time").to_pylist() == pytest.approx(np.arange(FIRED - 5, FIRED))


def test_a_log_without_iterations_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "job.log"
    path.write_text("\n".join(block(timers(None))))
    with pytest.raises(InvalidInput, match=r"job\.log: lines of Megatron's timers, but none of an iteration"):
        rca.read_window(path)


def test_a_rank_beyond_any_job_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "job.log"
    path.write_text("\n".join([iteration(1), *block({"optimizer": {10**8: 1.0}})]))
    with pytest.raises(InvalidInput, match="rank 100,000,000"):
        rca.read_window(path)


def test_a_long_log_takes_bounded_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(megatron_timers, "MAX_REPORTS", 200)
    path = tmp_path / "job.log"
    with path.open("w") as file:
        for number in range(1, 301):
            file.write(
                "\n".join([iteration(number, of=9999, seconds=0.1), *block(timers(None)), "noise " * 40, ""])
            )
    tracemalloc.start()
    try:
        window = rca.read_window(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert window.steps.num_rows == 8 * 200
    assert any("100 older reports" in note for note in window.notes)
    assert peak < 20 << 20


@pytest.mark.skipif(not REAL.is_file(), reason="needs the public log in ../shared/traces/logs")
def test_a_real_old_log_is_read() -> None:
    window = rca.read_window(REAL)
    rows = window.steps.to_pylist()
    assert (window.job.world_size, [row["step"] for row in rows]) == (1, [1, 2, 3, 4])
    assert rows[0]["step_seconds"] == pytest.approx(150.8917)
    assert rows[0]["forward_seconds"] == pytest.approx(29.73363 - 0.18586)
    assert rows[0]["communication_seconds"] == pytest.approx(41.25221)


def test_two_jobs_in_one_folder_are_refused_by_name(tmp_path: Path) -> None:
    for name in ("a", "b"):
        log_of(tmp_path / f"{name}.log", 3)
    with pytest.raises(InvalidInput, match=r"a\.log and b\.log both hold iteration 1") as refused:
        rca.read_window(tmp_path)
    assert "one job and one attempt" in str(refused.value.hint)


def test_a_job_that_goes_on_in_a_second_file_is_one_job(tmp_path: Path) -> None:
    for name, numbers in (("a", range(1, 4)), ("b", range(4, 7))):
        lines = [line for number in numbers for line in (iteration(number), *block(timers(None)))]
        (tmp_path / f"{name}.log").write_text("\n".join([*lines, ""]))
    assert rca.read_window(tmp_path).steps.column("step").unique().to_pylist() == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("digits", ["999999999999999999991", "9" * 5000])
def test_an_iteration_beyond_any_job_is_refused_with_its_line(tmp_path: Path, digits: str) -> None:
    path = tmp_path / "job.log"
    line = iteration(1).replace(" 1/", f" {digits}/")
    path.write_text("\n".join([line, *block(timers(None)), ""]))
    with pytest.raises(InvalidInput, match=r"job\.log: .*so many iterations.*9999999999"):
        rca.read_window(path)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("(ms): 1000.0", "(ms): 1.2.3", "none of an iteration"),
        ("(ms): 1000.0", "(ms): .", "none of an iteration"),
        ("world size: 8", "world size: " + "8" * 5000, "a world size of 888,888,888, above"),
    ],
    ids=["two points", "no digit", "world size"],
)
def test_damaged_numbers_are_refused(tmp_path: Path, old: str, new: str, said: str) -> None:
    path = log_of(tmp_path / "job.log", 3)
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(InvalidInput, match=said):
        rca.read_window(path)


def test_failures_without_a_time_or_a_year_follow_the_iterations_before_them(tmp_path: Path) -> None:
    lines = []
    for step in range(1, 31):
        at = f" [2023-05-01 10:00:{step:02}] iteration {step:8d}/ 100"
        lines.append(f"{at} | elapsed time per iteration (ms): 1000.0 |")
        lines += ["times across ranks (ms):", "  forward-compute:"]
        lines += [f"     rank {rank:2d}: 400.00" for rank in range(8)]
    lines.append("[rank2]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.")
    lines += [
        f"[rank{rank}]:[E501 10:10:33.408 ProcessGroupNCCL.cpp:629] [Rank {rank}] Watchdog caught collective "
        "operation timeout: WorkNCCL(SeqNum=78, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) "
        "ran for 600060 milliseconds before timing out."
        for rank in range(8)
        if rank != 2
    ]
    (tmp_path / "job.log").write_text("\n".join(lines) + "\n")
    answer = rca.diagnose(rca.read_window(tmp_path / "job.log"))
    assert (answer.failure_mode, [each.ranks for each in answer.stragglers]) == ("fail_stop", [[2]])
    assert answer.causes[0].cause == "process_crash"
    assert answer.slowdown.gpu_hours_lost is not None
    assert answer.slowdown.gpu_hours_lost < 2.0
