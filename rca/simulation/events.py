"""Log-like events around a run: exits, device errors, timeouts. Often nobody collects them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from rca.simulation.observe import Course
from rca.simulation.resources import Resources, Stop
from rca.simulation.scenario import Scenario
from rca.telemetry.schema import EVENTS

Event = dict[str, object]

#: Kind, code and message of what drivers tell of memory that makes a job slow, which goes on.
MEMORY_ERRORS = (
    ("xid", "94", "contained memory error"),
    ("xid", "63", "row remapping recorded"),
    ("ecc", "SBE", "corrected errors"),
)


def events_table(
    scenario: Scenario,
    resources: Resources,
    course: Course,
    node_names: Sequence[str] | None,
    rng: np.random.Generator,
) -> pa.Table:
    """Build the events table; empty where events are not collected."""
    if not scenario.telemetry.events:
        return EVENTS.empty()
    found = [
        *_ending(scenario, resources, course, rng),
        *_memory_errors(scenario, rng, course),
        *_corrected_errors(scenario, rng, course),
    ]
    for event in found:
        rank = event["rank"]
        known = node_names is not None and isinstance(rank, int)
        event["node"] = node_names[rank // scenario.ranks_per_node] if known else None  # type: ignore[index, operator]
        event["time"] = scenario.start + min(float(str(event["time"])), course.end - 1e-3)
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
    scenario: Scenario, resources: Resources, course: Course, rng: np.random.Generator
) -> list[Event]:
    stop = resources.stop
    if stop is None:
        return _finished(scenario, course, rng)
    return (
        _hung(scenario, stop, course, rng) if stop.kind == "hang" else _crashed(scenario, stop, course, rng)
    )


def _finished(scenario: Scenario, course: Course, rng: np.random.Generator) -> list[Event]:
    if scenario.telemetry.ending != "finished" or rng.random() >= 0.6:
        return []
    ranks = range(scenario.world_size)
    return [_event(course.death[rank], rank, "process_exit", "0", "exited") for rank in ranks]


def _hung(scenario: Scenario, stop: Stop, course: Course, rng: np.random.Generator) -> list[Event]:
    return _waited_for(stop.ranks, float(course.still_from or 0.0), scenario, course, rng)


def _crashed(scenario: Scenario, stop: Stop, course: Course, rng: np.random.Generator) -> list[Event]:
    events: list[Event] = []
    rank, died = stop.ranks[0], float(course.death[stop.ranks[0]])
    if stop.variant == "device" and rng.random() < 0.7:
        events.append(_event(died - 1e-2, rank, "xid", "79", "GPU has fallen off the bus"))
    if stop.variant == "oom" and rng.random() < 0.8:
        events.append(_event(died - 1e-2, rank, "oom_kill", None, "out of memory"))
    told = rng.random() < 0.6
    if told:
        code = {"killed": "-9", "oom": "137"}.get(stop.variant, "1")
        events.append(_event(died, rank, "process_exit", code, "exited"))
    if course.gave_up is not None or not np.isfinite(course.death).all():
        return events + _waited_for(stop.ranks, died, scenario, course, rng)
    # Peers fail on the broken connection afterwards, in no useful order.
    for peer in rng.permutation(scenario.world_size)[: int(rng.integers(0, 5)) * told]:
        if int(peer) not in stop.ranks:
            later = float(course.death[peer]) + rng.uniform(0, 0.2)
            events.append(_event(later, int(peer), "process_exit", "1", "connection closed by peer"))
    return events


def _waited_for(
    missing: Sequence[int], since: float, scenario: Scenario, course: Course, rng: np.random.Generator
) -> list[Event]:
    """What is reported of a wait: the same whether the missing hang or are dead."""
    events: list[Event] = []
    if rng.random() < 0.35:
        late = since + 0.3 * (course.end - since)
        events.append(_event(late, missing[0], "heartbeat_missed", None, "no heartbeat"))
    if course.gave_up is None or rng.random() < 0.1:
        return events
    # The watchdog that fires is a peer's: it waited.
    peers = [int(rank) for rank in rng.permutation(scenario.world_size) if rank not in missing]
    for peer in (peers or list(missing))[: int(rng.choice([1, 2, 3], p=[0.6, 0.2, 0.2]))]:
        fired = course.gave_up - rng.uniform(0, 0.5)
        events.append(_event(fired, peer, "nccl_timeout", None, "collective timed out"))
    aborted = np.flatnonzero(np.isfinite(course.death) & (course.death >= course.gave_up))
    return events + [
        _event(course.death[rank], int(rank), "process_exit", "-6", "aborted") for rank in aborted[:64]
    ]


def _memory_errors(scenario: Scenario, rng: np.random.Generator, course: Course) -> list[Event]:
    """What the driver says of failing memory: errors contained, rows replaced, many errors corrected."""
    events = []
    for fault in scenario.faults:
        if fault.cause == "gpu_memory_errors" and rng.random() < 0.4:
            time = course.end * min(0.95, (fault.first_step + 1) / scenario.n_steps)
            kind, code, message = MEMORY_ERRORS[int(rng.choice(len(MEMORY_ERRORS), p=[0.4, 0.4, 0.2]))]
            events.append(_event(time, fault.ranks[0], kind, code, message))
    return events


def _corrected_errors(scenario: Scenario, rng: np.random.Generator, course: Course) -> list[Event]:
    """Corrected errors of sound memory, which some drivers log: at any time, the last second included."""
    events = []
    for signal in scenario.benign.harmless:
        if signal.kind == "ecc_sbe" and rng.random() < 0.4:
            rank = signal.rank % scenario.world_size
            events.append(_event(course.end * rng.random(), rank, "ecc", "SBE", "corrected error"))
    return events
