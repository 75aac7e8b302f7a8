"""Requests of shapes that could take much memory: the largest that the estimate lets pass, and sparse ones.

Values are random; a slow rank or a slow half of the window gives every stage of a diagnosis work to do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import orjson
import pyarrow as pa

from benchmarks.windows import START, step_columns
from rca.arrays import FloatArray
from rca.whatif.memory import trace_memory
from rca.window import Window
from rca.window.catalogue import KNOWN
from rca.window.encodings.json_text import MEMORY_PER_BYTE
from rca.window.memory import WindowCounts
from rca.window.rows.texts import MAX_TEXTS
from rca.window.rows.validation import MAX_WORLD_SIZE
from rca.window.schema import LOAD_COLUMNS
from rca_api.shell.settings.settings import Settings

Route = Literal["diagnoses", "what-if"]
JOB = "shape"
#: Usual seconds of each phase.
SECONDS = {
    "forward_seconds": 0.4,
    "backward_seconds": 0.8,
    "optimizer_seconds": 0.08,
    "data_loading_seconds": 0.01,
    "host_to_device_seconds": 0.02,
    "checkpoint_seconds": 0.001,
    "gc_seconds": 0.001,
}
TRANSFER_SECONDS = 0.15
#: Largest JSON body that the service takes by default.
MAX_JSON = int(Settings.model_fields["max_json_bytes"].default)


@dataclass(frozen=True)
class ShapedRequest:
    """A body, the route it is sent to, and the estimate of its memory.

    Attributes
    ----------
    earlier : bytes or None
        An earlier window of the job, which the service has stored.
    """

    route: Route
    body: bytes
    estimate: int = 0
    earlier: bytes | None = None


@dataclass(frozen=True)
class ShapeFamily:
    """A family of windows by size.

    Attributes
    ----------
    make : callable
        Makes the window of a size, such as a number of ranks.
    small : int
        A size that is made quickly, but not so small that constants count.
    routes : tuple of Route
    most : int
        Largest size that the format allows.
    as_json : bool
    earlier : bool
        Whether the window is compared with an equal one of the day before.
    """

    make: Callable[[int], Window]
    small: int
    routes: tuple[Route, ...] = ("diagnoses",)
    most: int = 10**9
    as_json: bool = False
    earlier: bool = False


def largest(shape: ShapeFamily, limit: int) -> list[ShapedRequest]:
    """Requests of the largest size with an estimate of at most `limit` bytes, one per route."""
    requests = []
    for route in shape.routes:
        # The estimate grows linearly with the size, or nearly so.
        one, two = (estimate(shape, shape.make(n), route) for n in (shape.small, 2 * shape.small))
        size = min(shape.small * (1 + (limit - one) / (two - one)), shape.most)
        share = 2.0
        while share > 1:
            window = shape.make(int(size))
            found = estimate(shape, window, route)
            body = window.to_json() if shape.as_json else window.to_arrow()
            share = max(found / limit, len(body) / MAX_JSON if shape.as_json else 0.0)
            size *= min(0.99, 1 / share)
        if shape.as_json:
            # Reading the text may take more than the work.
            found = max(found, MEMORY_PER_BYTE * len(body))
        requests.append(ShapedRequest(route, body, found, _before(window) if shape.earlier else None))
    return requests


def estimate(shape: ShapeFamily, window: Window, route: Route) -> int:
    """Bytes that the service reckons with."""
    if route == "what-if" and window.ops.num_rows:
        return trace_memory(window)
    counts = WindowCounts.of(window)
    if shape.earlier:
        counts = counts.after(counts)
    return counts.memory("replay" if route == "what-if" else "diagnosis")


def _before(window: Window) -> bytes:
    """The same window a day earlier, with steps a fifth shorter."""
    day = 86_400.0

    def changed(table: pa.Table, column: str, values: FloatArray) -> pa.Table:
        return table.set_column(table.column_names.index(column), column, pa.array(values))

    job = window.job.model_copy(update={"start": window.job.start - day, "end": window.job.end - day})
    steps = changed(window.steps, "start_time", window.steps["start_time"].to_numpy() - day)
    for name in (*SECONDS, "communication_transfer_seconds", "step_seconds"):
        if name in steps.column_names:
            steps = changed(steps, name, 0.8 * steps[name].to_numpy())
    metrics = changed(window.metrics, "time", window.metrics["time"].to_numpy() - day)
    return Window.from_tables(job, steps, metrics).to_arrow()


def timed(
    n_ranks: int,
    n_steps: int,
    *,
    phases: int = 3,
    stages: int = 1,
    slow: str = "ranks",
    fill: float = 1.0,
    metrics: pa.Table | None = None,
    nodes: int | None = None,
) -> Window:
    """A window with step rows.

    Parameters
    ----------
    phases : int
        Own phases, 1 to 7; from 7 on with all columns of the format.
    slow : {"ranks", "job", ""}
        Sixteen slow ranks, or slow collectives, in the second half, or neither.
    fill : float
        Share of the cells that have a row.
    nodes : int, optional
        Ranks per node.
    """
    rng, half = np.random.default_rng(0), n_steps // 2
    size = (n_ranks, n_steps)
    own = {name: usual * rng.lognormal(0, 0.01, size) for name, usual in list(SECONDS.items())[:phases]}
    transfer: FloatArray = np.broadcast_to(TRANSFER_SECONDS * rng.lognormal(0, 0.01, n_steps), size).copy()
    if slow == "job":
        transfer[:, half:] *= 2.5
    elif slow == "ranks":
        for rank in rng.choice(n_ranks, min(16, n_ranks // 4), replace=False):
            own["forward_seconds"][rank, half:] *= rng.uniform(1.2, 1.6)
    columns = step_columns(own, transfer)
    wait = columns["communication_wait_seconds"]
    if phases >= len(SECONDS):
        columns |= {"communication_seconds": wait + transfer}
        columns |= {name: rng.integers(100, 200, size).astype(float) for name in LOAD_COLUMNS}
    rank, step = (axis.ravel() for axis in np.indices(size))
    filled = np.linspace(0, rank.size - 1, int(fill * rank.size)).astype(int)
    kept = slice(None) if fill >= 1 else np.unique(filled)
    table = {
        "rank": rank[kept].astype(np.int32),
        "step": step[kept],
        **{name: seconds.ravel()[kept] for name, seconds in columns.items()},
    }
    job: dict[str, Any] = {
        "job_id": JOB,
        "world_size": n_ranks,
        "start": START,
        "end": float(columns["start_time"].max() + 5),
    }
    if stages > 1:
        job["parallelism"] = {"data": n_ranks // stages, "pipeline": stages}
    if nodes is not None:
        job["ranks"] = [{"rank": rank, "node": f"node-{rank // nodes}"} for rank in range(n_ranks)]
    return Window.from_tables(job, pa.table(table), metrics)


def sampled(
    n_ranks: int, n_samples: int, *, signals: int = 20, devices: int = 1, order: str = "series"
) -> pa.Table:
    """Metrics of known names.

    Parameters
    ----------
    n_ranks, n_samples, signals, devices : int
        Samples are per series.
    order : {"series", "time"}
        "time" also leaves values out, as scrapes do.
    """
    names = [signal.name for signal in KNOWN if signal.all_channels()][:signals]
    shape = (len(names), devices, n_ranks, n_samples)
    name, device, rank, sample = (axis.ravel() for axis in np.indices(shape, dtype=np.int32))
    rng = np.random.default_rng(0)
    value = rng.random(name.size)
    table = pa.table(
        {
            "time": START + 10.0 * (sample + rng.random()) / n_samples,
            "rank": rank,
            "name": pa.DictionaryArray.from_arrays(name, pa.array(names)),
            "device": pa.DictionaryArray.from_arrays(device, pa.array([f"d{i}" for i in range(devices)])),
            "value": value,
        }
    )
    if order == "time":
        value[::7] = np.nan
        table = table.take(pa.array(np.argsort(sample, kind="stable")))
    return table


def events(n_events: int) -> pa.Table:
    """Log lines of progress, each another text."""
    return pa.table(
        {
            "time": START + np.linspace(0, 10, n_events),
            "rank": pa.array(np.arange(n_events) % 64, pa.int32()),
            "kind": pa.array(["log"]).take(pa.array(np.zeros(n_events, dtype=int))),
            "message": [f"step {i} loss 2.71 tokens 4096" for i in range(n_events)],
        }
    )


def with_events(window: Window, table: pa.Table) -> Window:
    """The window with these events."""
    return Window.from_tables(window.job, window.steps, window.metrics, table)


def traced(n_steps: int, *, n_data: int = 16, microbatches: int = 8) -> Window:
    """Operations of a job without a pipeline."""
    kinds = ["forward-compute", "backward-compute"]
    step, data, kind, batch = (axis.ravel() for axis in np.indices((n_steps, n_data, 2, microbatches)))
    none = np.full(step.size, -1)
    table = pa.table(
        {
            "rank": data,
            "dp_rank": data,
            "stage": 0 * data,
            "step": step,
            "optype": pa.DictionaryArray.from_arrays(kind.astype(np.int32), pa.array(kinds)),
            "seq_id": batch,
            "mc": 0 * data,
            "gmc": none,
            "mb_id": none,
            "start_ts": START + step * 10.0 + 0.1 * (2 * batch + kind),
            "duration": 0.1 * np.random.default_rng(0).lognormal(0, 0.1, step.size),
        }
    )
    job = {"job_id": JOB, "world_size": n_data, "start": START, "end": START + 10.0 * n_steps}
    return Window.from_tables(job, timed(n_data, 2).steps, None, None, table)


ROUTES: tuple[Route, ...] = ("diagnoses", "what-if")
SHAPES: dict[str, ShapeFamily] = {
    "ranks, one step each": ShapeFamily(lambda n: timed(n, 1, phases=1), 4_000, ROUTES, most=MAX_WORLD_SIZE),
    "ranks x 100 steps, all columns": ShapeFamily(lambda n: timed(n, 100, phases=7), 400, ROUTES),
    "ranks x 100 steps, few columns": ShapeFamily(lambda n: timed(n, 100, phases=1, slow="job"), 400, ROUTES),
    "ranks x 100 steps, pipeline": ShapeFamily(
        lambda n: timed(n // 8 * 8, 100, phases=7, stages=8), 400, ROUTES
    ),
    "8 ranks, many steps": ShapeFamily(lambda n: timed(8, n, phases=7), 5_000, ROUTES),
    "one cell of 30 filled": ShapeFamily(lambda n: timed(n, 700, phases=7, fill=1 / 30), 100, ROUTES),
    "all ranks on one node": ShapeFamily(lambda n: timed(n, 20, nodes=n), 1_000),
    "as JSON": ShapeFamily(lambda n: timed(n, 100, phases=5), 100, ROUTES, as_json=True),
    "20 metrics of every rank": ShapeFamily(
        lambda n: timed(n, 100, phases=5, metrics=sampled(n, 10), nodes=8), 400
    ),
    "with an earlier window": ShapeFamily(
        lambda n: timed(n, 100, phases=5, slow="", metrics=sampled(n, 10)), 200, earlier=True
    ),
    "every known metric, few ranks": ShapeFamily(
        lambda n: timed(n, 20, metrics=sampled(16, 4, signals=300)), 1_000
    ),
    "series of one sample": ShapeFamily(
        lambda n: timed(64, 20, metrics=sampled(64, 1, signals=100, devices=n)), 10
    ),
    # Its tables are the largest that the service decodes by default.
    "samples in order of time": ShapeFamily(
        lambda n: timed(64, 20, metrics=sampled(64, n, order="time")), 100, most=4_200
    ),
    "one long series": ShapeFamily(lambda n: timed(8, 20, metrics=sampled(1, n, signals=1)), 100_000),
    "events, each another text": ShapeFamily(
        lambda n: with_events(timed(64, 20), events(n)), 20_000, most=MAX_TEXTS
    ),
    "operations": ShapeFamily(lambda n: traced(n), 50, ("what-if",)),
}


def _document(world: int, n_steps: int = 1, **job: Any) -> bytes:
    """Four ranks of a large world."""
    rank, step = (axis.ravel().tolist() for axis in np.indices((4, n_steps)))
    return orjson.dumps(
        {
            "job": {"job_id": "j", "world_size": world, "start": START, "end": START + 60.0, **job},
            "steps": {
                "rank": rank,
                "step": step,
                "start_time": [START + each for each in step],
                "step_seconds": [0.2] * len(step),
            },
        }
    )


def _on_both(body: bytes) -> list[ShapedRequest]:
    return [ShapedRequest(route, body) for route in ROUTES]


def _diagonal() -> bytes:
    """7 MB of Arrow: every rank in steps of its own."""
    n = 60_000
    at = np.arange(n)
    table = {"rank": (at // 4).astype(np.int32), "step": at, "start_time": START + 1e-4 * at}
    seconds = dict.fromkeys([*SECONDS, "communication_wait_seconds", "step_seconds"], np.full(n, 1e-5))
    window = timed(8, 2)
    job = window.job.model_copy(update={"world_size": n // 4})
    return replace(window, job=job, steps=pa.table(table | seconds)).to_arrow()


SPARSE: dict[str, Callable[[], list[ShapedRequest]]] = {
    "4 of 1,000,000 ranks": lambda: _on_both(_document(1_000_000)),
    "4 of 200,000 ranks": lambda: _on_both(_document(200_000)),
    "4 of 16,384 ranks": lambda: _on_both(_document(16_384)),
    "4 of 2,000 ranks, 200 steps": lambda: _on_both(_document(2_000, 200)),
    "16,384 stages": lambda: _on_both(_document(16_384, parallelism={"pipeline": 16_384})),
    "15,000 ranks in 60,000 steps": lambda: _on_both(_diagonal()),
    "twice the limit": lambda: [
        ShapedRequest("diagnoses", timed(8_000, 250, phases=7).to_arrow()),
        ShapedRequest("what-if", timed(8_000, 250, phases=7).to_arrow()),
    ],
}
