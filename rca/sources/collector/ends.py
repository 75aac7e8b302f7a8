"""Ends of ranks as their collectors left them: a killed process has no record of its end.

The others lose their peer then. They log that, or end within a step. Without such a sign a missing record
shows nothing: the job may still run, or the process may have ended by ``os._exit`` after its last step.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from rca.collect.exits import SIGNALLED, TERMINATED_CODES, TIMED_OUT, lost_peer

#: A rank is missed if its files end so much earlier than the job's last; samples come every second.
SILENT_SECONDS = 10.0
#: Largest share of ranks that may fail by themselves at once. If more do, their errors have another origin.
MAX_ORIGIN_SHARE = 0.5
#: Clocks of nodes differ by so much, seconds.
MAX_CLOCK_ERROR = 1.0
#: The last event of a collector that ended by itself.
END = "collector_end"
ENDED_WITHOUT_RECORD = "its process ended without a record, before others lost a peer"


class RankEnd(NamedTuple):
    """What one rank's files say about its end.

    Attributes
    ----------
    last_sign : float, Unix seconds
        Last sample, step or event.
    begun : float, Unix seconds
        When its last step began.
    unfinished : bool
        That step was not finished, or its training code left it without an error.
    """

    events: Sequence[Mapping[str, Any]]
    last_sign: float
    begun: float
    unfinished: bool

    @property
    def ended(self) -> bool:
        """Whether its collector ended by itself, rather than being killed."""
        return any(event["kind"] == END for event in self.events)

    @property
    def exits(self) -> list[Mapping[str, Any]]:
        """Its events of an exit; there is one at most, unless training code adds some."""
        return [event for event in self.events if event["kind"] == "process_exit"]

    @property
    def lost_peer_at(self) -> float | None:
        """When it lost a peer, within its last step; None if it did not, or went on."""
        times = [
            float(event["time"])
            for event in self.events
            if event["kind"] in {"log", "process_exit"} and lost_peer(event["message"])
        ]
        return min((time for time in times if time >= self.begun), default=None)

    @property
    def broke_off_at(self) -> float | None:
        """When it lost a peer, or its training code ended within a step; None if neither happened."""
        ends = [float(event["time"]) for event in self.exits if self.unfinished]
        return self.lost_peer_at if self.lost_peer_at is not None else min(ends, default=None)

    @property
    def signalled(self) -> bool:
        """Whether a person or the launcher stopped it."""
        return any(
            event["code"] in TERMINATED_CODES or SIGNALLED.search(event["message"] or "")
            for event in self.exits
        )

    @property
    def failed_alone(self) -> bool:
        """Whether its process failed with an error of its own."""
        return self.failed and self.lost_peer_at is None and not self.signalled

    @property
    def timed_out(self) -> bool:
        """Whether it waited for a peer in vain."""
        return any(TIMED_OUT.search(event["message"] or "") for event in self.exits)

    @property
    def failed(self) -> bool:
        """Whether it lost a peer, or its process failed."""
        return self.lost_peer_at is not None or any(event["code"] != "0" for event in self.exits)


class FoundEnd(NamedTuple):
    """An event that no collector wrote."""

    time: float
    rank: int | None
    kind: str
    message: str


def found_at_the_end(ends: Mapping[int, RankEnd], world_size: int) -> list[FoundEnd]:
    """Events of ranks without a record of their end.

    - The process of such a rank ended if others lost a peer afterwards. Most other ranks that fail show the
      same, unless they waited in vain: the rank may have hung.
    - Its heartbeat is missed if its files end long before those of the others.
    - Training finished if all ranks with a record ended normally.
    """
    recorded = [end for end in ends.values() if end.ended]
    if len(recorded) == world_size:
        return []
    if _finished(ends.values()):
        text = f"training finished: {len(recorded)} ranks ended normally, the others left no record"
        return [FoundEnd(max(end.last_sign for end in recorded), None, "log", text)]
    without = [rank for rank, end in ends.items() if not end.ended and end.lost_peer_at is None]
    last = max(end.last_sign for end in ends.values())
    killed = _killed(ends, without)
    events = [FoundEnd(time, rank, "process_exit", ENDED_WITHOUT_RECORD) for rank, time in killed.items()]
    for rank in without:
        silent = last - ends[rank].last_sign
        if rank not in killed and silent > SILENT_SECONDS:
            message = f"its collector wrote nothing in the last {silent:.0f} s, and did not end by itself"
            events.append(FoundEnd(ends[rank].last_sign, rank, "heartbeat_missed", message))
    return events


def _finished(ends: Collection[RankEnd]) -> bool:
    """Whether all ranks with a record ended normally, and no other was within a step or went on."""
    latest = max((end.last_sign for end in ends if end.ended), default=-math.inf) + SILENT_SECONDS
    return all(not (end.unfinished or end.failed) and (end.ended or end.last_sign <= latest) for end in ends)


def _killed(ends: Mapping[int, RankEnd], without: Sequence[int]) -> dict[int, float]:
    """Ranks without a record whose end made others break off, with the first time at which one did."""
    broke_off = [(end.broke_off_at, end) for end in ends.values() if end.broke_off_at is not None]
    alone = sum(end.failed_alone for end in ends.values())
    if not broke_off or any(end.timed_out for end in ends.values()):
        return {}
    if 0 < alone <= MAX_ORIGIN_SHARE * len(ends):
        return {}
    time, first = min(broke_off, key=lambda each: each[0])
    if first.signalled and first.lost_peer_at is None:
        return {}
    logged = any(end.lost_peer_at is not None for _, end in broke_off)
    earliest = -math.inf if logged else time - SILENT_SECONDS
    return {rank: time for rank in without if earliest <= ends[rank].last_sign <= time + MAX_CLOCK_ERROR}
