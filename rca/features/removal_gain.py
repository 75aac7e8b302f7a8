"""What the lateness of one rank, node or stage costs a step."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rca.arrays import BoolArray, FloatArray, IntArray
from rca.features.work import Work
from rca.robust import leader_and_runner_up, nan_median
from rca.telemetry.job import Topology


class Gains(NamedTuple):
    """Seconds a step would be shorter without one unit's lateness, each of shape (n_units, n_steps)."""

    rank: FloatArray
    node: FloatArray
    stage: FloatArray

    @classmethod
    def of(cls, excess: FloatArray, work: Work, topology: Topology) -> Gains:
        """From own work above the reference, shape (n_ranks, n_steps), seconds."""
        return cls(
            rank=_gain(excess, np.arange(topology.n_ranks), topology.n_ranks),
            node=_node_gain(excess, topology),
            stage=_stage_gain(work.own, topology),
        )

    def usual(self, steps: BoolArray) -> FloatArray:
        """Median over some steps of every unit's, seconds, shape (n_units of all kinds,)."""
        return np.concatenate([np.median(gain[:, steps], axis=1) for gain in self])


def _gain(lateness: FloatArray, unit: IntArray, n_units: int) -> FloatArray:
    """Seconds the last arrival would move forward without each unit's lateness, per unit and step.

    With the last arrival L1 (by unit u) and the last of the other units L2, unit u costs
    ``L1 - max(L2, 0)``, every other unit costs nothing.
    """
    if n_units == lateness.shape[0]:
        per_unit = lateness
    else:
        per_unit = np.full((n_units, lateness.shape[1]), -np.inf)
        np.maximum.at(per_unit, unit, np.where(np.isfinite(lateness), lateness, -np.inf))
    first, leader, second = leader_and_runner_up(per_unit)
    floor = np.maximum(np.where(np.isfinite(second), second, 0.0), 0.0)
    saved = np.maximum(np.where(np.isfinite(first), first, 0.0) - floor, 0.0)
    out = np.zeros(per_unit.shape)
    known = leader >= 0
    out[leader[known], np.flatnonzero(known)] = saved[known]
    return out


def _node_gain(lateness: FloatArray, topology: Topology) -> FloatArray:
    """`_gain` of the node a rank sits on, per rank; zeros where nodes are unknown or there is one only."""
    n_nodes = len(topology.node_names)
    if n_nodes < 2:
        return np.zeros(lateness.shape)
    unit = np.where(topology.node >= 0, topology.node, n_nodes)
    gain = _gain(lateness, unit, n_nodes + 1)
    return gain[unit]


def _stage_gain(own: FloatArray, topology: Topology) -> FloatArray:
    if topology.n_stages < 2:
        return np.zeros((1, own.shape[1]))
    stages = np.stack([nan_median(own[topology.stage == stage]) for stage in range(topology.n_stages)])
    usual = nan_median(stages)
    return _gain(stages - usual, np.arange(topology.n_stages), topology.n_stages)
