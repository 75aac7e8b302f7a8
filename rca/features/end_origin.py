"""Origin of a job's end: the rank or node that ended first, among many that ended.

After one process dies, its launcher stops the others, their collectives break, and watchdogs fire. Minutes
later every rank has an exit event. Exit codes, messages and times separate the first death from the rest.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence, Set

import numpy as np

from rca.arrays import BoolArray
from rca.collect.exits import TERMINATED_CODES, lost_peer, reacted
from rca.features.end_events import (
    APPLICATION_XIDS,
    NON_COLLECTIVE_PORTS,
    End,
    Event,
    deaths,
    ranks_named,
    xid_of,
)
from rca.window.job import Topology

#: Kinds of events of devices and links; other ranks may wait for the failed one.
DEVICE_EVENTS = frozenset({"xid", "ecc", "device_error", "link_down"})
#: The communicator in a watchdog's message, and the number of the last collective it enqueued or waits in.
PROCESS_GROUP = re.compile(r"\bPG (?:ID |GUID )?(\w+)")
ENQUEUED = re.compile(r"last enqueued(?: NCCL)? work: (-?\d+)|\bSeqNum=(\d+)", re.IGNORECASE)
#: Exits of one code are a reaction to an earlier exit of another code if there are this many, and if they are
#: this share of all others.
MIN_REACTIONS, MIN_REACTION_SHARE = 3, 0.75
#: Exit codes of a process that aborts itself, as Python, shells and Slurm write them.
ABORTED_CODES = frozenset({"-6", "134", "SIGABRT", "Aborted"})
#: A process that ends because it lost a peer ends at least so much later than the peer, seconds.
LEAD = 1.0
#: Largest share of ranks that can be the origin: most ranks cannot all be first.
MAX_ORIGIN_SHARE = 0.5
#: Largest share of ranks without the event that all others have; if it is larger, logs may be missing.
MAX_UNSEEN_SHARE = 1 / 8


def end_origin(events: Sequence[Event], end: End) -> BoolArray:
    """The rank, or the ranks of one node, that ended first; all False if events do not show it.

    `failed_first`, otherwise the first of these that names one rank or one node:

    1. watchdogs whose rank had enqueued the fewest collectives,
    2. the few ranks whose watchdogs did not fire; they may be on several nodes.

    Returns
    -------
    ndarray of shape (n_ranks,), bool
    """
    found = failed_first(events, end)
    if found.any():
        return found
    topology = end.topology
    fired = [event for event in _since(events, end) if event.kind == "nccl_timeout"]
    behind = {int(rank) for event in _never_joined(fired) for rank in ranks_named(event, topology)}
    origin = behind if _is_place(behind, topology) else _without_watchdog(fired, topology.n_ranks)
    return np.isin(np.arange(topology.n_ranks), list(origin))


def failed_first(events: Sequence[Event], end: End) -> BoolArray:
    """The rank, or the ranks of one node, that failed by itself or is missed by name; all False without one.

    Ranks that wait for it, or end because of it, are victims. The first of these that names one rank or one
    node gives the origin:

    1. the few ranks without a sign of their end, where all others ended normally or lost a peer,
    2. deaths that are not a reaction to another death,
    3. the deaths that came before all others,
    4. devices and links that failed around the last progress, before any watchdog fired,
    5. ranks that others name as those that did not join,
    6. missed heartbeats before any watchdog fires or any device fails.

    Returns
    -------
    ndarray of shape (n_ranks,), bool
    """
    topology = end.topology
    recent = _since(events, end)
    waits = [event for event in recent if event.kind in {"nccl_timeout", "did_not_join"}]
    watched = min((event.time for event in waits), default=np.inf)
    dead = own_deaths(events, end)
    # A rank that waits for a failed device, or for a watchdog, may miss its heartbeat before it is ended.
    waited_for = [event for event in recent if event.kind in DEVICE_EVENTS and not event.corrected]
    until = min((event.time for event in (*waits, *waited_for)), default=np.inf)
    missed = [event for event in recent if event.kind == "heartbeat_missed" and event.time < until]
    unprompted = _first_dead(dead, _lost_peers(recent), topology.n_ranks)
    since = end.sign - max(end.tolerance, end.waited)
    broken = [event for event in events if since <= event.time < watched and broke(event)]
    candidates = (unprompted, _ahead(unprompted, topology), broken)
    named = [{int(rank) for event in found for rank in ranks_named(event, topology)} for found in candidates]
    found = [_without_loss(recent, dead, topology.n_ranks), *named]
    origin = next((ranks for ranks in found if _is_place(ranks, topology)), set[int]())
    if not origin:
        origin = _named_by_others(waits, topology.n_ranks)
    if not origin:
        late = {int(rank) for event in missed for rank in ranks_named(event, topology)}
        origin = late if _is_place(late, topology) else set()
    return np.isin(np.arange(topology.n_ranks), list(origin))


def own_deaths(events: Sequence[Event], end: End) -> list[Event]:
    """The first death of each rank that did not follow from a wait for another rank, by time.

    An error of a process's own, such as too little memory, follows from no wait, unless the process itself
    waited. A watchdog that fires aborts its process, and launchers notice the end of a process late.
    """
    waits = [event for event in _since(events, end) if event.kind in {"nccl_timeout", "did_not_join"}]
    watched = min((event.time for event in waits), default=np.inf)
    fired: dict[int | None, float] = {}
    for event in waits:
        if event.kind == "nccl_timeout":
            fired[event.rank] = min(event.time, fired.get(event.rank, np.inf))
    # A launcher that lost a node, or a scheduler that ended the job, ends all processes.
    stopped = min((e.time for e in events if e.kind in {"node_down", "job_ended"}), default=np.inf)
    first: dict[int, Event] = {}
    for event in deaths(events, end.latest_death if not waits else np.inf):
        # The kernel's out-of-memory killer names the node only. Exits or rows may show the rank.
        if event.rank is None or event.time < end.earliest[event.rank]:
            continue
        own_wait = fired.get(event.rank, np.inf)
        if event.kind == "process_error":
            follows = own_wait < event.time
        elif event.kind == "oom_kill":
            follows = event.time > min(watched, end.latest_death)
        else:
            aborted = event.code in ABORTED_CODES and np.isfinite(own_wait)
            follows = aborted or event.time > min(watched - LEAD, end.latest_death, stopped)
        if not follows and (event.rank not in first or event.time < first[event.rank].time):
            first[event.rank] = event
    return sorted(first.values(), key=lambda event: event.time)


def _named_by_others(waits: Sequence[Event], n_ranks: int) -> set[int]:
    """The ranks that others name, unless these are most ranks: then they differ in what they wait for."""
    named = {event.rank for event in waits if event.kind == "did_not_join" and event.rank is not None}
    return named if len(named) <= MAX_ORIGIN_SHARE * n_ranks else set()


def broke(event: Event) -> bool:
    """Whether a node failed, or a device or a link that collectives need."""
    if event.kind == "node_down":
        return True
    if event.kind not in DEVICE_EVENTS or event.corrected:
        return False
    if event.kind == "link_down":
        return NON_COLLECTIVE_PORTS.search(event.message or "") is None
    return event.kind != "xid" or xid_of(event) not in APPLICATION_XIDS


def _lost_peers(events: Sequence[Event]) -> dict[int, float]:
    """Ranks that logged the loss of a peer, with the time of the first such line, Unix seconds."""
    lost: dict[int, float] = {}
    for event in events:
        if event.kind == "log" and event.rank is not None and reacted(event.message):
            lost[event.rank] = min(event.time, lost.get(event.rank, np.inf))
    return lost


def ranks_that_lost_a_peer(events: Sequence[Event], end: End) -> BoolArray:
    """Ranks that logged the loss of a peer since the last progress, or ended with it; shape (n_ranks,)."""
    return np.isin(np.arange(end.topology.n_ranks), list(_lost([*_since(events, end)])))


def _since(events: Sequence[Event], end: End) -> list[Event]:
    """Events from the last step on."""
    return [event for event in events if event.time >= end.sign - end.step]


def _lost(events: Sequence[Event]) -> set[int]:
    """Ranks whose log or exit tells of the loss of a peer."""
    return {
        event.rank
        for event in events
        if event.kind in {"log", "process_exit"} and event.rank is not None and lost_peer(event.message)
    }


def _without_loss(events: Sequence[Event], dead: Sequence[Event], n_ranks: int) -> set[int]:
    """The few ranks of which no event tells an end, if others lost a peer and none failed by itself."""
    lost = _lost(events)
    if not lost or any(event.rank not in lost for event in dead):
        return set()
    ended = lost | {event.rank for event in events if event.normal_exit}
    return _few(ended, n_ranks) if len(ended) >= MIN_REACTIONS else set()


def _few(others: Set[int | None], n_ranks: int) -> set[int]:
    """All ranks but these, if they are few."""
    rest = set(range(n_ranks)) - others
    return rest if len(rest) <= max(1.0, MAX_UNSEEN_SHARE * n_ranks) else set()


def _ahead(dead: Sequence[Event], topology: Topology) -> list[Event]:
    """The first death, or the deaths of a node, if all others came at least `LEAD` later.

    Processes that lost a peer end later than it, often with the same code and without a message.
    """
    found = sorted(dead, key=lambda event: event.time)
    if len({event.rank for event in found}) < MIN_REACTIONS:
        return []
    if found[1].time - found[0].time >= LEAD:
        return found[:1]
    nodes = [int(topology.node[event.rank]) for event in found if event.rank is not None]
    node = nodes[0]
    own = [event for event, place in zip(found, nodes, strict=True) if place == node]
    others = [event.time for event, place in zip(found, nodes, strict=True) if place != node]
    return own if node >= 0 and others and min(others) - own[-1].time >= LEAD else []


def _first_dead(dead: Sequence[Event], lost: Mapping[int, float], n_ranks: int) -> list[Event]:
    """Deaths that are not a reaction to another death; `lost` is when ranks logged the loss of a peer.

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
    unprompted = [
        event
        for event in own
        if not reacted(event.message) and (event.rank is None or lost.get(event.rank, np.inf) > event.time)
    ]
    # The peer that a process lost may be its own child. If all ranks lost one, messages do not decide.
    if not unprompted and (len(own) == 1 or len({event.rank for event in own} | lost.keys()) == n_ranks):
        return _odd_code(own)
    return _odd_code(unprompted)


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
    reached = [(event, int(number[1] or number[2])) for event, number in matches if number is not None]
    groups = {tuple(PROCESS_GROUP.findall(event.message or "")[:1]) for event, _ in reached}
    if len(groups) > 1 or len({event.rank for event, _ in reached}) < len(reached):
        return []  # Counts of several communicators do not compare.
    fewest = min((number for _, number in reached), default=0)
    behind = [event for event, number in reached if number == fewest]
    return behind if len(behind) < len(reached) else []


def _without_watchdog(fired: Sequence[Event], n_ranks: int) -> set[int]:
    """The few ranks whose watchdogs did not fire while those of all others did: they wait for no rank."""
    waiting = {event.rank for event in fired if event.rank is not None}
    return _few(waiting, n_ranks) if len(waiting) >= MIN_REACTIONS else set()


def _is_place(ranks: set[int], topology: Topology) -> bool:
    """Whether the ranks are one rank of several, few ranks of one node, or whole nodes.

    Several whole nodes may share a power supply or a switch; they are at most half of the job.
    """
    if not 0 < len(ranks) < max(2, topology.n_ranks):
        return False
    if len(ranks) == 1:
        return True
    nodes = np.unique(topology.node[list(ranks)])
    few = len(ranks) <= MAX_ORIGIN_SHARE * topology.n_ranks
    if nodes[0] < 0 or (nodes.size > 1 and not few):
        return False
    # Where only some ranks are placed, a node may have more.
    whole = len(ranks) == int(np.isin(topology.node, nodes).sum()) and bool((topology.node >= 0).all())
    return whole or (few and nodes.size == 1)
