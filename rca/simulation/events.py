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
    found = [*_ending(scenario, resources, course, rng), *_memory_errors(scenario, rng, course)]
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
    events: list[Event] = []
    rank, begun = stop.ranks[0], float(course.still_from or 0.0)
    if rng.random() < 0.6:
        # The watchdog that fires is a peer's: it waited.
        peers = [other for other in range(scenario.world_size) if other not in stop.ranks] or [rank]
        waited = begun + 0.9 * (course.end - begun)
        events.append(_timed_out(waited, int(rng.choice(peers))))
        if rng.random() < 0.4:
            # Watchdogs abort their processes, the patient ones first.
            gone = rng.permutation(scenario.world_size)[: int(rng.integers(1, 6))]
            events += [
                _event(waited + rng.uniform(0, 1), int(r), "process_exit", "-6", "aborted") for r in gone
            ]
    if rng.random() < 0.35:
        events.append(_missed(begun, rank, course))
    return events


def _timed_out(time: float, rank: int) -> Event:
    return _event(time, rank, "nccl_timeout", None, "collective timed out")


def _missed(begun: float, rank: int, course: Course) -> Event:
    return _event(begun + 0.3 * (course.end - begun), rank, "heartbeat_missed", None, "no heartbeat")


def _crashed(scenario: Scenario, stop: Stop, course: Course, rng: np.random.Generator) -> list[Event]:
    events: list[Event] = []
    rank, died = stop.ranks[0], float(course.death[stop.ranks[0]])
    if stop.variant == "device" and rng.random() < 0.7:
        events.append(_event(died - 1e-2, rank, "xid", "79", "GPU has fallen off the bus"))
    if stop.variant == "oom" and rng.random() < 0.8:
        events.append(_event(died - 1e-2, rank, "oom_kill", None, "out of memory"))
    peers = [int(other) for other in rng.permutation(scenario.world_size) if other not in stop.ranks]
    if not np.isfinite(course.death).all():
        events += _waiting_for_the_dead(rank, died, peers, course, rng)
    if rng.random() >= 0.6:
        return events
    code = {"killed": "-9", "oom": "137"}.get(stop.variant, "1")
    events.append(_event(died, rank, "process_exit", code, "exited"))
    # Peers fail on the broken connection afterwards, in no useful order.
    for peer in peers[: int(rng.integers(0, 5))]:
        if np.isfinite(course.death[peer]):
            later = float(course.death[peer]) + rng.uniform(0, 0.2)
            events.append(_event(later, peer, "process_exit", "1", "connection closed by peer"))
    return events


def _waiting_for_the_dead(
    rank: int, died: float, peers: Sequence[int], course: Course, rng: np.random.Generator
) -> list[Event]:
    """What peers that did not notice a death report in the end: the same as of a hang."""
    events = [_missed(died, rank, course)] if rng.random() < 0.35 else []
    if rng.random() < 0.6:
        waited = died + 0.9 * (course.end - died)
        events += [_timed_out(waited, peer) for peer in peers[: int(rng.integers(1, 4))]]
    return events


def _memory_errors(scenario: Scenario, rng: np.random.Generator, course: Course) -> list[Event]:
    events = []
    for fault in scenario.faults:
        if fault.cause == "gpu_memory_errors" and rng.random() < 0.4:
            time = course.end * min(0.95, (fault.first_step + 1) / scenario.n_steps)
            events.append(_event(time, fault.ranks[0], "xid", "94", "contained memory error"))
    return events
