"""Analyse a trace or a window: the slowdown, its decomposition, and step times under scenarios."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rca.arrays import FloatArray
from rca.errors import InvalidInput, TooLarge
from rca.whatif.attribution import Share, WorkerSlowdowns
from rca.whatif.decompose import (
    decompose,
    remove_last_stage,
    remove_workers,
    top_workers,
    worker_scores,
)
from rca.whatif.graph.replay import Engine
from rca.whatif.graph.schedules import Schedule, by_types
from rca.whatif.graph.trace_replay import TraceReplay
from rca.whatif.memory import refuse_large_source
from rca.whatif.operation_scenarios import scenario_seconds
from rca.whatif.patterns import find_patterns, unsearched_patterns
from rca.whatif.phases.phase_analysis import analysed_phase_scenarios, phase_scenario_seconds, phase_what_if
from rca.whatif.result import WhatIf
from rca.whatif.scenario import Scenario
from rca.whatif.trace.reader import read_trace, trace_from_table, trace_from_window
from rca.whatif.trace.trace import OpTrace, TraceMeta
from rca.window.memory import MAX_MEMORY_BYTES
from rca.window.window import Window

Source: TypeAlias = Window | OpTrace | TraceReplay | pa.Table | str | PathLike[str]
Meta: TypeAlias = TraceMeta | Mapping[str, Any] | str | PathLike[str]


def what_if(
    source: Source,
    meta: Meta | None = None,
    *,
    schedule: Schedule = by_types,
    engine: Engine = "auto",
    correct_clocks: bool = True,
    seed: int = 0,
    max_memory_bytes: int | None = MAX_MEMORY_BYTES,
) -> WhatIf:
    """Replay a job without its stragglers.

    Parameters
    ----------
    source : Window, path, pyarrow.Table, OpTrace or TraceReplay
        A window, a Parquet operation trace, or a trace in memory. Of a window the ``ops`` are replayed; if
        it has none, its ``steps``.
    meta : mapping or path to YAML, optional
        Sizes of the job, for traces.
    schedule : callable
        Dependency rules, for jobs other than 1F1B.
    engine : {"auto", "numpy", "numba"}
    correct_clocks : bool
        False leaves skewed clocks as traced. Use it to compare with the published tool, which does the same.
    seed : int
        Seed of the bootstrap intervals.
    max_memory_bytes : int, optional
        Sources that need more memory are refused before any work; None for no limit.

    Returns
    -------
    WhatIf

    Raises
    ------
    InvalidTrace
        If the trace cannot be replayed. The message names the row, column or step.
    TooLarge
        If the source needs more than `max_memory_bytes`.
    """
    if isinstance(source, Window) and source.ops.num_rows == 0:
        refuse_large_source(source, max_memory_bytes)
        return phase_what_if(source, seed=seed)
    replay = replay_of(
        source,
        meta,
        schedule=schedule,
        engine=engine,
        correct_clocks=correct_clocks,
        max_memory_bytes=max_memory_bytes,
    )
    return analysed(replay, seed=seed)


def replay_of(
    source: Source,
    meta: Meta | None = None,
    *,
    schedule: Schedule = by_types,
    engine: Engine = "auto",
    correct_clocks: bool = True,
    max_memory_bytes: int | None = MAX_MEMORY_BYTES,
) -> TraceReplay:
    """Read the operation trace in `source` and prepare it for replays."""
    if isinstance(source, TraceReplay):
        return source
    refuse_large_source(source, max_memory_bytes)
    if isinstance(source, Window):
        trace = trace_from_window(source)
    elif isinstance(source, pa.Table):
        trace = trace_from_table(source, TraceMeta.of(meta))
    elif isinstance(source, OpTrace):
        trace = source
    else:
        trace = read_trace(source, meta)
    return TraceReplay.from_trace(
        trace,
        schedule=schedule,
        engine=engine,
        correct_clocks=correct_clocks,
        max_memory_bytes=max_memory_bytes,
    )


def analysed(replay: TraceReplay, *, seed: int = 0) -> WhatIf:
    """Decompose the slowdown of a replay, and look for patterns."""
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
        workers=WorkerSlowdowns(
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


Description: TypeAlias = Scenario | Mapping[str, Any]

MAX_SCENARIOS = 10_000
MAX_CHANGES = 100
"""Scenarios taken at once, and changes of each."""


def scenarios_of(
    source: Source,
    scenarios: Sequence[Description],
    meta: Meta | None = None,
    *,
    schedule: Schedule = by_types,
    engine: Engine = "auto",
) -> FloatArray:
    """Step times under described scenarios.

    Parameters
    ----------
    source, meta, schedule, engine
        As in `what_if`.

    Returns
    -------
    ndarray of shape (n_scenarios, n_steps), seconds
        Without launch delays. Compare with the empty scenario, ``{"name": "as is"}``.
    """
    described = [Scenario.of(scenario) for scenario in scenarios]
    if isinstance(source, Window) and source.ops.num_rows == 0:
        refuse_large_source(source, MAX_MEMORY_BYTES)
        return phase_scenario_seconds(source, described)
    replay = replay_of(source, meta, schedule=schedule, engine=engine)
    return scenario_seconds(replay, described, _nodes(source, replay))


def analysed_scenarios(
    source: Source,
    scenarios: Sequence[Description],
    meta: Meta | None = None,
    *,
    seed: int = 0,
    replay: TraceReplay | None = None,
    max_memory_bytes: int | None = MAX_MEMORY_BYTES,
) -> tuple[WhatIf, FloatArray]:
    """Analyse a source, and give the step times under described scenarios for the analysed steps.

    Parameters
    ----------
    source, meta, seed, max_memory_bytes
        As in `what_if`.
    replay : TraceReplay, optional
        The replay of `source`, if the caller already has it.

    Returns
    -------
    result : WhatIf
    seconds : ndarray of shape (n_scenarios, n_steps), seconds
        Compare with ``result.no_delay``.
    """
    described = described_all(scenarios)
    if isinstance(source, Window) and source.ops.num_rows == 0:
        refuse_large_source(source, max_memory_bytes)
        return analysed_phase_scenarios(source, described, seed=seed)
    if replay is None:
        replay = replay_of(source, meta, max_memory_bytes=max_memory_bytes)
    nodes = _nodes(source, replay)
    return analysed(replay, seed=seed), scenario_seconds(replay, described, nodes)


def described_all(scenarios: object) -> list[Scenario]:
    """Scenarios from plain data, within limits.

    Raises
    ------
    InvalidInput
        Naming the scenario by its position, counted from 0, and the field.
    TooLarge
        If there are more scenarios or changes than one call may have.
    """
    if not isinstance(scenarios, Sequence) or isinstance(scenarios, (str, bytes)):
        raise InvalidInput("scenarios must be a list", hint='[{"name": ..., "changes": [...]}, ...]')
    if len(scenarios) > MAX_SCENARIOS:
        raise TooLarge(f"{len(scenarios):,} scenarios; at most {MAX_SCENARIOS:,} are taken at once")
    described = []
    for position, scenario in enumerate(scenarios):
        try:
            described.append(Scenario.of(scenario))
        except InvalidInput as error:
            raise InvalidInput(
                f"scenarios[{position}]: {error.message.removeprefix('scenario: ')}"
            ) from error
        if len(described[-1].changes) > MAX_CHANGES:
            raise TooLarge(f"scenarios[{position}] has more than {MAX_CHANGES} changes")
    return described


def _nodes(source: Source, replay: TraceReplay) -> npt.NDArray[np.str_] | None:
    """Node of every worker; None if the source is no window, or its job names no nodes."""
    if not isinstance(source, Window) or not source.job.topology.node_names:
        return None
    topology = source.job.topology
    if int(replay.ranks.max()) >= topology.n_ranks:
        raise InvalidInput("operations name ranks the job does not have")
    names = np.array([*topology.node_names, ""])
    held: npt.NDArray[np.str_] = names[topology.node[replay.ranks]]
    return held
