"""What reporters write down of a run: the steps table, with cut rows, missing phases and skewed clocks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from rca.arrays import BoolArray, FloatArray
from rca.simulation.phase_accounting import booked, hidden_columns, meeting_phases, phases_holding
from rca.simulation.resources import COLLECTIVE, Resources
from rca.simulation.sampling_job import log_uniform
from rca.simulation.scenario import Scenario
from rca.simulation.timing import Timing
from rca.telemetry.schema import PHASES

# In the order they are run through; a cut leaves everything after it unmeasured.
ORDER = (
    "data_loading_seconds",
    "host_to_device_seconds",
    "forward_seconds",
    "backward_seconds",
    "communication_wait_seconds",
    "communication_transfer_seconds",
    "optimizer_seconds",
    "checkpoint_seconds",
)
MINIMAL = ("step_seconds",)
# What visibility "loading" leaves.
LOADING = (*MINIMAL, "data_loading_seconds")
# Share of crashes that peers do not notice: no connection breaks, and a device's collective waits for ever.
PEERS_WAIT = 0.5
# Share of such waits, and of hangs, that watchdogs end within the window; and of those that end processes.
GIVE_UP, ABORT = 0.65, 0.4


@dataclass(frozen=True)
class Course:
    """How the run went until the window's end.

    Attributes
    ----------
    n_run : int
        Steps that all ranks completed.
    end : float, seconds since the job's start
    death : ndarray of shape (n_ranks,), seconds since the job's start
        When each process ended; infinite while it lives.
    still_from : float or None
        Since when nothing moves any more.
    gave_up : float or None, seconds since the job's start
        When peers stopped waiting for the hung or dead; None while they wait, or if they never did.
    """

    n_run: int
    end: float
    death: FloatArray
    still_from: float | None
    gave_up: float | None = None


def course_of(scenario: Scenario, resources: Resources, timing: Timing, rng: np.random.Generator) -> Course:
    """Decide when the window ends, and when processes do."""
    typical = float(np.median(timing.step_seconds))
    ends = timing.start + timing.phases["step_seconds"]
    alive = np.full(scenario.world_size, np.inf)
    n_run, last = scenario.n_steps, float(ends[:, -1].max())
    stop, ending = resources.stop, scenario.telemetry.ending
    if stop is not None:
        begun = float(timing.start[:, stop.step].mean())
        if stop.kind == "hang" or rng.random() < PEERS_WAIT:
            end = begun + float(np.clip(typical * log_uniform(rng, 6, 150), 2, 1800)) + 3 * typical
            gave_up = begun + rng.uniform(0.3, 0.97) * (end - begun) if rng.random() < GIVE_UP else None
            if gave_up is not None and rng.random() < ABORT:
                # Watchdogs abort their processes, the patient ones first; sometimes all are gone in the end.
                n_gone = scenario.world_size if rng.random() < 0.3 else int(rng.integers(1, 6))
                gone = rng.permutation(scenario.world_size)[:n_gone]
                alive[gone] = gave_up + rng.uniform(0, 1, gone.size)
            if stop.kind == "crash":
                alive[list(stop.ranks)] = begun + 0.5 * typical
            return Course(stop.step, end, alive, begun, gave_up)
        noticed = begun + typical * rng.uniform(0.6, 1.0) + log_uniform(rng, 0.02, 6)
        alive[:] = noticed
        alive[list(stop.ranks)] = begun + 0.5 * typical
        return Course(stop.step, noticed + _looked_after(last, rng), alive, begun)
    if ending == "finished":
        alive[:] = last
        return Course(n_run, last + _looked_after(last, rng), alive, last)
    if ending == "cut":
        begun = float(timing.start[:, -1].max())
        return Course(n_run - 1, begun + rng.uniform(0.05, 0.9) * (last - begun), alive, None)
    return Course(n_run, last + rng.uniform(0, 0.5) * typical, alive, None)


def _looked_after(last: float, rng: np.random.Generator) -> float:
    """Seconds from a job's end until somebody asks about it: at once, or long after."""
    return log_uniform(rng, 0.5, max(15.0, 2 * last))


