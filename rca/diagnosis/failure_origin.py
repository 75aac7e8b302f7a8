"""Where a stop began, by events and by records of collectives: the first failure that explains the others.

Watchdogs that fire, lost peers and ends by a launcher are reactions: their ranks are victims.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from rca.arrays import BoolArray
from rca.classify.decision_table import FAILED, FIRST_EXIT, MISSED
from rca.collect.exits import TERMINATED_CODES, lost_peer, reacted
from rca.diagnosis.data_quality import listed
from rca.features.collective_progress import CollectiveProgress
from rca.features.end_events import DEATHS, End, Event, ranks_named, ranks_that_failed, read_events
from rca.features.end_origin import (
    ABORTED_CODES,
    DEVICE_EVENTS,
    broke,
    end_origin,
    failed_first,
    own_deaths,
)
from rca.features.failure_order import MAX_WAIT, SAME_MOMENT, Attempt, last_attempt, placed_by_events
from rca.window.job import Topology
from rca.window.window import Window

#: Lines without a time of their own are microseconds apart, which is no order of failures, seconds.
SAME_LINE = 5e-4
_ABORTED = "{ranks} aborted, as a process does whose watchdog fired: its log says what it waited for"
_OTHERS_MISSING = "{failed} failed, but the others wait for {missing}: either may be the origin"


class Origin(NamedTuple):
    """Where the stop began.

    Attributes
    ----------
    ranks : ndarray of shape (n_ranks,), bool
    nodes : tuple of int
        Nodes in the topology that failed and of which no rank is known.
    doubt : str
        Why the origin is not certain, if events and records of collectives differ.
    """

    certain: bool
    ranks: BoolArray
    nodes: tuple[int, ...]
    cause: str
    probability: float
    doubt: str = ""


def tells_origin(window: Window) -> bool:
    """Whether an event shows where a stop began: a failure of its own, or a rank that others name."""
    places = placed_by_events(window)
    attempt = last_attempt(read_events(window, places), window.job.start)
    failures = attempt.failures
    if not failures:
        return False
    ranks = failed_first(attempt.events, _end_of(failures, places)) & ~_victims(attempt, places.n_ranks)
    return bool(ranks.any() or _lost_nodes(failures, places))


def origin_of(window: Window, attempt: Attempt, places: Topology) -> Origin:
    """Where the events show that the stop began, its cause and its probability.

    Parameters
    ----------
    places : Topology
        The events' nodes are indices in it.
    """
    none = np.zeros(places.n_ranks, dtype=bool)
    failures, victims = attempt.failures, _victims(attempt, places.n_ranks)
    if not failures:
        return Origin(False, none, (), "process_crash", 0.0)
    end = _end_of(failures, places)
    # A failed device ends a job only if its processes end; without rows it is unknown whether they went on.
    ended = any(each.kind not in DEVICE_EVENTS for each in failures)
    own = [each for each in own_deaths(failures, end) if each.rank is not None and not victims[each.rank]]
    ranks = end_origin(attempt.events, end) & ~victims if ended else none
    if not ranks.any():
        ranks = _earliest_death(own, window.job.topology)
    missing = CollectiveProgress.from_window(window).missing
    if ranks.any():
        ranks = _first_of(ranks, own)
        return _of_ranks(ranks, missing, failures, own, places)
    lost = _lost_nodes(failures, places)
    if lost and missing.any():
        return Origin(len(lost) == 1, missing, lost, "process_crash", MISSED)
    if lost:
        alone = all(each.kind in {*DEVICE_EVENTS, "oom_kill"} for each in failures)
        certain = len(lost) == 1 and not alone
        return Origin(certain, none, lost, "process_crash", FAILED if alone else FIRST_EXIT)
    # A rank whose watchdog fired waited for another one.
    suspects = [each for each in failures if each.kind != "nccl_timeout" and not is_terminated(each)]
    ranks = ranks_that_failed(suspects, places, window.job.start) & ~victims
    return Origin(False, ranks, (), "process_crash", FAILED)


def is_terminated(event: Event) -> bool:
    """Whether a process was stopped from outside, by a person or a launcher."""
    return event.kind == "process_exit" and event.code in TERMINATED_CODES


def _first_of(ranks: BoolArray, own: Sequence[Event]) -> BoolArray:
    """Of ranks that all died, those that died first: the others may have lost them as peers."""
    died = {each.rank: each.time for each in own if each.rank is not None and ranks[each.rank]}
    if len(died) < int(ranks.sum()):
        return ranks
    last = min(died.values()) + SAME_MOMENT
    return np.isin(np.arange(ranks.size), [rank for rank, time in died.items() if time <= last])


def _of_ranks(
    ranks: BoolArray, missing: BoolArray, failures: Sequence[Event], own: Sequence[Event], places: Topology
) -> Origin:
    """The origin that events show; narrowed to the ranks that others wait for, if these are known."""
    both = ranks & missing
    if missing.any() and not both.any():
        failed, absent = (listed(np.flatnonzero(each).tolist()) for each in (ranks, missing))
        doubt = _OTHERS_MISSING.format(failed=failed, missing=absent)
        return Origin(False, ranks | missing, (), "process_crash", FAILED, doubt)
    origin = both if both.any() else ranks
    named = [each for each in failures if origin[ranks_named(each, places)].any()]
    died = any(each in own or broke(each) for each in named)
    aborted = [each for each in named if each.kind == "process_exit" and each.code in ABORTED_CODES]
    if named and len(aborted) == len(named) and not missing.any():
        doubt = _ABORTED.format(ranks=listed(np.flatnonzero(origin).tolist()))
        return Origin(False, origin, (), "process_crash", FAILED, doubt)
    return Origin(True, origin, (), "process_crash" if died else "hang", FIRST_EXIT if died else MISSED)


def _victims(attempt: Attempt, n_ranks: int) -> BoolArray:
    """Ranks that logged the loss of a peer before they ended, and have no error of their own before that.

    A loss long before the first failure has another reason.
    """
    lost: dict[int, float] = {}
    since = min((each.time for each in attempt.failures), default=-np.inf) - MAX_WAIT
    for each in attempt.events:
        if each.time >= since and each.kind == "log" and each.rank is not None and lost_peer(each.message):
            lost[each.rank] = min(each.time, lost.get(each.rank, np.inf))
    for each in attempt.failures:
        own = each.kind == "process_error" or broke(each) or each.kind == "did_not_join"
        if own and each.rank is not None and each.time <= lost.get(each.rank, -np.inf) + SAME_MOMENT:
            del lost[each.rank]
    return np.isin(np.arange(n_ranks), list(lost))


def _end_of(failures: Sequence[Event], places: Topology) -> End:
    """The end of the job as far as events show it: the first death, or the end of the first wait."""
    died = min((each.time for each in failures if each.kind in DEATHS), default=np.inf)
    waits = [each.time for each in failures if each.kind in {"did_not_join", "nccl_timeout"}]
    began = min([died, *waits])
    if not np.isfinite(began):
        began = failures[0].time
    waited = MAX_WAIT if began < died and waits else 0.0
    return End(places, began, np.full(places.n_ranks, -np.inf), 1.0, waited)


def _lost_nodes(failures: Sequence[Event], places: Topology) -> tuple[int, ...]:
    """The nodes without a known rank that failed first, by themselves; empty without one."""
    own = [
        each
        for each in failures
        if each.rank is None
        and each.node >= 0
        and not ranks_named(each, places).size
        and (broke(each) or (each.kind in DEATHS and not reacted(each.message)))
    ]
    first = min((each.time for each in own), default=np.inf)
    return tuple(sorted({each.node for each in own if each.time <= first + SAME_MOMENT}))


def _earliest_death(died: Sequence[Event], topology: Topology) -> BoolArray:
    """The ranks of one node that died before all others, unless they were terminated; else none."""
    found = np.zeros(topology.n_ranks, dtype=bool)
    if not died or died[0].code in TERMINATED_CODES:
        return found
    first = {each.rank for each in died if each.time <= died[0].time + SAME_LINE}
    ranks = np.array(sorted(rank for rank in first if rank is not None))
    one_node = ranks.size == 1 or (topology.node[ranks] == topology.node[ranks[0]]).all()
    if one_node and (ranks.size == 1 or topology.node[ranks[0]] >= 0):
        found[ranks] = True
    return found
