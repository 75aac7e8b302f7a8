"""Profiler traces become steps and rounds; damaged ones are refused."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import profiler_traces
import pyarrow.compute as pc
import pytest

from rca.errors import InvalidInput, SourceError
from rca.sources.profiler import trace as profiler_trace
from rca.sources.read import read_window
from rca.whatif.analysis import what_if
from rca.window.window import Window

SHARED = Path(__file__).resolve().parents[3] / "shared" / "traces" / "kineto"


def slowed(rank: int, seconds: float) -> profiler_traces.Job:
    made = profiler_traces.job()
    made.work[rank] += seconds
    return made


def column(window: Window, name: str) -> np.ndarray:
    return window.steps.column(name).to_numpy()


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("base", [0.0, profiler_traces.BEGIN - 3600.0])
def test_waits_and_transfers_are_those_of_the_job(tmp_path: Path, packed: bool, base: float) -> None:
    made = slowed(2, 3e-3)
    window = read_window(profiler_traces.write(tmp_path / "job", made, packed=packed, base=base))
    start, _ = made.arrivals()
    waited = (start.max(axis=0) - start).sum(axis=2)
    assert column(window, "communication_wait_seconds").reshape(4, 3) == pytest.approx(waited, abs=1e-6)
    transfers = made.work.shape[2] * profiler_traces.TRANSFER
    assert column(window, "communication_transfer_seconds") == pytest.approx(transfers, abs=1e-6)
    assert column(window, "data_loading_seconds") == pytest.approx(5e-4, abs=1e-6)
    assert column(window, "host_to_device_seconds") == pytest.approx(2e-4, abs=1e-6)
    assert column(window, "start_time").min() == pytest.approx(profiler_traces.BEGIN, abs=1e-3)


def test_the_slow_rank_costs_what_it_adds(tmp_path: Path) -> None:
    made = slowed(1, 2e-3)
    result = what_if(read_window(profiler_traces.write(tmp_path / "job", made)))
    added = 3 * 2e-3 * 3 / 4  # the mean of four ranks has a quarter of it
    lost = result.workers.seconds.mean(axis=1) - result.ideal.mean()
    assert int(np.argmax(lost)) == 1
    assert lost[1] == pytest.approx(added, rel=0.05)
    assert np.delete(lost, 1).max() < 0.1 * added


def test_rounds_of_unequal_length_are_no_slowdown(tmp_path: Path) -> None:
    result = what_if(read_window(profiler_traces.write(tmp_path / "job", profiler_traces.job())))
    assert result.no_delay.mean() / result.ideal.mean() < 1.02


def test_skewed_clocks_are_put_on_one(tmp_path: Path) -> None:
    made = slowed(2, 3e-3)
    straight = read_window(profiler_traces.write(tmp_path / "straight", made))
    made.clock[:] = [0.0, 0.0, 0.25, -0.1]
    skewed = read_window(profiler_traces.write(tmp_path / "skewed", made))
    waits = "communication_wait_seconds"
    assert column(skewed, waits) == pytest.approx(column(straight, waits), abs=2e-6)
    assert any("clocks of 2 ranks corrected" in note for note in skewed.notes)


def test_blocks_of_any_size_give_the_same_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = profiler_traces.write(tmp_path / "job", profiler_traces.job()) / "rank0.json"
    whole = profiler_trace.read_trace_file(path)
    monkeypatch.setattr(profiler_trace, "BLOCK_BYTES", 517)
    assert profiler_trace.read_trace_file(path) == whole


def test_members_in_another_order_give_the_same_trace(tmp_path: Path) -> None:
    path = profiler_traces.write(tmp_path / "job", profiler_traces.job()) / "rank0.json"
    whole = profiler_trace.read_trace_file(path)
    path.write_text(json.dumps(json.loads(path.read_text()), sort_keys=True))
    assert profiler_trace.read_trace_file(path) == whole


def written_as(path: Path, document: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document), "utf-8")
    return path


def test_a_long_first_member_a_bare_array_and_process_groups_are_traces(tmp_path: Path) -> None:
    made = profiler_traces.job()
    whole = profiler_traces.document(made, 0)
    named = {**whole["distributedInfo"], "pg_config": [{"pg_name": "0"}], "nccl_version": "2"}
    documents = (
        whole,
        {"metadata": {"pip": "x" * 20_000}, **whole},
        whole["traceEvents"],
        {"schemaVersion": 1, "distributedInfo": named, **{k: whole[k] for k in ("traceEvents", "traceName")}},
    )
    found = [
        # NaN is not equal to itself.
        str(read_window(written_as(tmp_path / str(number) / "rank0.json", each)).steps.to_pydict())
        for number, each in enumerate(documents)
    ]
    assert found == found[:1] * len(documents)


def test_collectives_of_gloo_count_where_no_kernel_is_one(tmp_path: Path) -> None:
    made = slowed(2, 3e-3)
    for rank in range(4):
        document = profiler_traces.document(made, rank)
        for event in document["traceEvents"]:
            if event["name"].startswith("nccl"):
                event |= {"cat": "user_annotation", "name": "gloo:all_reduce"}
        written_as(tmp_path / "job" / f"rank{rank}.json", document)
    window = read_window(tmp_path / "job")
    waited = column(window, "communication_wait_seconds").reshape(4, 3).sum(axis=1)
    assert waited[2] < 0.2 * waited[[0, 1, 3]].min()


def test_work_that_ends_after_its_step_counts_in_the_steps_that_it_is_in(tmp_path: Path) -> None:
    made = profiler_traces.job(n_ranks=1)
    document = profiler_traces.document(made, 0)
    kernels = [event for event in document["traceEvents"] if event["name"].startswith("nccl")]
    kernels[-1]["dur"] = 1e6
    window = read_window(written_as(tmp_path / "rank0.json", document))
    exposed, steps = column(window, "communication_seconds"), column(window, "step_seconds")
    assert (exposed <= steps + 1e-9).all()


def test_the_rank_may_be_in_the_name_alone(tmp_path: Path) -> None:
    folder = profiler_traces.write(tmp_path / "job", profiler_traces.job())
    for path in folder.iterdir():
        document = json.loads(path.read_text())
        del document["distributedInfo"]
        path.write_text(json.dumps(document))
    window = read_window(folder)
    assert sorted(pc.unique(window.ops.column("rank")).to_pylist()) == [0, 1, 2, 3]


def test_exchanges_that_do_not_end_together_are_no_collectives(tmp_path: Path) -> None:
    folder = profiler_traces.write(tmp_path / "job", profiler_traces.job())
    path = folder / "rank1.json"
    document = json.loads(path.read_text())
    nccl = [event for event in document["traceEvents"] if event["name"].startswith("nccl")]
    for event in nccl[::2]:
        event["dur"] += 9e3
    path.write_text(json.dumps(document))
    window = read_window(folder)
    assert window.ops.num_rows == 0
    assert any("do not end together" in note for note in window.notes)
    assert np.isfinite(column(window, "communication_seconds")).all()


def test_the_trace_of_one_rank_has_steps_and_a_note(tmp_path: Path) -> None:
    path = profiler_traces.write(tmp_path / "job", profiler_traces.job()) / "rank3.json"
    window = read_window(path)
    assert window.steps.num_rows == 3
    assert window.ops.num_rows == 0
    assert any("traces of 1 of 4 ranks" in note for note in window.notes)


def test_a_cut_trace_is_refused_by_name(tmp_path: Path) -> None:
    folder = profiler_traces.write(tmp_path / "job", profiler_traces.job())
    path = folder / "rank2.json"
    path.write_bytes(path.read_bytes()[:-400])
    with pytest.raises(InvalidInput, match=r"rank2\.json.*cut or damaged"):
        read_window(folder)


def test_a_cut_archive_is_refused_by_name(tmp_path: Path) -> None:
    folder = profiler_traces.write(tmp_path / "job", profiler_traces.job(), packed=True)
    path = folder / "rank2.json.gz"
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises((InvalidInput, SourceError), match=r"rank2\.json\.gz"):
        read_window(folder)


def test_a_trace_without_steps_says_what_to_do(tmp_path: Path) -> None:
    document = profiler_traces.document(profiler_traces.job(), 0)
    document["traceEvents"] = [
        event for event in document["traceEvents"] if "ProfilerStep" not in event["name"]
    ]
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps(document))
    with pytest.raises(InvalidInput, match="no ProfilerStep") as refused:
        read_window(path)
    assert "profiler.step()" in str(refused.value.hint)


def test_two_traces_of_one_rank_are_refused(tmp_path: Path) -> None:
    folder = profiler_traces.write(tmp_path / "job", profiler_traces.job())
    (folder / "again.json").write_bytes((folder / "rank1.json").read_bytes())
    with pytest.raises(InvalidInput, match="both of rank 1"):
        read_window(folder)


@pytest.mark.skipif(not SHARED.is_dir(), reason="the real traces are not beside this checkout")
def test_the_two_late_ranks_of_a_real_job_cost_most(tmp_path: Path) -> None:
    import tarfile

    with tarfile.open(SHARED / "param-dlrm-8-ranks.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    result = what_if(read_window(tmp_path / "dlrm_kineto"))
    slowdown = result.workers.seconds.mean(axis=1) / result.ideal.mean()
    assert set(result.workers.rank[np.argsort(slowdown)[-2:]]) == {4, 5}
    assert slowdown[[4, 5]] == pytest.approx([1.155, 1.164], abs=0.005)


@pytest.mark.skipif(not SHARED.is_dir(), reason="the real traces are not beside this checkout")
@pytest.mark.parametrize(
    "name",
    [
        "distributed_info_not_found.json.gz",
        "rank-34.Jul_15_10_52_41.1074.pt.trace.json.gz",
        "rank_non_gpu.json.gz",
        "hta-two-of-128-ranks",
    ],
)
def test_odd_real_traces_have_steps_and_notes(name: str) -> None:
    window = read_window(SHARED / name)
    assert window.steps.num_rows > 0
    assert window.ops.num_rows == 0
    assert window.notes


def test_a_gzip_file_of_something_else_is_no_trace(tmp_path: Path) -> None:
    head = gzip.compress(b'{"job": {"job_id": "a"}, "steps": []}')
    assert not profiler_trace.is_trace(head, "rank0.json.gz")


@pytest.mark.parametrize("one", [False, True])
def test_times_in_nanoseconds_are_refused_by_name(tmp_path: Path, one: bool) -> None:
    folder = profiler_traces.write(tmp_path / "job", profiler_traces.job())
    path = folder / "rank1.json"
    document = json.loads(path.read_text())
    for event in document["traceEvents"]:
        event["ts"] *= 1000
    path.write_text(json.dumps(document))
    with pytest.raises(InvalidInput, match=r"rank1\.json: .* times nanoseconds") as refused:
        read_window(path if one else folder)
    assert "microseconds" in str(refused.value.hint)
