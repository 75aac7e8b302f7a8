"""Diagnosis from events alone: which process or device failed first."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import NamedTuple

import numpy as np

from rca.arrays import BoolArray
from rca.classify.decision_table import FAILED, STOPPED
from rca.collect.exits import lost_peer
from rca.diagnosis.answer_limits import MAX_STRAGGLERS
from rca.diagnosis.causes import without_cost
from rca.diagnosis.data_quality import listed
from rca.diagnosis.failure_origin import Origin, is_terminated, origin_of
from rca.diagnosis.findings import findings_in_events
from rca.diagnosis.result import (
    AbstentionReason,
    Diagnosis,
    Evidence,
    ModelVersion,
    Quality,
    Scope,
    Straggler,
)
from rca.diagnosis.untimed import UNKNOWN_COST, untimed_diagnosis, untimed_quality, untimed_straggler
from rca.diagnosis.when_and_where import utc
from rca.features.end_events import DEATHS, Event, ranks_named, read_events
from rca.features.failure_order import (
    Attempt,
    failed_elsewhere,
    last_attempt,
    missed_once,
    placed_by_events,
    went_on,
)
from rca.features.machine_outliers import groups_of
from rca.window.causes import SPECS, FailureMode
from rca.window.job import Topology
from rca.window.window import Window

_NO_FAILURE = "the window has events only, and none of them is a failure"
_NO_ORDER = "{n} ranks failed, and the events do not show which one was first"
_RESTARTED = "failures ({n}) came before the job's last restart, and none after it"
_ELSEWHERE = "{kind} on {place} came before the first rank ended, or with it: either may be the origin"
_WENT_ON = "the job went on after the failures: later events report progress"
_MISSED_ONCE = "a single missed heartbeat does not show that a rank stopped"
_EARLIER_CHECK = "read the logs of {ranks} from before the restart; time the steps of each rank"
_DEVICE = "events report that a device of {ranks} failed, and no process of it has ended"
_KILLED = "the kernel killed a process on {ranks} for its memory; whether it is one of the job is unknown"
_NO_PLACE = "no failure names a rank or a node: add the logs of every rank, with the launcher's labels"
_NO_ORIGIN = "failures without a rank: place the nodes on ranks (job.ranks) or send exits with their rank"
_TIME_STEPS = "time the steps of each rank: events alone show no slowness"
_LOST_PEERS = "{ranks} lost a peer, and no line shows the failure of that peer: its log may be missing"
_WAITED = "{ranks} waited in vain for another rank, and no line says for which one"
_LOGS_CHECK = "collect the logs of the other ranks, and flight recorder dumps: who did not join?"
_MOST_MISSING = "the reports name most ranks as missing, which does not show who is at fault"
_TERMINATED = "every process was stopped from outside, and no line says by whom: read the scheduler's log"
_CANCELLED = "the job was cancelled, and no line says why"
_OUTSIDE = "the scheduler ended the job ({why}); no rank failed by these events"
#: Nodes in one sentence.
MAX_NODES = 8
#: What to look at after a signal that the process did not send itself.
_AFTER_SIGNAL = {
    signal.SIGKILL: "look for the out-of-memory killer in the kernel log of {place}; check the memory limit",
    signal.SIGBUS: "look at {place}: shared memory (/dev/shm) or a disk may be full; read its kernel log",
    signal.SIGSEGV: "look at the core dump and the libraries of {place}; the kernel log names the library",
}


def diagnose_events(window: Window, model: ModelVersion) -> Diagnosis:
    """Diagnose a window with events and nothing else.

    Parameters
    ----------
    model : ModelVersion
        Version of the bundle; it has no part in this answer.

    Returns
    -------
    Diagnosis
        Fail-stop with the rank that failed first, or abstained. It claims no seconds per step.
    """
    places = placed_by_events(window)
    attempt = last_attempt(read_events(window, places), window.job.start)
    failures = attempt.failures
    origin = origin_of(window, attempt, places)
    ranks, certain, probability = origin.ranks, origin.certain, origin.probability
    doubt = origin.doubt or (_doubt(attempt, ranks, places) if certain or not failures else "")
    if certain and doubt:
        elsewhere = failed_elsewhere(failures, ranks, places)
        certain, probability = False, FAILED
        ranks = ranks | _all_named(elsewhere, places)
    outside = [each for each in failures if each.kind == "job_ended" and each.code is not None]
    by_scheduler = bool(outside) and all(each.kind == "job_ended" for each in failures)
    groups = _groups(window, origin, ranks, places)
    shown = groups[:MAX_STRAGGLERS]
    causes = [
        without_cost(
            origin.cause,
            each.ranks,
            each.nodes or _nodes(window, each.ranks),
            probability,
            [UNKNOWN_COST, *_evidence(each, failures, places)],
        )
        for each in shown
    ]
    reason = None if by_scheduler else _reason(attempt, groups, doubt, certain=certain)
    stopped = STOPPED if certain or by_scheduler else FAILED if failures or _lost_peers(attempt) else 0.0
    mode: FailureMode = "fail_stop" if stopped else "healthy"
    return untimed_diagnosis(
        window,
        model,
        mode=mode,
        probability=_probability(stopped),
        modes_left=["fail_stop"] if stopped == STOPPED else ["healthy", "fail_slow", "fail_stop"],
        stragglers=[_straggler(each, probability, window, failures, places) for each in shown],
        causes=causes,
        findings=findings_in_events(window, places),
        reason=reason,
        next_check=_OUTSIDE.format(why=outside[0].code)
        if by_scheduler
        else _next_check(shown, attempt, window),
        missing=["steps", "metrics"],
        quality=_quality(window, attempt),
        left_out=len(groups) - len(shown),
        act=certain,
    )


class _Group(NamedTuple):
    """Ranks that one straggler covers, with nodes that may be theirs; a node alone without a known rank."""

    ranks: list[int]
    nodes: list[str]

    def names(self, event: Event, places: Topology) -> bool:
        """Whether an event is about this group."""
        of_node = event.rank is None and event.node >= 0 and places.node_names[event.node] in self.nodes
        return of_node or bool(set(ranks_named(event, places).tolist()) & set(self.ranks))


def _groups(window: Window, origin: Origin, ranks: BoolArray, places: Topology) -> list[_Group]:
    nodes = [places.node_names[each] for each in origin.nodes]
    found = [_Group(list(each), nodes) for each in groups_of(ranks, window.job.topology)]
    return found or [_Group([], [each]) for each in nodes]


def _doubt(attempt: Attempt, origin: BoolArray, places: Topology) -> str:
    """Why the events do not show for certain that the origin failed first; empty if they do."""
    if not attempt.failures:
        return _RESTARTED.format(n=len(attempt.earlier)) if attempt.earlier else ""
    elsewhere = failed_elsewhere(attempt.failures, origin, places) if origin.any() else []
    if elsewhere:
        return _ELSEWHERE.format(kind=elsewhere[0].kind, place=_place_of(elsewhere[0], places))
    if went_on(attempt) is not None:
        return _WENT_ON
    return _MISSED_ONCE if missed_once(attempt.failures) else ""


def _place_of(event: Event, places: Topology) -> str:
    if event.rank is not None:
        return f"rank {event.rank}"
    return f"node {places.node_names[event.node]}" if event.node >= 0 else "an unknown node"


def _all_named(events: Sequence[Event], places: Topology) -> BoolArray:
    found = np.zeros(places.n_ranks, dtype=bool)
    for each in events:
        found[ranks_named(each, places)] = True
    return found


def _probability(stopped: float) -> dict[FailureMode, float]:
    if not stopped:
        return {"healthy": 1 / 3, "fail_slow": 1 / 3, "fail_stop": 1 / 3}
    other = (1.0 - stopped) / 2
    return {"healthy": other, "fail_slow": other, "fail_stop": stopped}


def _lost_peers(attempt: Attempt) -> str:
    """What is open if ranks lost a peer; empty otherwise."""
    lost = sorted({each.rank for each in attempt.events if each.rank is not None and lost_peer(each.message)})
    return _LOST_PEERS.format(ranks=listed(lost)) if lost else ""


def _reason(attempt: Attempt, groups: list[_Group], doubt: str, *, certain: bool) -> AbstentionReason | None:
    if certain:
        return None
    failures, lost = attempt.failures, _lost_peers(attempt)
    if not failures and not doubt and not lost:
        return AbstentionReason(code="no_step_times", sentence=_NO_FAILURE)
    return AbstentionReason(code="failure_reported", sentence=doubt or _what_is_open(failures, groups, lost))


def _what_is_open(failures: Sequence[Event], groups: list[_Group], lost: str) -> str:
    ranks = [rank for each in groups for rank in each.ranks]
    nodes = [node for each in groups for node in each.nodes]
    if ranks or nodes:
        if any(each.kind in DEATHS and each.rank is not None for each in failures):
            return _NO_ORDER.format(n=len(ranks))
        sentence = _KILLED if all(each.kind == "oom_kill" for each in failures) else _DEVICE
        return sentence.format(ranks=listed(ranks) if ranks else ", ".join(nodes[:MAX_NODES]))
    if any(each.kind == "did_not_join" for each in failures):
        return _MOST_MISSING
    waited = {each.rank for each in failures if each.kind == "nccl_timeout" and each.rank is not None}
    if waited:
        return _WAITED.format(ranks=listed(sorted(waited)))
    if failures and all(each.kind == "job_ended" for each in failures):
        return _CANCELLED
    if failures and all(is_terminated(each) for each in failures):
        return _TERMINATED
    return lost or _no_origin(failures)


def _no_origin(failures: Sequence[Event]) -> str:
    placed = any(each.node >= 0 or each.rank is not None for each in failures)
    return _NO_ORIGIN if placed else _NO_PLACE


def _nodes(window: Window, ranks: list[int]) -> list[str]:
    """Nodes of ranks: of the job, else those that the events of these ranks name."""
    found = window.job.topology.nodes_of(ranks)
    if found:
        return found
    table = window.events
    columns = [table.column(name).to_pylist() for name in ("rank", "node")]
    return sorted({node for rank, node in zip(*columns, strict=True) if rank in ranks and node is not None})


def _evidence(group: _Group, failures: Sequence[Event], places: Topology) -> list[Evidence]:
    """The failures that name the group, the first ones, and how many victims followed."""
    own = [each for each in failures if group.names(each, places)]
    found = [_of_event(each) for each in own[:3]]
    kinds = Counter(each.kind for each in failures) - Counter(each.kind for each in own)
    if kinds:
        counts = ", ".join(f"{number} {kind}" for kind, number in sorted(kinds.items()))
        note = f"failures of others, which may be victims of this one: {counts}"
        found.append(
            Evidence(signal="other_failures", value=float(kinds.total()), reference=None, unit="", note=note)
        )
    return found


def _of_event(event: Event) -> Evidence:
    at = datetime.fromtimestamp(event.time, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    code = _number(event.code)
    name = signal_of(event)
    text = f"{at}: {event.message}" if event.message else at
    note = f"{name.name}; {text}" if name is not None and name.name not in text else text
    signal_name = "exit_code" if event.kind == "process_exit" else event.kind
    reference = 0.0 if event.kind == "process_exit" else None
    return Evidence(signal=signal_name, value=code, reference=reference, unit="", note=note)


def signal_of(event: Event) -> signal.Signals | None:
    """The signal that ended a process, by its exit code: -9 of Python, 137 of a shell."""
    code = _number(event.code)
    if event.kind != "process_exit" or code is None:
        return None
    number = -int(code) if code < 0 else int(code) - 128
    return next((each for each in signal.Signals if each.value == number), None)


def _number(code: str | None) -> float | None:
    try:
        return None if code is None else float(int(code))
    except ValueError:
        return None


def _straggler(
    group: _Group, probability: float, window: Window, failures: Sequence[Event], places: Topology
) -> Straggler:
    own = [each.time for each in failures if group.names(each, places)]
    nodes = group.nodes or _nodes(window, group.ranks)
    scope: Scope = "rank" if len(group.ranks) == 1 else "node"
    return untimed_straggler(group.ranks, nodes, scope, probability, utc(min(own, default=None)))


def _next_check(groups: list[_Group], attempt: Attempt, window: Window) -> str:
    failures = attempt.failures
    before = sorted({each.rank for each in attempt.earlier if each.rank is not None})
    if not failures and before:
        return _EARLIER_CHECK.format(ranks=listed(before))
    waits = any(each.kind in {"nccl_timeout", "did_not_join"} for each in failures)
    if not groups and (waits or _lost_peers(attempt)):
        return _LOGS_CHECK
    if not failures:
        return _TIME_STEPS
    if not groups:
        return _no_origin(failures)
    group, places = groups[0], placed_by_events(window)
    ranks, nodes = group.ranks, group.nodes or _nodes(window, group.ranks)
    named = ", ".join(nodes[:MAX_NODES])
    place = f"{listed(ranks)} ({named})" if nodes and ranks else listed(ranks) if ranks else named
    own = [each for each in failures if group.names(each, places)]
    for each in own:
        ended = signal_of(each)
        if ended in _AFTER_SIGNAL:
            return _AFTER_SIGNAL[ended].format(place=place)
    return f"{place}: {SPECS['process_crash'].next_check}"


def _quality(window: Window, attempt: Attempt) -> Quality:
    early = sum(time < window.job.start for time in window.events.column("time").to_pylist())
    notes = [
        f"{number} {what} are left out"
        for number, what in (
            (early, "events before the job's start"),
            (len(attempt.earlier), "failures before the last restart"),
        )
        if number
    ]
    notes.append("the window has events only: the answer follows from failures that they report")
    return untimed_quality(window, notes, events_used=len(attempt.failures))
