"""Files of NCCL Inspector become steps, or a share of waiting; files without use are refused by name."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from inspector_files import BEGIN, STEP, TRANSFER, records, write

import rca
from rca.errors import InvalidInput
from rca.sources.nccl_inspector.window import WAITED_FOR

LATE = 120_000
Records = dict[int, list[dict[str, Any]]]


def arrivals(late: int = LATE, n_ranks: int = 8, n_steps: int = 40) -> np.ndarray:
    """Rank 5 is late from step 10 on; the others differ by 3 ms at most."""
    found = np.random.default_rng(1).integers(0, 3000, (n_ranks, n_steps))
    found[5, 10:] += late
    return found.astype(np.int64)


@pytest.mark.parametrize(("every", "verbose"), [(1, False), (7, False), (0, True)])
def test_a_repetition_of_the_collectives_is_a_step(tmp_path: Path, every: int, verbose: bool) -> None:
    window = rca.read_window(write(tmp_path / "job", records(arrivals(), every=every, verbose=verbose)))
    steps = window.steps.to_pandas()
    assert any("one repetition of 3 collectives" in note for note in window.notes)
    assert (window.job.world_size, window.job.topology.nodes_of([5])) == (8, ["node-1"])
    late = steps[steps["start_time"] > BEGIN / 1e6 + 15]
    of_5, others = late[late["rank"] == 5], late[late["rank"] != 5]
    assert late["step_seconds"].median() == pytest.approx((STEP + LATE + 3 * TRANSFER) / 1e6, rel=0.02)
    assert others["communication_wait_seconds"].median() == pytest.approx(LATE / 1e6, rel=0.05)
    assert of_5["communication_wait_seconds"].max() < 0.005
    assert late["communication_transfer_seconds"].median() == pytest.approx(3 * TRANSFER / 1e6, rel=0.02)


@pytest.mark.parametrize("interval", [300_000, 500_000, 1_000_000])
def test_a_long_interval_of_the_dump_thread_makes_no_step_slow(tmp_path: Path, interval: int) -> None:
    content = records(arrivals(late=0, n_steps=200))
    for rank, lines in content.items():
        for line in lines:
            written = line["metadata"]["dump_timestamp_us"] + 31_000 * rank
            line["metadata"]["dump_timestamp_us"] = written - written % -interval - 31_000 * rank
    window = rca.read_window(write(tmp_path / "job", content))
    length = (STEP + 3 * TRANSFER) / 1e6
    assert window.steps["step_seconds"].to_numpy() == pytest.approx(length, rel=0.08)
    assert rca.diagnose(window).failure_mode == "healthy"
    assert any("step times are means" in note for note in window.notes)


def test_the_rank_that_arrives_last_is_the_straggler_with_its_cost(tmp_path: Path) -> None:
    answer = rca.diagnose(rca.read_window(write(tmp_path / "job", records(arrivals()))))
    assert (answer.failure_mode, answer.stragglers[0].ranks) == ("fail_slow", [5])
    # Of 40 steps 30 are late.
    assert answer.slowdown.seconds_per_step == pytest.approx(0.75 * LATE / 1e6, rel=0.1)


def test_files_that_are_written_at_the_end_show_who_is_waited_for_and_no_cost(tmp_path: Path) -> None:
    window = rca.read_window(write(tmp_path / "job", records(arrivals(), every=0)))
    shares = {row["rank"]: row["value"] for row in window.metrics.to_pylist() if row["name"] == WAITED_FOR}
    # In a step of three collectives, others wait for rank 5 in 120 of 180 ms, in three quarters of the steps.
    assert shares[5] == pytest.approx(0.6, abs=0.05)
    assert max(share for rank, share in shares.items() if rank != 5) < 0.05
    answer = rca.diagnose(window)
    assert (answer.failure_mode, answer.stragglers[0].ranks) == ("fail_slow", [5])
    assert (answer.abstained, answer.slowdown.seconds_per_step) == (True, None)
    assert "waited_for" in {each.signal for each in answer.causes[0].evidence}
    assert "rank 5" in answer.next_check


def test_a_rank_that_only_waits_for_another_one_is_not_named(tmp_path: Path) -> None:
    """Rank 5 is late in its pair (4, 5), so that rank 4 is late in the group (0, 2, 4, 6) as well."""
    content: Records = {rank: [] for rank in range(8)}
    late = LATE * (np.arange(8) == 5)
    for step in range(1, 31):
        pairs = late.reshape(4, 2).max(axis=1).repeat(2)
        for group, arrived, end in (("pair", late, pairs + TRANSFER), ("data", pairs, LATE + TRANSFER)):
            for rank, (begins, ends) in enumerate(zip(arrived, np.broadcast_to(end, 8), strict=True)):
                members = 2 if group == "pair" else 4
                name, place = (f"p{rank // 2}", rank % 2) if members == 2 else (f"d{rank % 2}", rank // 2)
                record = json.loads(json.dumps(records(np.zeros((1, 1), int), every=0)[0][0]))
                record["header"].update(id=name, rank=place, n_ranks=members)
                record["metadata"].update(hostname=f"node-{rank // 4}", pid=rank)
                record["coll_perf"].update(coll_sn=step, coll_exec_time_us=int(ends - begins))
                content[rank].append(record)
    answer = rca.diagnose(rca.read_window(write(tmp_path / "job", content)))
    assert [each.ranks for each in answer.stragglers] == [[5]]


@pytest.mark.parametrize("every", [0, 1])
def test_a_healthy_job_has_no_straggler(tmp_path: Path, every: int) -> None:
    folder = write(tmp_path / "job", records(arrivals(late=0), every=every))
    answer = rca.diagnose(rca.read_window(folder))
    assert (answer.failure_mode, answer.stragglers) == ("healthy", [])


def test_the_file_of_one_process_has_no_waiting(tmp_path: Path) -> None:
    folder = write(tmp_path / "job", records(arrivals()))
    window = rca.read_window(folder / "node-1-pid105.log")
    assert not [name for name in window.steps.column_names if name.startswith("communication")]
    assert any("files of 1 of 8 ranks" in note for note in window.notes)


def test_without_the_file_of_the_late_rank_no_answer_is_certain(tmp_path: Path) -> None:
    """The others wait for it, which looks like transfer: all of them spend the same time."""
    folder = write(tmp_path / "job", records(arrivals()))
    (folder / "node-1-pid105.log").unlink()
    window = rca.read_window(folder)
    answer = rca.diagnose(window)
    assert (answer.abstained, answer.stragglers) == (True, [])
    assert any("may be the last to arrive" in note for note in window.notes)


def test_a_late_rank_is_named_without_cost_if_another_file_is_missing(tmp_path: Path) -> None:
    content = records(arrivals())
    for line in content[1]:
        line["coll_perf"]["coll_time"] = line["coll_perf"].pop("coll_exec_time_us")
    answer = rca.diagnose(rca.read_window(write(tmp_path / "job", content)))
    assert [each.ranks for each in answer.stragglers] == [[5]]
    assert (answer.abstained, answer.slowdown.seconds_per_step) == (True, None)


def test_cut_lines_host_times_and_roots_are_left_out_with_a_note(tmp_path: Path) -> None:
    content = records(arrivals())
    for lines in content.values():
        lines[0]["coll_perf"]["coll_timing_source"] = "collective_cpu"
        # A root sends and is done: its time shows no lateness.
        lines.append(json.loads(json.dumps(lines[-1])))
        lines[-1]["coll_perf"]["coll"] = "Broadcast"
    folder = write(tmp_path / "job", content)
    with (folder / "node-0-pid100.log").open("a") as file:
        file.write('{"header":{"id":"0x7f')
    packed = folder / "node-0-pid101.log"
    (folder / "node-0-pid101.log.gz").write_bytes(gzip.compress(packed.read_bytes()))
    packed.unlink()
    window = rca.read_window(folder)
    text = " ".join(window.notes)
    assert "1 records damaged" in text
    assert "8 records timed on the host only" in text
    assert "8 collectives with a root" in text
    assert rca.diagnose(window).stragglers[0].ranks == [5]


def _renamed(content: Records) -> None:
    for lines in content.values():
        for line in lines:
            line["coll_perf"]["coll_exec_time"] = line["coll_perf"].pop("coll_exec_time_us")


def _seconds(content: Records) -> None:
    for lines in content.values():
        for line in lines:
            line["metadata"]["dump_timestamp_us"] //= 1_000_000


def _nanoseconds(content: Records) -> None:
    for lines in content.values():
        for line in lines:
            line["coll_perf"]["coll_exec_time_us"] *= 1000


def _only_sends(content: Records) -> None:
    for lines in content.values():
        for line in lines:
            line["p2p_perf"] = line.pop("coll_perf")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (_renamed, "without a usable collective .* without coll_exec_time_us"),
        (_seconds, "dump_timestamp_us 1790000000 is no time in microseconds"),
        (_nanoseconds, "repeat every 0.* s"),
        (_only_sends, "of sends and receives"),
    ],
    ids=["renamed", "seconds", "nanoseconds", "point to point"],
)
def test_unusable_files_are_refused_by_name(tmp_path: Path, spoil: Any, message: str) -> None:
    content = records(arrivals(n_steps=20))
    spoil(content)
    with pytest.raises(InvalidInput, match=message) as caught:
        rca.read_window(write(tmp_path / "job", content))
    assert caught.value.hint


def test_a_file_that_ends_early_ends_the_steps_with_a_note(tmp_path: Path) -> None:
    content = records(arrivals())
    content[3] = content[3][: 3 * 25]
    window = rca.read_window(write(tmp_path / "job", content))
    assert any("end early, such as rank 3 (node-0 pid 103)" in note for note in window.notes)
    steps = window.steps.to_pandas()
    assert steps.groupby("rank").size().to_list() == [24] * 8
    assert rca.diagnose(window).stragglers[0].ranks == [5]


def test_a_clock_that_is_an_hour_off_is_corrected(tmp_path: Path) -> None:
    content = records(arrivals())
    for line in content[5]:
        line["metadata"]["dump_timestamp_us"] += 3_600_000_000
    window = rca.read_window(write(tmp_path / "job", content))
    assert any("rank 5 (node-1 pid 105) differs by 3,600.0 s" in note for note in window.notes)
    assert window.steps.to_pandas().groupby("rank").size().to_list() == [39] * 8
    assert rca.diagnose(window).stragglers[0].ranks == [5]


def test_a_long_line_takes_little_memory(tmp_path: Path) -> None:
    folder = write(tmp_path / "job", records(arrivals(n_steps=20)))
    path = folder / "node-0-pid100.log"
    long = b'{"header":"' + b"x" * (32 << 20) + b'"}\n'
    path.with_suffix(".log.gz").write_bytes(gzip.compress(path.read_bytes() + long, 1))
    path.unlink()
    tracemalloc.start()
    window = rca.read_window(folder)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 24 << 20
    assert any("1 records with too long a line" in note for note in window.notes)


def test_files_of_two_attempts_are_refused(tmp_path: Path) -> None:
    folder = write(tmp_path / "job", records(arrivals(n_steps=20)))
    for path in list(folder.iterdir()):
        later = path.read_text().replace('"id":"0x7f8c"', '"id":"0x7f8d"').replace('"pid":1', '"pid":2')
        later = later.replace('"dump_timestamp_us":179', '"dump_timestamp_us":180')
        (folder / path.name.replace("pid1", "pid2")).write_text(later)
    with pytest.raises(InvalidInput, match="two jobs or attempts"):
        rca.read_window(folder)
