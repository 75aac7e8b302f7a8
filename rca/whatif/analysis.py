"""The front door: a trace or a window in, a `WhatIf` out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from os import PathLike
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from rca.telemetry.window import Window
from rca.whatif.decompose import (
    decompose,
    remove_last_stage,
    remove_workers,
    top_workers,
    worker_scores,
)
from rca.whatif.engine import Engine
from rca.whatif.meta import TraceMeta
from rca.whatif.reader import read_trace, trace_from_table, trace_from_window
from rca.whatif.result import Share, WhatIf, Workers
from rca.whatif.schedules import Schedule, megatron
from rca.whatif.signatures import find_patterns, unsearched_patterns
from rca.whatif.trace import OpTrace
from rca.whatif.trace_replay import TraceReplay

Source: TypeAlias = Window | OpTrace | TraceReplay | pa.Table | str | PathLike[str]
Meta: TypeAlias = TraceMeta | Mapping[str, Any] | str | PathLike[str]


def what_if(
    source: Source,
    meta: Meta | None = None,
    *,
    schedule: Schedule = megatron,
    engine: Engine = "auto",
    correct_clocks: bool = True,
    seed: int = 0,
) -> WhatIf:
    """Replay a job without its stragglers.

    Parameters
    ----------
    source : Window, path, pyarrow.Table, OpTrace or TraceReplay
        A window (its ``ops`` where it has any, its ``steps`` otherwise), a Parquet operation trace, or one
        in memory.
    meta : mapping or path to YAML, optional
        Sizes of the job, for traces.
    schedule : callable
        Dependency rules, for jobs other than 1F1B.
    engine : {"auto", "numpy", "numba"}
    correct_clocks : bool
        False leaves skewed clocks as traced: the published tool does, so comparisons with it must.
    seed : int
        Of the bootstrap intervals.

    Returns
    -------
    WhatIf

    Raises
    ------
    InvalidTrace
        If the trace cannot be replayed, by name.
    """
    if isinstance(source, Window) and source.ops.num_rows == 0:
        from rca.whatif.coarse_analysis import coarse_what_if

        return coarse_what_if(source, seed=seed)
    replay = replay_of(source, meta, schedule=schedule, engine=engine, correct_clocks=correct_clocks)
    return analysed(replay, seed=seed)


def replay_of(
    source: Source,
    meta: Meta | None = None,
    *,
    schedule: Schedule = megatron,
    engine: Engine = "auto",
    correct_clocks: bool = True,
) -> TraceReplay:
    """Make the operation trace in `source` ready for replays."""
    if isinstance(source, TraceReplay):
        return source
    if isinstance(source, Window):
        trace = trace_from_window(source)
    elif isinstance(source, pa.Table):
        trace = trace_from_table(source, TraceMeta.of(meta))
    elif isinstance(source, OpTrace):
        trace = source
    else:
        trace = read_trace(source, meta)
    return TraceReplay.from_trace(trace, schedule=schedule, engine=engine, correct_clocks=correct_clocks)


def analysed(replay: TraceReplay, *, seed: int = 0) -> WhatIf:
    """All results of a replay."""
    found = decompose(replay)
    exact, approximate = worker_scores(found)
    by_exact = remove_workers(replay, found, top_workers(exact, replay.ranks))
    top = top_workers(approximate, replay.ranks)
    by_published = by_exact if top == by_exact.workers else remove_workers(replay, found, top)
    last_stage = remove_last_stage(replay, found)
    n_data, n_stages = replay.ranks.shape
    return WhatIf(
        source="operations",
        job=replay.meta.model_dump(exclude_none=True),
        steps=replay.steps,
        measured=replay.measured.astype(np.float64),
        no_delay=found.no_delay,
        ideal=found.ideal,
        by_type=found.by_type,
        by_data_rank=found.by_data_rank,
        by_stage=found.by_stage,
        workers=Workers(
            rank=replay.ranks.ravel(),
            data_rank=np.repeat(replay.data_ranks, n_stages),
            stage=np.tile(np.arange(n_stages), n_data),
            seconds=found.by_worker.transpose(1, 0, 2).reshape(n_data * n_stages, -1),
            approximate=approximate.ravel(),
        ),
        m_w=Share(by_published.share, by_exact.share, _rank_list(replay, by_exact.workers), by_exact.seconds),
        m_s=Share(
            last_stage.share, last_stage.share, _rank_list(replay, last_stage.workers), last_stage.seconds
        ),
        findings=find_patterns(replay, found, by_exact, last_stage),
        world_size=replay.world_size,
        seed=seed,
        notes=(*replay.notes, *unsearched_patterns(replay)),
        left_out=replay.left_out,
    )


def _rank_list(replay: TraceReplay, workers: Iterable[tuple[int, int]]) -> tuple[int, ...]:
    return tuple(sorted(int(replay.ranks[data_rank, stage]) for data_rank, stage in workers))
