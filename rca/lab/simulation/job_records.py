"""What the job itself records: the steps table, the trace of operations, and events."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from rca.arrays import BoolArray, FloatArray
from rca.lab.simulation.finished_run import RunEnd
from rca.lab.simulation.forward_replay import op_starts
from rca.lab.simulation.phase_accounting import (
    accounted_phases,
    columns_not_timed,
    phases_holding,
    phases_that_wait_for_all,
)
from rca.lab.simulation.resources import COLLECTIVE, GANG_STOPS, Resources, Stop
from rca.lab.simulation.sampling_job import log_uniform
from rca.lab.simulation.scenario import SimulationScenario
from rca.lab.simulation.timing import Timing, job_plan
from rca.whatif.optypes import NAMES
from rca.window.schema import EVENTS, OPS, PHASES

# In the order of a step; a cut leaves the later phases unmeasured.
PHASES_IN_ORDER = (
    "data_loading_seconds",
    "host_to_device_seconds",
    "forward_seconds",
    "backward_seconds",
    "communication_wait_seconds",
    "communication_transfer_seconds",
    "optimizer_seconds",
    "checkpoint_seconds",
)
STEPS_ONLY = ("step_seconds",)
# Columns that visibility "loading" leaves.
STEPS_AND_LOADING = (*STEPS_ONLY, "data_loading_seconds")
Event = dict[str, object]
#: Kind, code and message of driver events about memory errors that slow a running job.
MEMORY_ERRORS = (
    ("xid", "94", "contained memory error"),
    ("xid", "63", "row remapping recorded"),
    ("ecc", "SBE", "corrected errors"),
)

#: Exit codes of whole gangs, reasons of the first exit, and share of those that are logged.
GANG_CODES = ("1", "134", "-6", "7", "255")
GANG_REASONS = (
    ("xid", "48", "uncorrectable memory error"),
    ("ecc", "DBE", "uncorrectable error"),
    ("oom_kill", None, "out of memory"),
    ("xid", "79", "GPU has fallen off the bus"),
)
LINK_DOWN = ("link_down", None, "port is down")
REASON_SHARE = 0.75


def steps_table(
    scenario: SimulationScenario,
    resources: Resources,
    timing: Timing,
    run_end: RunEnd,
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
    accounted = accounted_phases(scenario, timing)
    columns = {name: values for name, values in accounted.columns.items() if name in PHASES}
    present = np.zeros(timing.start.shape, dtype=bool)
    first, end = scenario.steps_with_rows(None if resources.stop is None else resources.stop.step)
    present[:, first : min(run_end.n_run, end)] = True
    if resources.stop is not None:
        _interrupted_step(scenario, resources, columns, present, rng)
    elif scenario.telemetry.ending == "cut":
        _cut_step(accounted.start, run_end, columns, present)
    elif scenario.telemetry.ending == "lagging" and run_end.n_run > 3:
        present[rng.integers(0, scenario.world_size), -int(rng.integers(1, 3)) :] = False
    _drop_hidden(scenario, columns)
    start = accounted.start + clock_error[:, None] + scenario.start
    rank, step = np.nonzero(present)
    arrays: dict[str, pa.Array] = {
        "rank": pa.array(rank.astype(np.int32)),
        "step": pa.array(step.astype(np.int64) + scenario.first_step_number),
        "start_time": pa.array(start[present]),
    }
    arrays |= {name: pa.array(values[present]) for name, values in (columns | load).items()}
    return pa.table(arrays)


def _interrupted_step(
    scenario: SimulationScenario,
    resources: Resources,
    columns: dict[str, FloatArray],
    present: BoolArray,
    rng: np.random.Generator,
) -> None:
    """Write the interrupted step: no rank left the collective, the stopped ranks never joined it."""
    stop = resources.stop
    if stop is None or not scenario.telemetry.begun_steps_reported:
        return
    step, stopped_ranks = stop.step, list(stop.ranks)
    present[:, step] = True
    for name in (*PHASES_IN_ORDER[COLLECTIVE:], "communication_seconds", "gc_seconds", "step_seconds"):
        columns[name][:, step] = np.nan
    for name in PHASES_IN_ORDER[stop.phase : COLLECTIVE]:
        for holding in phases_holding(name, scenario.telemetry.phase_accounting):
            columns[holding][stopped_ranks, step] = np.nan
    for name in phases_that_wait_for_all(scenario.telemetry.phase_accounting):
        if PHASES_IN_ORDER.index(name) >= min(stop.phase, COLLECTIVE - 1):
            columns[name][:, step] = np.nan
    sizes = scenario.parallelism
    if sizes.pipeline > 1 and stop.phase < COLLECTIVE:
        # The other stages of the replica get no activations or gradients.
        replica = np.arange(scenario.world_size) // sizes.tensor % (sizes.data * sizes.context)
        starved = np.isin(replica, replica[stopped_ranks])
        columns["backward_seconds"][starved, step] = np.nan
    # A killed process often ends before it writes its last row.
    if rng.random() < (0.3 if stop.kind == "crash" else 0.1):
        present[stopped_ranks, step] = False


def _cut_step(start: FloatArray, run_end: RunEnd, columns: dict[str, FloatArray], present: BoolArray) -> None:
    """End the window in the middle of a step of a healthy job."""
    step = run_end.n_run
    elapsed = start[:, step].copy()
    present[:, step] = elapsed < run_end.end
    for name in PHASES_IN_ORDER:
        elapsed += columns[name][:, step]
        columns[name][elapsed > run_end.end, step] = np.nan
    unfinished = elapsed > run_end.end
    for name in ("communication_seconds", "gc_seconds", "step_seconds"):
        columns[name][unfinished, step] = np.nan


def _drop_hidden(scenario: SimulationScenario, columns: dict[str, FloatArray]) -> None:
    telemetry = scenario.telemetry
    if telemetry.visibility == "minimal":
        hidden = [name for name in columns if name not in STEPS_ONLY]
    elif telemetry.visibility == "loading":
        hidden = [name for name in columns if name not in STEPS_AND_LOADING]
    elif telemetry.visibility == "unsplit":
        hidden = ["communication_wait_seconds", "communication_transfer_seconds"]
    else:
        hidden = ["communication_seconds"]
    for name in {*hidden, *columns_not_timed(telemetry.phase_accounting), *telemetry.missing_phases} - set(
        STEPS_ONLY
    ):
        columns.pop(name, None)
    untimed = np.setdiff1d(np.arange(scenario.world_size), telemetry.timing_ranks)
    for name in columns.keys() & set(telemetry.partly_timed):
        columns[name][untimed] = np.nan
    for rank in telemetry.ranks_without_phases:
        for name in columns.keys() - set(STEPS_ONLY):
            columns[name][rank] = np.nan


def clock_errors(scenario: SimulationScenario, rng: np.random.Generator) -> FloatArray:
    """Error of each rank's clock, shape (n_ranks,), seconds; the ranks of a node share it."""
    error = rng.normal(0, 1, scenario.n_nodes) * scenario.telemetry.clock_skew_seconds
    return np.asarray(error[np.arange(scenario.world_size) // scenario.ranks_per_node])


def ops_table(scenario: SimulationScenario, timing: Timing, n_run: int, clock_error: FloatArray) -> pa.Table:
    """Build the ``ops`` table of the completed steps, with the first rank of each tensor group.

    Parameters
    ----------
    timing : Timing
        Run with ``keep_ends``.
    n_run : int
        Steps that were completed.
    clock_error : ndarray of shape (n_ranks,), seconds
    """
    plan, replay = job_plan(scenario), timing.replay
    begun = op_starts(plan, replay)[..., :n_run]
    if replay.ends is None or n_run == 0:
        return OPS.empty()
    lasted = replay.ends[..., :n_run] - begun
    op, data, step = (index.ravel() for index in np.indices(begun.shape))
    rank = (plan.stage[op] * scenario.replicas + data) * scenario.parallelism.tensor
    stages = plan.shape.pipeline
    chunk = np.where(plan.chunk >= 0, plan.chunk * stages + plan.stage, -1)
    columns = {
        "rank": rank,
        "dp_rank": data,
        "stage": plan.stage[op],
        "step": step + scenario.first_step_number,
        "optype": pa.DictionaryArray.from_arrays(pa.array(plan.optype[op].astype(np.int32)), list(NAMES)),
        "seq_id": plan.sequence[op],
        "mc": plan.chunk[op],
        "gmc": chunk[op],
        "mb_id": plan.microbatch[op],
        "start_ts": begun.ravel() + clock_error[rank] + scenario.start,
        "duration": np.maximum(lasted.ravel(), 0.0),
    }
    return pa.table({column.name: pa.array(columns[column.name]).cast(column.type) for column in OPS.columns})


def events_table(
    scenario: SimulationScenario,
    resources: Resources,
    run_end: RunEnd,
    node_names: Sequence[str] | None,
    rng: np.random.Generator,
) -> pa.Table:
    """Build the events table; empty where events are not collected."""
    if not scenario.telemetry.events:
        return EVENTS.empty()
    found = [
        *_ending(scenario, resources, run_end, rng),
        *_memory_errors(scenario, rng, run_end),
        *_corrected_errors(scenario, rng, run_end),
    ]
    for event in found:
        rank = event["rank"]
        event["node"] = None
        if node_names is not None and isinstance(rank, int):
            event["node"] = node_names[rank // scenario.ranks_per_node]
        event["time"] = scenario.start + min(float(str(event["time"])), run_end.end - 1e-3)
    found.sort(key=lambda event: float(str(event["time"])))
    columns = {
        column.name: pa.array([event[column.name] for event in found], type=_plain(column.type)).cast(
            column.type
        )
        for column in EVENTS.columns
    }
    return pa.table(columns)


def _plain(type_: pa.DataType) -> pa.DataType:
    return type_.value_type if pa.types.is_dictionary(type_) else type_


def _event(time: float, rank: int | None, kind: str, code: str | None, message: str) -> Event:
    return {"time": float(time), "rank": rank, "kind": kind, "code": code, "message": message}


def _ending(
    scenario: SimulationScenario, resources: Resources, run_end: RunEnd, rng: np.random.Generator
) -> list[Event]:
    stop = resources.stop
    if stop is None:
        return _finished(scenario, run_end, rng)
    return (
        _hung(scenario, stop, run_end, rng) if stop.kind == "hang" else _crashed(scenario, stop, run_end, rng)
    )


def _finished(scenario: SimulationScenario, run_end: RunEnd, rng: np.random.Generator) -> list[Event]:
    if scenario.telemetry.ending != "finished" or rng.random() >= 0.6:
        return []
    ranks = range(scenario.world_size)
    return [_event(run_end.process_end[rank], rank, "process_exit", "0", "exited") for rank in ranks]


def _hung(scenario: SimulationScenario, stop: Stop, run_end: RunEnd, rng: np.random.Generator) -> list[Event]:
    return _waited_for(stop.ranks, float(run_end.still_from or 0.0), scenario, run_end, rng)


def _crashed(
    scenario: SimulationScenario, stop: Stop, run_end: RunEnd, rng: np.random.Generator
) -> list[Event]:
    events: list[Event] = []
    rank, died = stop.ranks[0], float(run_end.process_end[stop.ranks[0]])
    if stop.variant in GANG_STOPS:
        return _gang(scenario, stop, run_end, rng)
    if stop.variant == "vanished":
        return events
    if stop.variant == "device" and rng.random() < 0.7:
        events.append(_event(died - 1e-2, rank, "xid", "79", "GPU has fallen off the bus"))
    if stop.variant == "oom" and rng.random() < 0.8:
        events.append(_event(died - 1e-2, rank, "oom_kill", None, "out of memory"))
    accounted = rng.random() < 0.6
    if accounted:
        code = {"killed": "-9", "oom": "137"}.get(stop.variant, "1")
        events.append(_event(died, rank, "process_exit", code, "exited"))
    if run_end.gave_up is not None or not np.isfinite(run_end.process_end).all():
        return events + _waited_for(stop.ranks, died, scenario, run_end, rng)
    # Peers fail on the broken connection afterwards, in no useful order.
    for peer in rng.permutation(scenario.world_size)[: int(rng.integers(0, 5)) * accounted]:
        if int(peer) not in stop.ranks:
            later = float(run_end.process_end[peer]) + rng.uniform(0, 0.2)
            events.append(_event(later, int(peer), "process_exit", "1", "connection closed by peer"))
    return events


def _gang(scenario: SimulationScenario, stop: Stop, run_end: RunEnd, rng: np.random.Generator) -> list[Event]:
    """Exits of all ranks with the same code; the first one mostly has a reason."""
    first, code = stop.ranks[0], str(rng.choice(GANG_CODES))
    died = float(run_end.process_end[first])
    events: list[Event] = []
    if rng.random() < REASON_SHARE:
        kind, reason, message = LINK_DOWN if stop.variant == "link" else GANG_REASONS[rng.integers(4)]
        events.append(_event(died - log_uniform(rng, 0.01, 2.0), first, kind, reason, message))
    for rank in range(scenario.world_size):
        told = "exited" if rank in stop.ranks else "remote process exited or there was a network error"
        events.append(_event(float(run_end.process_end[rank]), rank, "process_exit", code, told))
    return events


def _waited_for(
    missing: Sequence[int],
    since: float,
    scenario: SimulationScenario,
    run_end: RunEnd,
    rng: np.random.Generator,
) -> list[Event]:
    """Events of a wait; they do not differ between hung and ended ranks."""
    events: list[Event] = []
    if rng.random() < 0.35:
        late = since + 0.3 * (run_end.end - since)
        events.append(_event(late, missing[0], "heartbeat_missed", None, "no heartbeat"))
    if run_end.gave_up is None or (rng.random() < 0.1 and scenario.telemetry.watchdogs == "few"):
        return events
    # The watchdog of a waiting peer fires.
    peers = [int(rank) for rank in rng.permutation(scenario.world_size) if rank not in missing]
    reporting = int(rng.choice([1, 2, 3], p=[0.6, 0.2, 0.2]))
    if scenario.telemetry.watchdogs == "all":
        reporting = len(peers)
    for peer in (peers or list(missing))[:reporting]:
        fired = run_end.gave_up - rng.uniform(0, 0.5)
        events.append(_event(fired, peer, "nccl_timeout", None, "collective timed out"))
    aborted = np.flatnonzero(np.isfinite(run_end.process_end) & (run_end.process_end >= run_end.gave_up))
    return events + [
        _event(run_end.process_end[rank], int(rank), "process_exit", "-6", "aborted") for rank in aborted[:64]
    ]


def _memory_errors(scenario: SimulationScenario, rng: np.random.Generator, run_end: RunEnd) -> list[Event]:
    """Driver events of failing memory: errors contained, rows remapped, many errors corrected."""
    events = []
    for fault in scenario.faults:
        if fault.cause == "gpu_memory_errors" and rng.random() < 0.4:
            time = run_end.end * min(0.95, (fault.first_step + 1) / scenario.n_steps)
            kind, code, message = MEMORY_ERRORS[int(rng.choice(len(MEMORY_ERRORS), p=[0.4, 0.4, 0.2]))]
            events.append(_event(time, fault.ranks[0], kind, code, message))
    return events


def _corrected_errors(scenario: SimulationScenario, rng: np.random.Generator, run_end: RunEnd) -> list[Event]:
    """Corrected errors of healthy memory, which some drivers log at any time."""
    events = []
    for signal in scenario.benign.harmless:
        if signal.kind == "ecc_sbe" and rng.random() < 0.4:
            rank = signal.rank % scenario.world_size
            events.append(_event(run_end.end * rng.random(), rank, "ecc", "SBE", "corrected error"))
    return events
