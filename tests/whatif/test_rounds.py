"""Rounds of own work and collectives, as profiler traces give them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rca.arrays import FloatArray
from rca.errors import InvalidTrace
from rca.whatif.analysis import what_if
from rca.whatif.long_trace.long_trace import stream_replay

TRANSFER = 1e-3


def rounds_table(work: FloatArray) -> pa.Table:
    """Rows of a job whose ranks wait for one another after each round; work: (n_ranks, n_steps, n_rounds)."""
    n_ranks, n_steps, n_rounds = work.shape
    rows = []
    now = 0.0
    for step in range(n_steps):
        for number in range(n_rounds):
            ready = now + work[:, step, number]
            end = ready.max() + TRANSFER
            for rank in range(n_ranks):
                rows.append((rank, step, "own-work", number, now, ready[rank] - now))
                rows.append((rank, step, "collective", number, ready[rank], end - ready[rank]))
            now = end
    rank, step, optype, number, start, duration = (np.array(held) for held in zip(*rows, strict=True))
    zero = np.zeros(len(rows), np.int64)
    return pa.table(
        {
            "rank": rank, "dp_rank": rank, "stage": zero, "step": step, "optype": optype, "seq_id": number,
            "mc": zero, "gmc": zero, "mb_id": zero - 1, "start_ts": start, "duration": duration,
        }
    )  # fmt: skip


def job_work() -> FloatArray:
    draw = np.random.default_rng(0)
    return np.array([0.03, 0.09, 0.01]) + draw.normal(0.0, 1e-3, (4, 6, 3))


def expected_step(work: FloatArray) -> FloatArray:
    """Seconds per step: the slowest rank of each round, and its transfer."""
    slowest: FloatArray = (work.max(axis=0) + TRANSFER).sum(axis=1)
    return slowest


def test_the_replay_is_the_slowest_rank_of_each_round() -> None:
    work = job_work()
    work[2] += 0.02
    result = what_if(rounds_table(work))
    assert result.no_delay == pytest.approx(expected_step(work), abs=1e-5)
    mean = np.broadcast_to(work.mean(axis=(0, 1)), work.shape)
    assert result.ideal == pytest.approx(expected_step(mean), abs=1e-5)


def test_each_rank_costs_what_its_rounds_add() -> None:
    work = job_work()
    work[1, :, 2] += 0.05
    result = what_if(rounds_table(work))
    mean = np.broadcast_to(work.mean(axis=(0, 1)), work.shape)
    for rank in range(4):
        one = mean.copy()
        one[rank] = work[rank]
        seconds = result.workers.seconds[result.workers.rank == rank][0]
        assert seconds == pytest.approx(expected_step(one), abs=1e-5)


def test_a_streamed_trace_gives_the_same_answer(tmp_path: Path) -> None:
    work = job_work()
    work[3] += 0.01
    table = rounds_table(work)
    pq.write_table(table, tmp_path / "trace.parquet")
    whole, streamed = what_if(table), what_if(stream_replay(tmp_path / "trace.parquet"))
    assert streamed.ideal == pytest.approx(whole.ideal, abs=1e-6)
    assert streamed.workers.seconds == pytest.approx(whole.workers.seconds, abs=1e-6)


def test_rounds_are_not_mixed_with_other_operations() -> None:
    table = rounds_table(job_work())
    last = (table.column("optype").to_numpy() == "collective") & (table.column("seq_id").to_numpy() == 2)
    optype = np.where(last, "optimizer", table.column("optype").to_numpy())
    mixed = table.set_column(table.column_names.index("optype"), "optype", pa.array(optype))
    with pytest.raises(InvalidTrace, match="cannot be mixed with optimizer"):
        what_if(mixed)
