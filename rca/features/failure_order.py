"""Order of failures without step times: those of the last attempt, and those elsewhere before a death."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from rca.arrays import BoolArray
from rca.features.end_events import (
    DEATHS,
    Event,
    ranks_named,
)
from rca.features.end_origin import broke
from rca.window.job import Topology
from rca.window.node_names import same_nodes
from rca.window.window import Window

#: Collectives that wait for a lost peer time out within half an hour; watchdogs notice it later, seconds.
MAX_WAIT = 2100.0
#: Logs round to seconds, and clocks of nodes differ, seconds.
SAME_MOMENT = 1.0
#: A checkpoint may still be written so long after a process died, seconds.
LAST_SIGNS = 60.0


class Attempt(NamedTuple):
    """Events of the last attempt of a job.

    Attributes
    ----------
    events : list of Event
        In the order of their times; without those before the job's start.
    failures : list of Event
        Of these, without exits after a scheduler had ended the job.
    earlier : list of Event
        Failures since the job's start and before its last restart.
    """

    events: list[Event]
    failures: list[Event]
    earlier: list[Event]


def last_attempt(events: Sequence[Event], start: float) -> Attempt:
    """The events after the last restart.

    Parameters
    ----------
    start : float, Unix seconds
        Start of the job; earlier events are of another job.
    """
    since = sorted((each for each in events if each.time >= start), key=lambda each: each.time)
    begin = max((number + 1 for number, each in enumerate(since) if each.kind == "restart"), default=0)
    own = since[begin:]
    ended = min((x.time for x in own if x.kind == "job_ended" and x.code is not None), default=np.inf)
    failures = [x for x in own if x.failure and not (x.kind == "process_exit" and x.time > ended)]
    return Attempt(own, failures, [x for x in since[:begin] if x.failure])


def placed_by_events(window: Window) -> Topology:
    """The job's topology, with the nodes of ranks that have none filled in from events with rank and node."""
    topology = window.job.topology
    node, names = topology.node.copy(), list(topology.node_names)
    columns = (window.events.column(name).to_pylist() for name in ("rank", "node"))
    known: dict[str, int] = {}
    for rank, name in zip(*columns, strict=True):
        if name is None:
            continue
        if name not in known:
            found = int(same_nodes([name], names)[0])
            known[name] = len(names) if found < 0 else found
            names += [name] if found < 0 else []
        index = known[name]
        if rank is not None and node[rank] < 0:
            node[rank] = index
    return replace(topology, node=node, node_names=tuple(names))


def failed_elsewhere(failures: Sequence[Event], origin: BoolArray, topology: Topology) -> list[Event]:
    """Failures of other places that may have ended the origin: they came before it, or at the same moment.

    Failed devices and links, and processes that ended without a rank, such as those that the kernel killed.
    A kill without a rank and a node may be that of the origin itself.

    Parameters
    ----------
    origin : ndarray of shape (n_ranks,), bool
    topology : Topology
        The failures' nodes are indices in it.
    """
    own = [each for each in failures if origin[ranks_named(each, topology)].any()]
    ends = [each.time for each in own if each.kind in DEATHS and each.rank is not None]
    first = min(ends or [each.time for each in own or failures], default=np.inf)
    return [
        each
        for each in failures
        if first - MAX_WAIT <= each.time <= first + SAME_MOMENT
        and not origin[ranks_named(each, topology)].any()
        and _may_end_others(each)
    ]


def _may_end_others(event: Event) -> bool:
    if event.kind in DEATHS:
        return event.rank is None and (event.node >= 0 or event.kind == "process_exit")
    return broke(event)


def missed_once(failures: Sequence[Event]) -> bool:
    """Whether the failures are missed heartbeats alone, and no rank or node missed more than one."""
    places = {(each.rank, each.node) for each in failures}
    return len(places) == len(failures) and all(each.kind == "heartbeat_missed" for each in failures)


def went_on(attempt: Attempt) -> Event | None:
    """A sign of progress well after the first failure, such as a saved checkpoint; None without one."""
    first = min((each.time for each in attempt.failures), default=np.inf)
    signs = (
        each
        for each in attempt.events
        if each.time > first + LAST_SIGNS
        and not each.failure
        and (each.kind.startswith("checkpoint") or (each.kind == "log" and each.harmless))
    )
    return next(signs, None)
