"""Who waits for whom, step by step: tensor ranks, then pipeline stages, then data ranks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rca.arrays import FloatArray, IntArray
from rca.telemetry.job import Topology


@dataclass(frozen=True)
class PipelineGrid:
    """Ranks ordered by (data rank, stage), so that tensor groups are runs and pipelines are rows.

    Attributes
    ----------
    order : ndarray of shape (n_ranks,), int
        Rank numbers sorted by (data rank, stage).
    starts : ndarray of shape (n_cells,), int
        Where each (data rank, stage) cell begins in `order`.
    cell : ndarray of shape (n_cells,), int
        ``data_rank * n_stages + stage`` of each cell.
    n_data, n_stages : int
    """

    order: IntArray
    starts: IntArray
    cell: IntArray
    n_data: int
    n_stages: int

    @classmethod
    def from_topology(cls, topology: Topology) -> PipelineGrid:
        n_stages = topology.n_stages
        n_data = int(topology.data_rank.max()) + 1
        cells = topology.data_rank * n_stages + topology.stage
        order = np.argsort(cells, kind="stable")
        cell, starts = np.unique(cells[order], return_index=True)
        return cls(order, starts, cell, n_data, n_stages)

    def step_seconds(self, own: FloatArray, bubble: float, serial: FloatArray | None) -> FloatArray:
        """Job step time without transfer.

        Parameters
        ----------
        own : ndarray of shape (..., n_ranks, n_steps), seconds
            NaN = not part of the step.
        bubble : float
            1 / microbatches: 1F1B takes the bottleneck stage's work plus this share of the other stages'.
        serial : ndarray of shape (..., n_ranks, n_steps), seconds, optional
            Part of `own` that runs once per step, outside the pipeline.

        Returns
        -------
        ndarray of shape (..., n_steps), seconds
            NaN where no rank finished the step.
        """
        if self.n_stages == 1:
            # All ranks meet: no need to sort them into data ranks first.
            slowest: FloatArray = np.fmax.reduce(own, axis=-2)
            return slowest
        combined: FloatArray = np.fmax.reduce(self.data_rank_seconds(own, bubble, serial), axis=-2)
        return combined

    def data_rank_seconds(self, own: FloatArray, bubble: float, serial: FloatArray | None) -> FloatArray:
        """Time each data rank would take alone, without transfer: (..., n_data, n_steps), seconds."""
        tail: FloatArray | float = 0.0
        if serial is not None:
            own = np.maximum(own - serial, 0.0)
            tail = np.fmax.reduce(self._per_stage(np.where(np.isnan(own), np.nan, serial)), axis=-2)
        stages = self._per_stage(own)
        bottleneck = np.fmax.reduce(stages, axis=-2)
        in_sequence = np.nansum(stages, axis=-2)
        pipelines: FloatArray = bottleneck + bubble * (in_sequence - bottleneck) + tail
        return pipelines

    def _per_stage(self, values: FloatArray) -> FloatArray:
        """Slowest tensor rank of every cell: (..., n_ranks, n_steps) -> (..., D, P, n_steps)."""
        ordered = values[..., self.order, :]
        slowest = np.fmax.reduceat(ordered, self.starts, axis=-2)
        lead, n_steps = values.shape[:-2], values.shape[-1]
        full = np.full((*lead, self.n_data * self.n_stages, n_steps), np.nan)
        full[..., self.cell, :] = slowest
        return full.reshape(*lead, self.n_data, self.n_stages, n_steps)
