"""The telemetry window of a record: waiting and transfer from arrival times, Unix time from clocks."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from rca.arrays import FloatArray
from rca.lab.testbed.names import node_name
from rca.lab.testbed.process import Exit
from rca.lab.testbed.ranks.shared import Row
from rca.lab.testbed.record import CaptureRecord
from rca.lab.testbed.sampling.series import Sample
from rca.lab.testbed.scenario import CaptureScenario, TestbedJob
from rca.window.window import Window

SKEW_SECONDS = 0.5
_COPIED = {
    "data_loading_seconds": Row.DATA_LOADING,
    "host_to_device_seconds": Row.HOST_TO_DEVICE,
    "forward_seconds": Row.FORWARD,
    "backward_seconds": Row.BACKWARD,
    "optimizer_seconds": Row.OPTIMIZER,
    "checkpoint_seconds": Row.CHECKPOINT,
    "gc_seconds": Row.GC,
    "step_seconds": Row.STEP,
    "samples": Row.SAMPLES,
    "tokens": Row.TOKENS,
    "sum_squared_sequence_length": Row.SQUARED_LENGTHS,
}


def window_of(scenario: CaptureScenario, record: CaptureRecord) -> Window:
    """Build and validate the window of a capture."""
    job = scenario.job
    skew = clock_offsets(scenario)
    steps = _steps(job, record, skew)
    start = min(float(rows[0, Row.START]) for rows in record.rows) + record.unix_offset
    end = max(float(np.nanmax(rows[:, Row.START])) for rows in record.rows) + record.unix_offset
    end += float(np.nanmax(record.step_seconds()))
    last = max((sample.time for sample in record.samples), default=-np.inf)
    end = max(end, last + record.unix_offset + 1e-3)
    events = _events(record.exits, job, record.unix_offset, skew) if scenario.report_exits else None
    metadata: dict[str, object] = {
        "format": 1,
        "window_id": scenario.name,
        "job_id": f"testbed-{scenario.name}",
        "framework": "pytorch",
        "world_size": job.world_size,
        "parallelism": {"data": job.data, "pipeline": job.pipeline},
        "ranks": [_place(job, rank) for rank in range(job.world_size)],
        "start": start + float(skew.min()),
        "end": end + float(skew.max()),
    }
    return Window.from_tables(
        metadata, steps, _metrics(record.samples, job, record.unix_offset, skew), events
    )


def _place(job: TestbedJob, rank: int) -> dict[str, object]:
    """Place of a rank; in a job with real GPUs, other ranks have no GPU."""
    place: dict[str, object] = {"rank": rank, "node": node_name(job.node_of(rank))}
    if not job.gpu_ranks or rank in job.gpu_ranks:
        place["gpu"] = job.place_in_node(rank)
    return place


def clock_offsets(scenario: CaptureScenario) -> FloatArray:
    """Error of each node's clock, shape (n_nodes,), seconds; zero without ``clock_skew`` in the scenario."""
    if "clock_skew" not in scenario.benign:
        return np.zeros(scenario.job.nodes)
    draw = np.random.default_rng([scenario.seed, 1])
    return draw.uniform(-SKEW_SECONDS, SKEW_SECONDS, scenario.job.nodes)


def split_communication(rows: list[FloatArray], job: TestbedJob) -> tuple[FloatArray, FloatArray]:
    """Waiting and transfer per rank and step, both shape (n_ranks, n_steps), seconds.

    Waiting ends when the last member of the rank's group arrives. If a member never arrives, or the
    collective never ends, both are unknown. Waiting for neighbouring pipeline stages, and transfers to them,
    are added.
    """
    held = np.array(rows)
    arrival, done = held[:, :, Row.ARRIVAL_TIME], held[:, :, Row.DONE_TIME]
    last = np.empty_like(arrival)
    for stage in range(job.pipeline):
        members = job.ranks_of_stage(stage)
        last[members] = arrival[members].max(axis=0)  # NaN if a member never arrived
    wait = np.maximum(last - arrival, 0.0) + held[:, :, Row.PEER_WAIT]
    transfer = np.maximum(done - last, 0.0) + held[:, :, Row.PEER_TRANSFER]
    ended = np.isfinite(done)
    return np.where(ended, wait, np.nan), np.where(ended, transfer, np.nan)


def _steps(job: TestbedJob, record: CaptureRecord, skew: FloatArray) -> pa.Table:
    wait, transfer = split_communication(record.rows, job)
    columns: dict[str, list[FloatArray]] = {}
    for rank, rows in enumerate(record.rows):
        begun = np.flatnonzero(np.isfinite(rows[:, Row.START]))
        unix = rows[begun, Row.START] + record.unix_offset + skew[job.node_of(rank)]
        parts: dict[str, FloatArray] = {
            "rank": np.full(begun.size, float(rank)),
            "step": begun.astype(np.float64),
            "start_time": unix,
            **{name: rows[begun, column] for name, column in _COPIED.items()},
            "communication_wait_seconds": wait[rank, begun],
            "communication_transfer_seconds": transfer[rank, begun],
        }
        for name, part in parts.items():
            columns.setdefault(name, []).append(part)
    joined = {name: np.concatenate(parts) for name, parts in columns.items()}
    measured = {name: values for name, values in joined.items() if np.isfinite(values).any()}
    return pa.table(measured)


def _metrics(samples: list[Sample], job: TestbedJob, offset: float, skew: FloatArray) -> pa.Table:
    by_name = {node_name(node): float(skew[node]) for node in range(job.nodes)}
    return pa.table(
        {
            "time": [each.time + offset + by_name.get(each.node or "", 0.0) for each in samples],
            "node": pa.array([each.node for each in samples], pa.string()),
            "rank": pa.array([each.rank for each in samples], pa.int32()),
            "device": pa.array([each.device for each in samples], pa.string()),
            "name": pa.array([each.name for each in samples], pa.string()),
            "value": [each.value for each in samples],
        }
    )


def _events(exits: list[Exit], job: TestbedJob, offset: float, skew: FloatArray) -> pa.Table | None:
    """Ended processes as an elastic launcher reports them: time, node, rank and exit code."""
    hosts = [each for each in exits if each.process.role == "host"]
    if not hosts:
        return None
    nodes = [job.node_of(each.process.rank) for each in hosts]
    return pa.table(
        {
            "time": [
                each.monotonic + offset + float(skew[node]) for each, node in zip(hosts, nodes, strict=True)
            ],
            "node": [node_name(node) for node in nodes],
            "rank": pa.array([each.process.rank for each in hosts], pa.int32()),
            "kind": ["process_exit"] * len(hosts),
            "code": [str(each.code) for each in hosts],
            "message": [_message(each) for each in hosts],
        }
    )


def _message(exit_: Exit) -> str:
    number = exit_.by_signal
    return f"exited with code {exit_.code}" if number is None else f"killed by signal {number}"
