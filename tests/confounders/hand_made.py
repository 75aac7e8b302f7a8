"""Exporters for hand-made windows, and short ways to read the ranks and causes of a diagnosis."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa

from rca.diagnosis import Diagnosis
from rca.window import Window
from rca.window.times.phases import PhaseArrays

SAMPLES_PER_STEP = 2

BUSY_CLOCK, IDLE_CLOCK, HOT_CLOCK = 1755.0, 600.0, 1170.0
IDLE_REASON, THERMAL_REASON = 0x1, 0x20

#: A slow GPU lengthens its kernels, wherever they are.
KERNELS = {"forward_seconds": 0.35, "backward_seconds": 0.65}


@dataclass(frozen=True)
class Exported:
    """One metric of every rank or node.

    Attributes
    ----------
    level : array broadcastable to (n_ranks or n_nodes, n_steps)
        The value during each step; of a counter, its rate per second.
    starts_at : float
        What a counter has counted before the window.
    resets_in : dict of int to int
        Rank or node -> step in which its exporter is restarted, so that the counter begins again at zero.
    """

    name: str
    level: object
    scope: Literal["rank", "node"] = "rank"
    counter: bool = False
    starts_at: float = 1e6
    resets_in: tuple[tuple[int, int], ...] = ()


def exported(window: Window, *series: Exported) -> Window:
    """The window with these metrics in place of its own, `SAMPLES_PER_STEP` samples in every step."""
    start, length = _steps(window)
    part = (np.arange(SAMPLES_PER_STEP) + 0.5) / SAMPLES_PER_STEP
    times = (start[:, None] + length[:, None] * part).ravel()
    tables = [_table(each, window, times, length) for each in series]
    return Window.from_tables(window.job, window.steps, pa.concat_tables(tables), window.events)


def waiting_share(window: Window) -> np.ndarray:
    """Share of every step that each rank spends waiting for the last one, shape (n_ranks, n_steps)."""
    phases = PhaseArrays.from_window(window)
    return phases.phase("communication_wait_seconds") / phases.phase("step_seconds")


def idle_gpus(window: Window, *, above: float = 0.3) -> tuple[Exported, ...]:
    """What DCGM reports where GPUs fall asleep while they wait for longer than this share of the step."""
    asleep = waiting_share(window) > above

    def level(name: str, idle: float, busy: float) -> Exported:
        return Exported(name, np.where(asleep, idle, busy))

    return (
        level("DCGM_FI_DEV_SM_CLOCK", IDLE_CLOCK, BUSY_CLOCK),
        level("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", IDLE_REASON, 0),
        level("DCGM_FI_DEV_POWER_USAGE", 95.0, 610.0),
        level("DCGM_FI_DEV_GPU_TEMP", 41.0, 63.0),
        level("DCGM_FI_DEV_GPU_UTIL", 18.0, 96.0),
        level("DCGM_FI_PROF_SM_ACTIVE", 0.12, 0.8),
        level("DCGM_FI_DEV_PCIE_LINK_GEN", 1, 5),
        level("DCGM_FI_DEV_PCIE_MAX_LINK_GEN", 5, 5),
        level("DCGM_FI_DEV_PCIE_LINK_WIDTH", 16, 16),
        level("DCGM_FI_DEV_PCIE_MAX_LINK_WIDTH", 16, 16),
    )


def replaced(series: tuple[Exported, ...], rank: int, **levels: float) -> tuple[Exported, ...]:
    """The same metrics, but one rank reports these constant levels (by the end of the metric's name)."""
    changed = []
    for each in series:
        level = np.array(each.level, dtype=float)
        for ending, value in levels.items():
            if each.name.endswith(ending):
                level[rank] = value
        changed.append(Exported(each.name, level, each.scope, each.counter))
    return tuple(changed)


def blamed(diagnosis: Diagnosis) -> set[int]:
    """All ranks that the answer names as stragglers."""
    return {rank for straggler in diagnosis.stragglers for rank in straggler.ranks}


def components(diagnosis: Diagnosis) -> set[tuple[str, tuple[int, ...]]]:
    """Scope and ranks of every straggler."""
    return {(straggler.scope, tuple(straggler.ranks)) for straggler in diagnosis.stragglers}


def believed(diagnosis: Diagnosis, probability: float = 0.4) -> set[tuple[str, tuple[int, ...]]]:
    """Causes, with their ranks, that a reader would act on."""
    return {
        (cause.cause, tuple(cause.ranks)) for cause in diagnosis.causes if cause.probability >= probability
    }


def names_of(causes: set[tuple[str, tuple[int, ...]]]) -> set[str]:
    return {cause for cause, _ in causes}


def _steps(window: Window) -> tuple[np.ndarray, np.ndarray]:
    phases = PhaseArrays.from_window(window)
    return np.nanmedian(phases.start_time, axis=0), np.nanmedian(phases.phase("step_seconds"), axis=0)


def _table(each: Exported, window: Window, times: np.ndarray, length: np.ndarray) -> pa.Table:
    topology = window.job.topology
    n_entities = topology.n_ranks if each.scope == "rank" else len(topology.node_names)
    level = np.broadcast_to(np.asarray(each.level, dtype=float), (n_entities, length.size))
    values = np.repeat(level, SAMPLES_PER_STEP, axis=1)
    if each.counter:
        values = each.starts_at + np.cumsum(
            values * np.repeat(length / SAMPLES_PER_STEP, SAMPLES_PER_STEP), axis=1
        )
        for entity, step in each.resets_in:
            first = step * SAMPLES_PER_STEP
            values[entity, first:] -= values[entity, first]
    entity = np.repeat(np.arange(n_entities), times.size)
    nodes = topology.node if each.scope == "rank" else np.arange(n_entities)
    ranks = pa.array(entity, pa.int32()) if each.scope == "rank" else pa.nulls(entity.size, pa.int32())
    return pa.table(
        {
            "time": np.tile(times, n_entities),
            "node": pa.array([topology.node_names[index] for index in nodes[entity]]),
            "rank": ranks,
            "device": pa.nulls(entity.size, pa.string()),
            "name": pa.array([each.name] * entity.size),
            "value": values.ravel(),
        }
    )