def steps_table(
    scenario: Scenario,
    resources: Resources,
    timing: Timing,
    course: Course,
    rng: np.random.Generator,
    *,
    clock_error: FloatArray,
    load: dict[str, FloatArray],
) -> pa.Table:
    """Build the steps table, rank by rank.

    Parameters
    ----------
    clock_error : ndarray of shape (n_ranks,), seconds
    load : mapping of str to ndarray of shape (n_ranks, n_steps)
        Load columns to write.
    """
    told = booked(scenario, timing)
    columns = {name: values for name, values in told.columns.items() if name in PHASES}
    present = np.zeros(timing.start.shape, dtype=bool)
    first, end = scenario.steps_with_rows(None if resources.stop is None else resources.stop.step)
    present[:, first : min(course.n_run, end)] = True
    if resources.stop is not None:
        _begun_step(scenario, resources, columns, present, rng)
    elif scenario.telemetry.ending == "cut":
        _cut_step(told.start, course, columns, present)
    elif scenario.telemetry.ending == "lagging" and course.n_run > 3:
        present[rng.integers(0, scenario.world_size), -int(rng.integers(1, 3)) :] = False
    _hide(scenario, columns)
    start = told.start + clock_error[:, None] + scenario.start
    rank, step = np.nonzero(present)
    arrays: dict[str, pa.Array] = {
        "rank": pa.array(rank.astype(np.int32)),
        "step": pa.array(step.astype(np.int64) + scenario.first_step_number),
        "start_time": pa.array(start[present]),
    }
    arrays |= {name: pa.array(values[present]) for name, values in (columns | load).items()}
    return pa.table(arrays)


def _begun_step(
    scenario: Scenario,
    resources: Resources,
    columns: dict[str, FloatArray],
    present: BoolArray,
    rng: np.random.Generator,
) -> None:
    """Leave the last step as a stop does: nobody left the collective, the culprit never joined it."""
    stop = resources.stop
    if stop is None or not scenario.telemetry.begun_steps_reported:
        return
    step, guilty = stop.step, list(stop.ranks)
    present[:, step] = True
    for name in (*ORDER[COLLECTIVE:], "communication_seconds", "gc_seconds", "step_seconds"):
        columns[name][:, step] = np.nan
    for name in ORDER[stop.phase : COLLECTIVE]:
        for holding in phases_holding(name, scenario.telemetry.booking):
            columns[holding][guilty, step] = np.nan
    for name in meeting_phases(scenario.telemetry.booking):
        if ORDER.index(name) >= min(stop.phase, COLLECTIVE - 1):
            columns[name][:, step] = np.nan
    sizes = scenario.parallelism
    if sizes.pipeline > 1 and stop.phase < COLLECTIVE:
        # The other stages of its replica run out of activations or gradients.
        replica = np.arange(scenario.world_size) // sizes.tensor % (sizes.data * sizes.context)
        starved = np.isin(replica, replica[guilty])
        columns["backward_seconds"][starved, step] = np.nan
    # A killed process often dies with its last row unwritten.
    if rng.random() < (0.3 if stop.kind == "crash" else 0.1):
        present[guilty, step] = False


def _cut_step(start: FloatArray, course: Course, columns: dict[str, FloatArray], present: BoolArray) -> None:
    """Stop looking in the middle of a step; nothing is wrong with the job."""
    step = course.n_run
    elapsed = start[:, step].copy()
    present[:, step] = elapsed < course.end
    for name in ORDER:
        elapsed += columns[name][:, step]
        columns[name][elapsed > course.end, step] = np.nan
    unfinished = elapsed > course.end
    for name in ("communication_seconds", "gc_seconds", "step_seconds"):
        columns[name][unfinished, step] = np.nan


def _hide(scenario: Scenario, columns: dict[str, FloatArray]) -> None:
    telemetry = scenario.telemetry
    if telemetry.visibility == "minimal":
        hidden = [name for name in columns if name not in MINIMAL]
    elif telemetry.visibility == "loading":
        hidden = [name for name in columns if name not in LOADING]
    elif telemetry.visibility == "unsplit":
        hidden = ["communication_wait_seconds", "communication_transfer_seconds"]
    else:
        hidden = ["communication_seconds"]
    for name in {*hidden, *hidden_columns(telemetry.booking), *telemetry.missing_phases} - set(MINIMAL):
        columns.pop(name, None)
    silent = np.setdiff1d(np.arange(scenario.world_size), telemetry.timing_ranks)
    for name in columns.keys() & set(telemetry.partly_timed):
        columns[name][silent] = np.nan
    for rank in telemetry.ranks_without_phases:
        for name in columns.keys() - set(MINIMAL):
            columns[name][rank] = np.nan


def clock_errors(scenario: Scenario, rng: np.random.Generator) -> FloatArray:
    """Error of each rank's clock, its node's, shape (n_ranks,), seconds."""
    error = rng.normal(0, 1, scenario.n_nodes) * scenario.telemetry.clock_skew_seconds
    return np.asarray(error[np.arange(scenario.world_size) // scenario.ranks_per_node])
