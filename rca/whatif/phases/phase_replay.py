"""Replay of a job of which only per-step phases are known: one number per rank, step and phase.

The ranks of a synchronous job leave a collective together. The step time is therefore a max-plus function of
their own work:

- without a pipeline, the largest own work of the group plus its transfer;
- with a pipeline, the 1F1B time of the stages' work plus the transfer.

The remaining time of a rank is waiting. It follows from the replay.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from rca.arrays import FloatArray, IntArray
from rca.errors import InvalidInput
from rca.robust import nan_median, nan_min
from rca.window.job import Job, Topology
from rca.window.times.own_work import SERIAL_PHASES, WORK_PHASES, OwnWork, own_work
from rca.window.times.phases import PhaseArrays


@dataclass(frozen=True)
class PipelineGrid:
    """Ranks ordered by (data rank, stage). Tensor groups are runs, pipelines are rows.

    Attributes
    ----------
    order : ndarray of shape (n_ranks,), int
        Rank numbers sorted by (data rank, stage).
    starts : ndarray of shape (n_cells,), int
        Where each (data rank, stage) cell begins in `order`.
    cell : ndarray of shape (n_cells,), int
        ``data_rank * n_stages + stage`` of each cell.
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
            1 / microbatches. 1F1B takes the work of the slowest stage, plus this share of the others.
        serial : ndarray of shape (..., n_ranks, n_steps), seconds, optional
            Part of `own` that runs once per step, outside the pipeline.

        Returns
        -------
        ndarray of shape (..., n_steps), seconds
            NaN where no rank finished the step.
        """
        if self.n_stages == 1:
            # All ranks synchronise, so the grouping by data rank does not matter.
            slowest: FloatArray = np.fmax.reduce(own, axis=-2)
            return slowest
        combined: FloatArray = np.fmax.reduce(self.data_rank_seconds(own, bubble, serial), axis=-2)
        return combined

    def data_rank_seconds(self, own: FloatArray, bubble: float, serial: FloatArray | None) -> FloatArray:
        """Time of each data rank alone, without transfer: (..., n_data, n_steps), seconds."""
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


OUTCOMES = ("communication_wait_seconds",)
TRANSFERS = ("communication_transfer_seconds", "communication_seconds")


@dataclass(frozen=True)
class PhaseReplay:
    """Step time as a function of the ranks' own work.

    Attributes
    ----------
    measured : ndarray of shape (n_steps,), seconds
        Job step time: the median of ``step_seconds`` over ranks. Between two barriers all ranks take the
        same time, but the step boundary of one rank may be before or after a barrier.
    own : ndarray of shape (n_ranks, n_steps), seconds
        Work without waiting and transfer; NaN if the rank did not finish the step.
    transfer : ndarray of shape (n_steps,), seconds
        Transfer of the group, after its last member has arrived.
    replayed : ndarray of shape (n_steps,), seconds
        The replay with nothing replaced.
    fidelity : float
        Median over steps of ``abs(replayed - measured) / measured``; NaN if no step was measured.
    informative : bool
        False if only ``step_seconds`` was measured. Then no rank or phase can be named, and the replay
        equals the measurement.
    bubble : float
        Share of the work of the faster stages that is exposed, 1 / microbatches; 0 without a pipeline.
    notes : tuple of str
        Values that were derived, not measured.
    """

    measured: FloatArray
    own: FloatArray
    transfer: FloatArray
    replayed: FloatArray
    fidelity: float
    informative: bool
    bubble: float
    notes: tuple[str, ...]
    seconds: Mapping[str, FloatArray] = field(repr=False)
    serial: FloatArray | None = field(repr=False)
    grid: PipelineGrid = field(repr=False)

    @classmethod
    def from_arrays(cls, phases: PhaseArrays, job: Job) -> PhaseReplay:
        """Split the steps of every rank into own work, waiting and transfer, and fit unmeasured values.

        Parameters
        ----------
        job : Job
            Uses `job.hints["microbatches"]`; if absent, the number is fitted to `measured`.
        """
        topology = job.topology
        work, grid = own_work(phases, topology.stage), PipelineGrid.from_topology(topology)
        measured = nan_median(phases.phase("step_seconds"))
        if not work.informative:
            return cls(
                measured=measured,
                own=work.own,
                transfer=np.zeros_like(measured),
                replayed=measured.copy(),
                fidelity=0.0 if np.isfinite(measured).any() else float("nan"),
                informative=False,
                bubble=0.0,
                notes=(*work.notes, "only whole steps were measured: no rank or phase can be named"),
                seconds=phases.seconds,
                serial=None,
                grid=grid,
            )
        serial = work.serial if grid.n_stages > 1 else None
        transfer, bubble, replayed, notes = _fit(work, grid, serial, measured, job.hints.get("microbatches"))
        return cls(
            measured=measured,
            own=work.own,
            transfer=transfer,
            replayed=replayed,
            fidelity=_fidelity(replayed, measured),
            informative=True,
            bubble=bubble,
            notes=(*work.notes, *notes),
            seconds=phases.seconds,
            serial=serial,
            grid=grid,
        )

    def step_seconds(self, phases_override: Mapping[str, FloatArray] | None = None) -> FloatArray:
        """Job step time with some phases replaced.

        Parameters
        ----------
        phases_override : mapping of str to ndarray of shape (n_ranks, n_steps), seconds
            New durations by phase column. NaN keeps the measured value. An unmeasured phase stays unknown.
            Waiting cannot be replaced, because it follows from the other phases.

        Returns
        -------
        ndarray of shape (n_steps,), seconds
        """
        if not phases_override:
            return self.replayed.copy()
        own, serial, transfer = self.own, self.serial, self.transfer
        for name, new in phases_override.items():
            change = self._change(name, np.asarray(new, dtype=np.float64))
            if name in TRANSFERS:
                transfer = self._transfer_with(name, change)
                continue
            own = own + change
            if serial is not None and name in SERIAL_PHASES:
                serial = serial + change
        if not self.informative:
            return self.measured.copy()
        return self.evaluate(np.maximum(own, 0.0), serial, transfer)

    def evaluate(self, own: FloatArray, serial: FloatArray | None, transfer: FloatArray) -> FloatArray:
        """Job step time for other own work, batched over leading scenario axes.

        Parameters
        ----------
        own : ndarray of shape (..., n_ranks, n_steps), seconds
            NaN takes the rank out of the step. In a pipeline, changes are spread over the microbatches.
        serial : ndarray of shape (..., n_ranks, n_steps), seconds, optional
            Part of `own` outside the pipeline; as traced in `self.serial`.
        transfer : ndarray of shape (..., n_steps), seconds
            Transfer of the group; as traced in `self.transfer`.

        Returns
        -------
        ndarray of shape (..., n_steps), seconds
        """
        return self.grid.step_seconds(own, self.bubble, serial) + transfer

    def _change(self, name: str, new: FloatArray) -> FloatArray:
        if name in OUTCOMES:
            raise InvalidInput(f"{name} is a result of the replay and cannot be replaced")
        if name not in (*WORK_PHASES, *TRANSFERS, "step_seconds"):
            raise InvalidInput(f"{name} is not a phase")
        if new.shape != self.own.shape:
            raise InvalidInput(f"{name} has shape {new.shape}, expected {self.own.shape}")
        held = self.seconds.get(name)
        return np.zeros_like(new) if held is None else np.nan_to_num(new - held)

    def _transfer_with(self, name: str, change: FloatArray) -> FloatArray:
        """Shift the transfer of the group by the change of the same statistic over its members."""
        held = self.seconds.get(name)
        if held is None:
            return self.transfer
        statistic = nan_median if name == "communication_transfer_seconds" else nan_min
        shift = statistic(held + change) - statistic(held)
        return np.maximum(self.transfer + np.nan_to_num(shift), 0.0)


def _fit(
    work: OwnWork,
    grid: PipelineGrid,
    serial: FloatArray | None,
    measured: FloatArray,
    microbatches: object,
) -> tuple[FloatArray, float, FloatArray, list[str]]:
    """Transfer, bubble share and unchanged replay; unmeasured values are fitted to `measured`."""
    notes: list[str] = []
    bubble = 0.0
    if grid.n_stages > 1:
        bubble, notes = _fit_bubble(work, grid, serial, measured, microbatches)
    without_transfer = grid.step_seconds(work.own, bubble, serial)
    residual = np.maximum(measured - without_transfer, 0.0)
    if work.transfer is None:
        transfer = np.nan_to_num(residual)
        notes.append("no communication measured: transfer is the measured step time minus the replayed work")
    elif grid.n_stages > 1 and not work.split:
        # Unsplit communication of a pipeline includes the bubble, which the 1F1B time already counts.
        transfer = np.fmin(work.transfer, residual)
    else:
        transfer = work.transfer
    return transfer, bubble, without_transfer + transfer, notes


def _fit_bubble(
    work: OwnWork,
    grid: PipelineGrid,
    serial: FloatArray | None,
    measured: FloatArray,
    microbatches: object,
) -> tuple[float, list[str]]:
    transfer = work.transfer if work.split and work.transfer is not None else 0.0
    bottleneck = grid.step_seconds(work.own, 0.0, serial)
    in_sequence = grid.step_seconds(work.own, 1.0, serial)
    with np.errstate(invalid="ignore", divide="ignore"):
        share = (measured - transfer - bottleneck) / (in_sequence - bottleneck)
    share = share[np.isfinite(share)]
    fitted = float(np.clip(np.median(share), 0.0, 1.0)) if share.size else 0.0
    if isinstance(microbatches, (int, float)) and microbatches >= 1:
        given = 1.0 / float(microbatches)
        miss = [
            _fidelity(bottleneck + b * (in_sequence - bottleneck) + transfer, measured)
            for b in (given, fitted)
        ]
        if not work.split or miss[0] <= max(0.05, miss[1]):
            return given, []
        return fitted, [f"{microbatches:g} microbatches contradict the measured steps; bubble fitted instead"]
    return fitted, [
        f"microbatches not given: pipeline bubble fitted to {fitted:.3f} of the other stages' work"
    ]


def _fidelity(replayed: FloatArray, measured: FloatArray) -> float:
    with np.errstate(invalid="ignore", divide="ignore"):
        error = np.abs(replayed - measured) / measured
    error = error[np.isfinite(error)]
    return float(np.median(error)) if error.size else float("nan")
