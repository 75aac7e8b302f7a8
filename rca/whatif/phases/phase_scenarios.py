"""Translate scenarios into replaced phases, for jobs of which only per-step phases are known."""

from __future__ import annotations

import numpy as np

from rca.arrays import BoolArray, FloatArray, IntArray
from rca.errors import InvalidInput
from rca.robust import group_members, nan_mean, nan_median
from rca.whatif.phases.phase_replay import PhaseReplay
from rca.whatif.scenario import Change, Scenario, Selection, refuse_absent, refuse_unmatched
from rca.window.job import Topology
from rca.window.times.own_work import SERIAL_PHASES, WORK_PHASES

TRANSFER_PHASE = "communication_transfer_seconds"
_PHASE_OF_TYPE = {
    "forward-compute": "forward_seconds",
    "backward-compute": "backward_seconds",
    "optimizer": "optimizer_seconds",
    "gc": "gc_seconds",
}
_COMPUTE = ("forward_seconds", "backward_seconds")
_PHASES_OF_KIND = {
    "compute": _COMPUTE,
    "communication": (TRANSFER_PHASE,),
    "host": (*SERIAL_PHASES, "host_to_device_seconds"),
}


def phases_under(
    replay: PhaseReplay, steps: IntArray, topology: Topology, scenario: Scenario
) -> dict[str, FloatArray]:
    """Phases that a scenario replaces.

    Returns
    -------
    dict of str to ndarray of shape (n_ranks, n_steps), seconds
        The input of `PhaseReplay.step_seconds`.
    """
    refuse_absent(scenario, _present(topology))
    now = {name: replay.seconds[name].copy() for name in _replaceable(replay)}
    if scenario.base == "ideal":
        now = {
            name: np.where(np.isnan(held), held, _ideal(name, held, topology)) for name, held in now.items()
        }
    matched = np.zeros(len(scenario.changes), dtype=bool)
    for k, change in enumerate(scenario.changes):
        where = _where(change.select, steps, topology)
        chosen = [name for name in _phases(change.select) if name in now]
        if change.to == "move_to_stage":
            chosen = [name for name in _COMPUTE if name in now]
        matched[k] = bool(chosen) and bool(where.any())
        if change.to == "move_to_stage":
            _move(now, change, topology, where)
            continue
        for name in chosen:
            with np.errstate(over="ignore", invalid="ignore"):
                new = _changed(name, now[name], replay.seconds[name], change, where, topology)
            now[name] = np.where(where, new, now[name])
    if any(np.isinf(held).any() for held in now.values()):
        raise InvalidInput(f"scenario {scenario.name!r}: times overflow")
    span = f"steps run from {steps.min()} to {steps.max()}; " if steps.size else ""
    refuse_unmatched(scenario, matched, f"{span}measured: {', '.join(now) or 'whole steps only'}")
    return now


def _present(topology: Topology) -> dict[str, frozenset[int | str]]:
    """Values that scenarios may select in a job, by field of `Selection`."""
    return {
        "ranks": frozenset(range(topology.n_ranks)),
        "data_ranks": frozenset(topology.data_rank.tolist()),
        "stages": frozenset(topology.stage.tolist()),
        "nodes": frozenset(topology.node_names),
    }


def _replaceable(replay: PhaseReplay) -> list[str]:
    return [name for name in (*WORK_PHASES, TRANSFER_PHASE) if name in replay.seconds]


def _phases(select: Selection) -> tuple[str, ...]:
    everything = (*WORK_PHASES, TRANSFER_PHASE)
    if select.kind is not None:
        everything = _PHASES_OF_KIND[select.kind]
    if select.types is None:
        return everything
    wanted = {_phase(name) for name in select.types}
    return tuple(name for name in everything if name in wanted)


def _phase(name: str) -> str:
    if name in _PHASE_OF_TYPE or name.endswith("_seconds"):
        return _PHASE_OF_TYPE.get(name, name)
    raise InvalidInput(
        f"{name} is not measured separately in a window without operations",
        hint=f"use {TRANSFER_PHASE} for all communication",
    )


def _where(select: Selection, steps: IntArray, topology: Topology) -> BoolArray:
    ranks = np.ones(topology.n_ranks, dtype=bool)
    for chosen, coordinate in (
        (select.ranks, np.arange(topology.n_ranks)),
        (select.data_ranks, topology.data_rank),
        (select.stages, topology.stage),
    ):
        if chosen is not None:
            ranks &= np.isin(coordinate, chosen)
    if select.nodes is not None:
        names = np.array([*topology.node_names, ""])
        ranks &= np.isin(names[topology.node], select.nodes)
    columns = np.ones(steps.size, dtype=bool)
    if select.steps is not None:
        columns = (steps >= select.steps[0]) & (steps <= select.steps[1])
    selected: BoolArray = ranks[:, None] & columns[None, :]
    return selected


def _ideal(name: str, held: FloatArray, topology: Topology) -> float:
    return float(np.nanmedian(held)) if name == TRANSFER_PHASE else usual_phase(held, topology)


def usual_phase(seconds: FloatArray, topology: Topology) -> float:
    """Mean over steps and stages of a phase on the median rank of each stage, seconds.

    Of two ranks the quicker one counts. A mean over all ranks would keep a part of a straggler's excess.

    Parameters
    ----------
    seconds : ndarray of shape (n_ranks, n_steps)
    """
    of_ranks = nan_mean(seconds, axis=1)
    of_stages = [
        np.nanquantile(of_ranks[members], 0.5, method="lower")
        for members in group_members(topology.stage)
        if np.isfinite(of_ranks[members]).any()
    ]
    return float(np.mean(of_stages)) if of_stages else 0.0


def _changed(
    name: str, now: FloatArray, traced: FloatArray, change: Change, where: BoolArray, topology: Topology
) -> FloatArray | float:
    value = change.value or 0.0
    if change.to == "ideal":
        return _ideal(name, traced, topology)
    if change.to == "measured":
        return traced
    if change.to == "scale":
        return now * value
    if change.to == "less":
        return np.minimum(now, np.maximum(now - value, 0.0))
    if change.to == "seconds":
        return value
    others = np.where(where, np.nan, now)
    at_step = nan_median(others)
    usual = np.nanmedian(others) if np.isfinite(others).any() else _ideal(name, traced, topology)
    return np.where(np.isnan(at_step), usual, at_step)


def _move(now: dict[str, FloatArray], change: Change, topology: Topology, where: BoolArray) -> None:
    """Move compute to another stage, between ranks with the same data and tensor coordinates."""
    place = {
        (int(d), int(t)): rank
        for rank, (d, t, s) in enumerate(
            zip(topology.data_rank, topology.tensor_rank, topology.stage, strict=True)
        )
        if s == change.stage
    }
    for name in _COMPUTE:
        if name not in now:
            continue
        for rank in np.flatnonzero(where.any(axis=1)):
            coordinates = int(topology.data_rank[rank]), int(topology.tensor_rank[rank])
            peer = place.get(coordinates)
            if peer is None:
                raise InvalidInput(f"stage {change.stage} has no peer of rank {rank} to move work to")
            moved = np.nan_to_num(now[name][rank]) * (change.value or 0.0) * where[rank]
            now[name][rank] -= moved
            now[name][peer] += moved
