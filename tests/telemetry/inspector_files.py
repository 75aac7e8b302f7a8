"""Files of NCCL Inspector of a job with known arrivals, written as the plugin writes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from rca.arrays import FloatArray

#: Microseconds since 1970.
BEGIN = 1_790_000_000_000_000
STEP, TRANSFER = 400_000, 20_000
#: Collectives of a step: kind and bytes.
SEQUENCE = (("ReduceScatter", 1 << 26), ("AllReduce", 1 << 20), ("AllGather", 1 << 26))


def records(late: FloatArray, *, every: int = 1, verbose: bool = False) -> dict[int, list[dict[str, Any]]]:
    """Records of each rank; 4 ranks a node.

    Parameters
    ----------
    late : ndarray of shape (n_ranks, n_steps), microseconds
        How much later than the first one a rank arrives at the first collective of a step.
    every : int
        Steps after which the records are written; 0: only at the end of the job.
    """
    n_ranks, n_steps = late.shape
    noise = np.random.default_rng(0).integers(0, 60, (n_ranks, n_steps, len(SEQUENCE)))
    found: dict[int, list[dict[str, Any]]] = {rank: [] for rank in range(n_ranks)}
    now, counts = BEGIN, dict.fromkeys([kind for kind, _ in SEQUENCE], 0)
    pending: list[tuple[int, dict[str, Any]]] = []
    for step in range(n_steps):
        arrived = now + STEP + late[:, step]
        now = int(arrived.max())
        for place, (kind, size) in enumerate(SEQUENCE):
            begins = arrived if place == 0 else np.full(n_ranks, now)
            begins = begins - noise[:, step, place]
            now += TRANSFER
            counts[kind] += 1
            for rank in range(n_ranks):
                collective = {
                    "coll": kind,
                    "coll_sn": counts[kind],
                    "coll_msg_size_bytes": size,
                    "coll_exec_time_us": int(now - begins[rank]),
                    "coll_timing_source": "kernel_gpu",
                    "coll_algobw_gbs": 1.5,
                    "coll_busbw_gbs": 2.5,
                }
                if verbose:
                    stop = {"channel_id": 0, "kernel_start_ts": int(begins[rank]), "kernel_stop_ts": now}
                    collective["event_trace_ts"] = {"coll_start_ts": now - 9, "kernel_events": [stop]}
                record = {
                    "header": {"id": "0x7f8c", "comm_name": "unknown", "rank": rank, "n_ranks": n_ranks},
                    "metadata": {
                        "inspector_output_format_version": "v4.0",
                        "dump_timestamp_us": 0,
                        "hostname": f"node-{rank // 4}",
                        "pid": 100 + rank,
                    },
                    "coll_perf": collective,
                }
                pending.append((rank, record))
        if step == n_steps - 1 or (every and (step + 1) % every == 0):
            for place, (rank, record) in enumerate(pending):
                record["metadata"]["dump_timestamp_us"] = now + 300 + place
                found[rank].append(record)
            pending = []
    return found


def write(folder: Path, content: dict[int, list[dict[str, Any]]]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for rank, lines in content.items():
        path = folder / f"node-{rank // 4}-pid{100 + rank}.log"
        path.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines))
    return folder
