"""With whom a job's end began, by its events: of many that ended, who ended first and by himself.

When one process dies, its launcher stops the others, their collectives break, and watchdogs fire: minutes
later every rank has an exit to its name. What came of the first death is told apart by its code, by what it
says of itself, and by its time.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

import numpy as np

from rca.arrays import BoolArray
from rca.features.end_events import End, Event, deaths, ranks_named
from rca.telemetry.job import Topology

#: Events of devices and links that others may wait for.
DEVICES = frozenset({"xid", "ecc", "link_down"})
#: Exit codes of a process that was asked to leave (SIGTERM, SIGINT), as Python, shells and agents write them.
ASKED_TO_LEAVE = frozenset({"-15", "15", "143", "SIGTERM", "-2", "2", "130", "SIGINT"})
#: What a process says that lost its peer: of NCCL, gloo, MPI, gRPC and sockets.
LOST_ITS_PEER = re.compile(
    r"remote (process|peer|rank)|(closed|reset|aborted) by (remote )?peer|broken pipe|ncclRemoteError"
    r"|connection (was )?(closed|refused)|peer (exited|died|failure|disconnected)|socket closed"
    r"|communicator was aborted|SIGTERM|KeyboardInterrupt",
    re.IGNORECASE,
)  # fmt: skip
#: How far a rank's communicator got, as its watchdog tells it, and which of several it is.
PROCESS_GROUP = re.compile(r"\bPG (?:ID |GUID )?(\w+)")
ENQUEUED = re.compile(r"last enqueued(?: NCCL)? work: (-?\d+)", re.IGNORECASE)
#: Many exits of one code, from this many ranks on, are the answer to one of another that came before them.
ALIKE, ALIKE_SHARE = 3, 0.75
#: Who is named has to be the smaller part: most ranks cannot all have been first.
FEW = 0.5
#: Of whom alone nothing was heard there may be so few: more may have lost their logs.
SILENT_SHARE = 1 / 8


def where_it_began(events: Sequence[Event], end: End) -> BoolArray:
    """The ranks of one node, or the one rank, with whom the end began, shape (n_ranks,).

    All false where events do not tell.
    """
    topology = end.topology
    recent = [event for event in events if event.time >= end.sign - end.step]
    fired = [event for event in recent if event.kind == "nccl_timeout"]
    dead = [
        event
        for event in deaths(events, min([end.latest_death, *(event.time for event in fired)]))
        # The kernel's out-of-memory killer knows the node only: which of its ranks, rows may tell.
        if event.rank is not None and event.time >= end.earliest[event.rank]
    ]
    # Whoever waits for a watchdog, or for a device that failed, may fall silent before it is stopped.
    told_of = [event for event in recent if event.kind in {"nccl_timeout", *DEVICES} and not event.corrected]
    until = min((event.time for event in told_of), default=np.inf)
    unheard = [event for event in recent if event.kind == "heartbeat_missed" and event.time < until]
    told = (_first_dead(dead), unheard, _never_joined(fired))
    named = [{int(rank) for event in found for rank in ranks_named(event, topology)} for found in told]
    for ranks in (*named, _never_complained(fired, topology.n_ranks)):
        if _one_place(ranks, topology):
            return np.isin(np.arange(topology.n_ranks), list(ranks))
    return np.zeros(topology.n_ranks, dtype=bool)


def _first_dead(dead: Sequence[Event]) -> list[Event]:
    """Deaths that are no answer to another's.

    None where the first, and most, were asked to leave: then the job was stopped from outside.
    """
    found = sorted(dead, key=lambda event: event.time)
    asked = [event.code in ASKED_TO_LEAVE for event in found]
    if not found or (asked[0] and 2 * sum(asked) > len(found)):
        return []
    first = found[0].time
    own = [event for event, left in zip(found, asked, strict=True) if not (left and event.time > first)]
    # What a process says of its peer may be of its own children: then its words tell nothing.
    unprompted = [event for event in own if not LOST_ITS_PEER.search(event.message or "")]
    return _odd_code(unprompted or own)


def _odd_code(dead: list[Event]) -> list[Event]:
    """The first of those whose code is not that with which nearly all the others ended later."""
    if len(dead) <= ALIKE:
        return dead
    code, times = Counter(event.code for event in dead).most_common(1)[0]
    odd = [event for event in dead if event.code != code]
    others = [event for event in dead if event.code == code]
    answered = times >= ALIKE and times >= ALIKE_SHARE * (len(dead) - 1) and bool(odd)
    return odd if answered and max(event.time for event in odd) <= min(e.time for e in others) else dead


def _never_joined(fired: Sequence[Event]) -> list[Event]:
    """Watchdogs that say that their rank had not begun the collective that others were waiting in."""
    told = [(event, ENQUEUED.search(event.message or "")) for event in fired]
    reached = [(event, int(number[1])) for event, number in told if number is not None]
    groups = {tuple(PROCESS_GROUP.findall(event.message or "")[:1]) for event, _ in reached}
    if len(groups) > 1 or len({event.rank for event, _ in reached}) < len(reached):
        return []  # Counts of several communicators do not compare.
    fewest = min((number for _, number in reached), default=0)
    behind = [event for event, number in reached if number == fewest]
    return behind if len(behind) < len(reached) else []


def _never_complained(fired: Sequence[Event], n_ranks: int) -> set[int]:
    """The few ranks whose watchdogs did not fire where all others' did: they wait for nobody."""
    waiting = {event.rank for event in fired if event.rank is not None}
    silent = set(range(n_ranks)) - waiting
    return silent if len(waiting) >= ALIKE and len(silent) <= max(1.0, SILENT_SHARE * n_ranks) else set()


def _one_place(ranks: set[int], topology: Topology) -> bool:
    """One rank of several, or several of one node that do not make up most of the job, or the node."""
    if not 0 < len(ranks) < max(2, topology.n_ranks):
        return False
    node = topology.node[list(ranks)]
    together = len(ranks) == 1 or (int(node.min()) >= 0 and bool((node == node[0]).all()))
    few = len(ranks) <= FEW * topology.n_ranks
    return together and (few or len(ranks) == 1 or len(ranks) == int((topology.node == node[0]).sum()))
