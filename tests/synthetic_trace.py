"""Write a synthetic operation trace of any size, one row group per step.

Every data rank runs the same 1F1B schedule with its own random times; a few workers are slow. Times come
from the replay itself, so waits are consistent.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rca.whatif.graph.reference_step import Reference
from rca.whatif.graph.replay import end_times
from rca.whatif.graph.schedules import megatron
from rca.whatif.optypes import ALL_GATHER, CODE, NAMES, REDUCE_SCATTER

USUAL = {"forward-compute": 0.030, "backward-compute": 0.060, "optimizer": 0.012, "gc": 0.001}


def one_f_one_b(pp: int, microbatches: int) -> Reference:
    """Operations of one pipeline in 1F1B order; only the order within a stage matters here."""
    rows: list[tuple[int, int, int, float, float]] = []

    def add(stage: int, name: str, sequence: int, start: float, length: float) -> None:
        rows.append((stage, CODE[name], sequence, start, start + length))

    for stage in range(pp):
        warm = min(pp - stage - 1, microbatches)
        order = [("forward", k) for k in range(warm)]
        for k in range(microbatches - warm):
            order += [("forward", warm + k), ("backward", k)]
        order += [("backward", k) for k in range(microbatches - warm, microbatches)]
        add(stage, "params-all-gather", 0, 0.0, 0.5)
        for at, (way, k) in enumerate(order, start=1):
            add(stage, f"{way}-compute", k, at, 0.8)
            if (way == "forward" and stage > 0) or (way == "backward" and stage < pp - 1):
                add(stage, f"{way}-recv", k, at - 0.1, 0.05)
            if (way == "forward" and stage < pp - 1) or (way == "backward" and stage > 0):
                add(stage, f"{way}-send", k, at + 0.85, 0.05)
        end = len(order) + 2.0
        for name in ("gc", "layernorm-grads-all-reduce", "grads-reduce-scatter"):
            add(stage, name, 0, end, 0.1)
        if stage in (0, pp - 1):
            add(stage, "embedding-grads-all-reduce", 0, end, 0.1)
        add(stage, "optimizer-clip-main-grad", 0, end, 0.1)
        add(stage, "optimizer", 0, end, 0.1)
    stage, optype, sequence, start, end_ = (np.array(column) for column in zip(*sorted(rows), strict=True))
    compute = np.isin(optype, [CODE["forward-compute"], CODE["backward-compute"]])
    return Reference(
        optype=optype,
        stage=stage,
        sequence=sequence,
        chunk=np.where(compute | np.isin(optype, [ALL_GATHER, REDUCE_SCATTER]), 0, -1),
        global_chunk=np.where(compute, stage, -1),
        start=start.astype(np.float32),
        end=end_.astype(np.float32),
        n_stages=pp,
        n_chunks=1,
        use_dp=True,
    )


def write(path: Path, *, dp: int, pp: int, microbatches: int, steps: int, seed: int = 0) -> int:
    """Write the trace; returns the number of rows."""
    rng = np.random.default_rng(seed)
    reference = one_f_one_b(pp, microbatches)
    graph = megatron(reference)
    n_ops = reference.optype.size
    usual = np.array([USUAL.get(NAMES[code], 0.0015) for code in reference.optype])
    slow = rng.random((dp, pp)) < 0.002
    factor = np.where(slow, 1.3, 1.0)[:, reference.stage].T
    keys = _keys(reference, dp)
    schema = pa.schema(
        [
            *(field for field in keys.schema),
            ("step", pa.int64()),
            ("start_ts", pa.float32()),
            ("duration", pa.float32()),
        ]
    )
    floats = ["start_ts", "duration"]
    writer = pq.ParquetWriter(
        path, schema, compression="snappy", use_dictionary=[c for c in schema.names if c not in floats]
    )
    with writer:
        for step in range(steps):
            work = usual[:, None] * factor * (1 + 0.1 * rng.random((n_ops, dp)))
            start, end = (times[:, :, 0] for times in end_times(graph, work[:, :, None]))
            # Rows by data rank, then stage, type, sequence: as tracers sort them.
            columns = [pa.array((t.T.ravel()).astype(np.float32)) for t in (start, end - start)]
            table = keys.append_column("step", pa.array(np.full(n_ops * dp, step)))
            for name, column in zip(floats, columns, strict=True):
                table = table.append_column(name, column)
            writer.write_table(table, row_group_size=n_ops * dp)
    return n_ops * dp * steps


def _keys(reference: Reference, dp: int) -> pa.Table:
    n_ops = reference.optype.size
    data_rank = np.repeat(np.arange(dp), n_ops)

    def tiled(values: np.ndarray, kind: pa.DataType) -> pa.Array:
        return pa.array(np.tile(values, dp)).cast(kind)

    stage = np.tile(reference.stage, dp)
    names = pa.DictionaryArray.from_arrays(
        pa.array(np.tile(reference.optype, dp).astype(np.int8)), pa.array(NAMES)
    )
    return pa.table(
        {
            "dp_rank": pa.array(data_rank.astype(np.int16)),
            "stage": tiled(reference.stage, pa.int8()),
            "rank": pa.array((stage * dp + data_rank).astype(np.int32)),
            "optype": names,
            "seq_id": tiled(reference.sequence, pa.int32()),
            "mc": tiled(reference.chunk, pa.int8()),
            "gmc": tiled(reference.global_chunk, pa.int16()),
        }
    )
