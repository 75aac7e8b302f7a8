"""Origin of a job's end: the rank or node that ended first, among many that ended.

After one process dies, its launcher stops the others, their collectives break, and watchdogs fire. Minutes
later every rank has an exit event. Exit codes, messages and times separate the first death from the rest.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

import numpy as np

from rca.arrays import BoolArray
from rca.features.end_events import End, Event, deaths, ranks_named
from rca.telemetry.job import Topology

#: Kinds of events of devices and links; other ranks may wait for the failed one.
DEVICE_EVENTS = frozenset({"xid", "ecc", "link_down"})
#: Exit codes after SIGTERM or SIGINT, as Python, shells and launchers write them.
TERMINATED_CODES = frozenset({"-15", "15", "143", "SIGTERM", "-2", "2", "130", "SIGINT"})
#: Messages of a process that lost its peer: of NCCL, gloo, MPI, gRPC and sockets.
LOST_PEER = re.compile(
    r"remote (process|peer|rank)|(closed|reset|aborted) by (remote )?peer|broken pipe|ncclRemoteError"
    r"|connection (was )?(closed|refused)|peer (exited|died|failure|disconnected)|socket closed"
    r"|communicator was aborted|SIGTERM|KeyboardInterrupt",
    re.IGNORECASE,
)  # fmt: skip
#: The communicator in a watchdog's message, and the number of the last collective it enqueued.
PROCESS_GROUP = re.compile(r"\bPG (?:ID |GUID )?(\w+)")
ENQUEUED = re.compile(r"last enqueued(?: NCCL)? work: (-?\d+)", re.IGNORECASE)
#: Exits of one code are a reaction to an earlier exit of another code if there are this many, and if they are
#: this share of all others.
MIN_REACTIONS, MIN_REACTION_SHARE = 3, 0.75
#: Largest share of ranks that can be the origin: most ranks cannot all be first.
MAX_ORIGIN_SHARE = 0.5
#: Largest share of ranks whose watchdog did not fire; if it is larger, their logs may be missing.
MAX_WITHOUT_WATCHDOG_SHARE = 1 / 8


def end_origin(events: Sequence[Event], end: End) -> BoolArray:
    """The rank, or the ranks of one node, that ended first; all False if events do not show it.

    The first of these that names one rank or one node gives the origin:

    1. deaths that are not a reaction to another death,
    2. missed heartbeats before any watchdog fires or any device fails,
    3. watchdogs whose rank had enqueued the fewest collectives,
    4. the few ranks whose watchdogs did not fire.

    Returns
    -------
    ndarray of shape (n_ranks,), bool
    """
    topology = end.topology
    recent = [event for event in events if event.time >= end.sign - end.step]
    fired = [event for event in recent if event.kind == "nccl_timeout"]
    dead = [
        event
        for event in deaths(events, min([end.latest_death, *(event.time for event in fired)]))
        # The kernel's out-of-memory killer names the node only. Exits or rows may show the rank.
        if event.rank is not None and event.time >= end.earliest[event.rank]
    ]
    # A rank that waits for a failed device, or for a watchdog, may miss its heartbeat before it is ended.
    waited_for = [
        event for event in recent if event.kind in {"nccl_timeout", *DEVICE_EVENTS} and not event.corrected
    ]
    until = min((event.time for event in waited_for), default=np.inf)
    missed = [event for event in recent if event.kind == "heartbeat_missed" and event.time < until]
    candidates = (_first_dead(dead), missed, _never_joined(fired))
    named = [{int(rank) for event in found for rank in ranks_named(event, topology)} for found in candidates]
    for ranks in (*named, _without_watchdog(fired, topology.n_ranks)):
        if _one_place(ranks, topology):
            return np.isin(np.arange(topology.n_ranks), list(ranks))
    return np.zeros(topology.n_ranks, dtype=bool)


def _first_dead(dead: Sequence[Event]) -> list[Event]:
    """Deaths that are not a reaction to another death.

    Empty if the first process and most others were terminated: then the job was stopped from outside.
    """
    found = sorted(dead, key=lambda event: event.time)
    terminated = [event.code in TERMINATED_CODES for event in found]
    if not found or (terminated[0] and 2 * sum(terminated) > len(found)):
        return []
    first = found[0].time
    own = [
        event for event, ended in zip(found, terminated, strict=True) if not (ended and event.time > first)
    ]
    # If all messages mention a lost peer, it may be the process's own child. Then messages do not decide.
    unprompted = [event for event in own if not LOST_PEER.search(event.message or "")]
    return _odd_code(unprompted or own)


def _odd_code(dead: list[Event]) -> list[Event]:
    """The deaths with another code than nearly all others, if they came before these; else all deaths."""
    if len(dead) <= MIN_REACTIONS:
        return dead
    code, times = Counter(event.code for event in dead).most_common(1)[0]
    odd = [event for event in dead if event.code != code]
    others = [event for event in dead if event.code == code]
    reacted = times >= MIN_REACTIONS and times >= MIN_REACTION_SHARE * (len(dead) - 1) and bool(odd)
    return odd if reacted and max(event.time for event in odd) <= min(e.time for e in others) else dead


def _never_joined(fired: Sequence[Event]) -> list[Event]:
    """Watchdogs of ranks that had enqueued fewer collectives than the others."""
    matches = [(event, ENQUEUED.search(event.message or "")) for event in fired]
    reached = [(event, int(number[1])) for event, number in matches if number is not None]
    groups = {tuple(PROCESS_GROUP.findall(event.message or "")[:1]) for event, _ in reached}
    if len(groups) > 1 or len({event.rank for event, _ in reached}) < len(reached):
        return []  # Counts of several communicators do not compare.
    fewest = min((number for _, number in reached), default=0)
    behind = [event for event, number in reached if number == fewest]
    return behind if len(behind) < len(reached) else []


def _without_watchdog(fired: Sequence[Event], n_ranks: int) -> set[int]:
    """The few ranks whose watchdogs did not fire while those of all others did: they wait for no rank."""
    waiting = {event.rank for event in fired if event.rank is not None}
    others = set(range(n_ranks)) - waiting
    few = len(others) <= max(1.0, MAX_WITHOUT_WATCHDOG_SHARE * n_ranks)
    return others if len(waiting) >= MIN_REACTIONS and few else set()


def _one_place(ranks: set[int], topology: Topology) -> bool:
    """Whether the ranks are one rank of several, a whole node, or a part of a node with few of all ranks."""
    if not 0 < len(ranks) < max(2, topology.n_ranks):
        return False
    node = topology.node[list(ranks)]
    one_node = len(ranks) == 1 or (int(node.min()) >= 0 and bool((node == node[0]).all()))
    few = len(ranks) <= MAX_ORIGIN_SHARE * topology.n_ranks
    return one_node and (few or len(ranks) == 1 or len(ranks) == int((topology.node == node[0]).sum()))
