"""Operation traces of real GPU jobs beside simulated jobs of the same shape: what both can show."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from rca.arrays import FloatArray, IntArray
from rca.errors import SourceError
from rca.evaluation.realism.distances import quantile_within
from rca.evaluation.realism.twin import reshaped
from rca.features.work import warmup_steps
from rca.robust import nan_mean, nan_median, row_correlation
from rca.simulation import Benign, Scenario, Telemetry, sample_scenario, simulate
from rca.simulation.sampling_benign import sample_benign
from rca.simulation.sampling_faults import sample_fault
from rca.telemetry.job import Parallelism
from rca.telemetry.phases import PhaseArrays
from rca.telemetry.window import Window
from rca.whatif.optypes import BACKWARD, FORWARD, NAMES
from rca.whatif.trace import OpTrace

#: What a traced job is compared with: nobody labelled it, so each candidate is shown.
CAUSES = ("healthy", "gpu_contention", "stage_imbalance")
RANKS_PER_NODE = 8
#: Fewer operations of a type on one worker have no spread.
LEAST_OPERATIONS = 8


@dataclass(frozen=True)
class Restlessness:
    """How even a job's work is.

    Attributes
    ----------
    figures : mapping of str to float
        ``slowdown`` (S), ``launch slowdown`` (measured over replayed step), ``forward variation`` and
        ``backward variation`` (coefficient of variation of a worker's compute per step, median over workers),
        ``forward-backward correlation`` (over steps, median over workers), ``worker spread`` (coefficient of
        variation of workers' mean compute within a stage, median over stages).
    variation : mapping of str to float
        Operation type -> coefficient of variation of the operations of one worker, median over workers.
    """

    figures: Mapping[str, float]
    variation: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class TraceComparison:
    """A real trace, and simulated jobs of its shape with each of `CAUSES`.

    Attributes
    ----------
    quantiles : mapping of cause to mapping of str to float
        Where the trace's figure lies among the simulated ones.
    """

    name: str
    real: Restlessness
    simulated: Mapping[str, tuple[Restlessness, ...]]

    @property
    def names(self) -> list[str]:
        """Figures that the trace has, then its operation types."""
        return [*self.real.figures, *(f"{name} variation by operation" for name in self.real.variation)]

    def value(self, one: Restlessness, name: str) -> float:
        """A figure by the name it has in `names`; NaN if the job does not show it."""
        if name in one.figures:
            return one.figures[name]
        return one.variation.get(name.removesuffix(" variation by operation"), float("nan"))

    def sample(self, cause: str, name: str) -> FloatArray:
        """The figure of every simulated job with a cause."""
        return np.array([self.value(one, name) for one in self.simulated[cause]])

    def quantile(self, cause: str, name: str) -> float:
        """Where the trace's figure lies among the simulated ones."""
        return quantile_within(self.value(self.real, name), self.sample(cause, name))


def compare_traces(
    folder: Path, n_windows: int, seed: int, progress: Callable[[int, int], None] = lambda done, total: None
) -> list[TraceComparison]:
    """Compare every trace of a folder (``trace-NAME.parquet`` with ``meta-NAME.yaml``).

    Parameters
    ----------
    n_windows : int
        Simulated jobs per trace and cause.

    Raises
    ------
    SourceError
        If the folder holds no trace.
    """
    from rca.whatif.reader import read_trace

    paths = sorted(folder.rglob("trace-*.parquet"))
    if not paths:
        raise SourceError(f"{folder}: holds no trace-*.parquet")
    found = []
    total = len(paths) * len(CAUSES) * n_windows
    for number, path in enumerate(paths):
        name = path.stem.removeprefix("trace-")
        trace = read_trace(path, path.with_name(f"meta-{name}.yaml"))
        done = number * len(CAUSES) * n_windows
        simulated: dict[str, tuple[Restlessness, ...]] = {}
        for cause in CAUSES:
            jobs = []
            for index in range(n_windows):
                jobs.append(of_window(simulate(like(trace, cause, [seed, number, index])).window))
                done += 1
                progress(done, total)
            simulated[cause] = tuple(jobs)
        found.append(TraceComparison(name, of_trace(trace), simulated))
    return found


def like(trace: OpTrace, cause: str, seed: list[int]) -> Scenario:
    """Draw a simulated pipelined job of the trace's shape, the cause present all the time."""
    rng = np.random.default_rng(seed)
    drawn = sample_scenario(rng, cause="healthy", dialect="gpu_cluster")
    parallelism = Parallelism(data=trace.n_data, pipeline=trace.n_stages)
    shown = {"ops": True} if "ops" in Telemetry.model_fields else {}
    base = reshaped(
        drawn,
        parallelism=parallelism,
        ranks_per_node=min(RANKS_PER_NODE, parallelism.world_size),
        n_steps=int(np.unique(trace.step).size),
        benign=Benign(),
        telemetry=Telemetry.model_validate(shown),
    )
    benign = sample_benign(rng, base, lengths_told=False)
    calm = benign.model_copy(update={"shift_step": None, "harmless": (), "bursts": ()})
    base = base.model_copy(update={"benign": calm})
    if cause == "healthy":
        return base
    fault = sample_fault(rng, base, cause).model_copy(update={"first_step": 0, "last_step": None})
    return Scenario.model_validate(base.model_copy(update={"faults": (fault,)}).model_dump())


def of_window(window: Window) -> Restlessness:
    """Measure a window: by its operations where it has any, else by its phases."""
    from rca.whatif.analysis import what_if
    from rca.whatif.reader import trace_from_window

    if window.ops.num_rows:
        return of_trace(trace_from_window(window))
    phases = PhaseArrays.from_window(window)
    used = slice(warmup_steps(nan_median(phases.phase("step_seconds"))), None)
    forward, backward = (phases.phase(f"{name}_seconds")[:, used] for name in ("forward", "backward"))
    answer = what_if(window)
    figures = {"slowdown": answer.slowdown, "launch slowdown": answer.launch_slowdown}
    return Restlessness(figures | evenness(forward, backward, window.job.topology.stage))


def of_trace(trace: OpTrace) -> Restlessness:
    """Measure an operation trace."""
    from rca.whatif.analysis import what_if

    answer = what_if(trace)
    worker = trace.data_rank * trace.n_stages + trace.stage
    n_workers = trace.n_data * trace.n_stages
    steps, column = np.unique(trace.step, return_inverse=True)
    length = np.zeros(steps.size)
    np.maximum.at(length, column, trace.start + trace.duration)
    used = slice(warmup_steps(length), None)
    sums = []
    for code in (FORWARD, BACKWARD):
        rows = trace.optype == code
        cell = worker[rows] * steps.size + column[rows]
        total = np.zeros(n_workers * steps.size)
        np.add.at(total, cell, trace.duration[rows])
        sums.append(total.reshape(n_workers, steps.size)[:, used])
    stage = np.tile(np.arange(trace.n_stages), trace.n_data)
    figures = {"slowdown": answer.slowdown, "launch slowdown": answer.launch_slowdown}
    late = column >= used.start
    return Restlessness(
        figures | evenness(sums[0], sums[1], stage),
        variation_by_type(trace.optype[late], worker[late], trace.duration[late].astype(np.float64)),
    )


def evenness(forward: FloatArray, backward: FloatArray, stage: IntArray) -> dict[str, float]:
    """Spread of compute over steps and over workers.

    Parameters
    ----------
    forward, backward : ndarray of shape (n_workers, n_steps), seconds
    stage : ndarray of shape (n_workers,), int
    """
    compute = nan_mean(forward + backward, axis=1)
    spread = [compute[stage == one].std() / compute[stage == one].mean() for one in np.unique(stage)]
    return {
        "forward variation": _over_steps(forward),
        "backward variation": _over_steps(backward),
        "forward-backward correlation": _median(row_correlation(forward, backward)),
        "worker spread": _median(np.array(spread)),
    }


def variation_by_type(
    optype: IntArray,
    worker: IntArray,
    duration: FloatArray,
) -> dict[str, float]:
    """Coefficient of variation of each type's operations on one worker, median over workers."""
    found = {}
    for code in np.unique(optype):
        rows = optype == code
        count = np.bincount(worker[rows])
        enough = count >= LEAST_OPERATIONS
        total = np.bincount(worker[rows], duration[rows])[enough]
        if not total.size or not (total > 0).all():
            continue
        mean = total / count[enough]
        squares = np.bincount(worker[rows], duration[rows] ** 2)[enough] / count[enough]
        found[NAMES[code]] = _median(np.sqrt(np.maximum(squares - mean * mean, 0.0)) / mean)
    return found


def _over_steps(seconds: FloatArray) -> float:
    mean = nan_mean(seconds, axis=1)
    spread = np.sqrt(nan_mean((seconds - mean[:, None]) ** 2, axis=1))
    return _median(spread[mean > 0] / mean[mean > 0])


def _median(values: FloatArray) -> float:
    held = values[np.isfinite(values)]
    return float(np.median(held)) if held.size else float("nan")
