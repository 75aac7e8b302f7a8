"""What events say of a job's end: who died, who was missed, and whether everybody left as he should."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from rca.arrays import BoolArray, FloatArray, IntArray
from rca.telemetry.job import Topology
from rca.telemetry.node_names import same_nodes
from rca.telemetry.window import Window

#: Events that say a process ended or a device gave up.
FATAL_EVENTS = frozenset({"process_exit", "oom_kill", "xid", "ecc", "link_down"})
#: Events that say somebody noticed a rank (or its collective) missing.
MISSED_EVENTS = frozenset({"heartbeat_missed", "nccl_timeout"})
#: Events that end a process; a device's error may be harmless.
DEATHS = frozenset({"process_exit", "oom_kill"})
#: What trainers and operators say when all is done: Lightning, Transformers, Megatron, Kubernetes.
FINISHED = re.compile(
    r"\btraining( is| has| was)?( been)? (finished|completed?|done)\b|\bfinished training\b"
    r"|\bmax_(steps|epochs|iters|iterations|time)\S* (was )?reached|\bexiting program at iteration\b"
    r"|(job|\brun)\b.*\b(successfully completed|completed successfully|succeeded)\b",
    re.IGNORECASE,
)
#: Lines that trainers write while all is well: numbers of their progress, and nothing of the second.
PROGRESS = re.compile(
    r"\b(steps?|iter(ation)?s?|epochs?|loss|lr|grad(ient)? norm|tokens|samples|throughput|checkpoint|saved"
    r"|saving)\b",
    re.IGNORECASE,
)
TROUBLE = re.compile(
    r"error|exception|fail|abort|kill|nan|inf\b|warn|timeout|skip|retry|died|lost", re.IGNORECASE
)
#: Words of whoever complains, and those that take the complaint back. Narrower than `TROUBLE`, which only
#: keeps a line from being harmless: what is told here is believed.
COMPLAINTS = re.compile(
    r"traceback|exception|errors?\b|\bnan\b|out of memory|fallen off|timed? ?out"
    r"|exited with (code |status )?[1-9]|\bsig(term|kill|abrt|segv)\b"
    r"|\b(fail(ed|ures?)?|abort(ed|ing)?|killed|died|dead|crash(ed)?|hung|stuck|oom)\b",
    re.IGNORECASE,
)
TAKEN_BACK = re.compile(
    r"\b(no|0|zero|without( any)?) (errors?|failures?|exceptions?)\b|\brecovered\b", re.IGNORECASE
)
#: Errors of memory that a device corrected, or rows that it replaced, in words; words that say otherwise; and
#: counts of none, which say nothing.
CORRECTED = re.compile(
    r"(?<![a-z])(sbe|ce|cecc|correct(ed|able))(?![a-z])|single[- ]bit|row.?remap", re.IGNORECASE
)
NOT_CORRECTED = re.compile(
    r"(?<![a-z])(dbe|mbe|uc?e)(?![a-z])|(double|multi|2)[- ]?bit|(?<![a-z])(un|non)-?corr"
    r"|\b(not|cannot|can't|unable to)( be)? correct|fail|out of spare|fatal",
    re.IGNORECASE,
)
NONE_OF_IT = re.compile(r"\b[\w-]+( errors?)?( count)?\s*[:= ]\s*(0|no|none)\b(?![.\w])", re.IGNORECASE)
#: NVIDIA's numbers for rows remapped, many corrected errors, a link's and memory marked for repair.
CORRECTED_XIDS = frozenset({63, 92, 121, 160})
XID = re.compile(r"\bxid\b\s*(?:\([^)]*\))?\W*(\d+)", re.IGNORECASE)
BARE_XID = re.compile(r"\s*(?:xid)?\W*(\d+)(?:\.0)?\s*", re.IGNORECASE)
#: Ports that no collective goes through: those of the management, of containers and of storage.
NOT_THE_JOBS = re.compile(
    r"management|mgmt|\b(bmc|ipmi|idrac|ilo|oob|storage|nfs|lo)\b|docker|veth|virbr|\bcni|\bbr-",
    re.IGNORECASE,
)
#: A process that ends further than this after the last sign of progress was stopped: steps, but seconds
#: within these bounds, because launchers poll and logs round.
DEATH_STEPS, DEATH_SECONDS = 5.0, (5.0, 60.0)


class Event(NamedTuple):
    """One row of the events table; `node` is its number in the topology, -1 if none or unknown."""

    time: float
    kind: str
    code: str | None
    rank: int | None
    node: int
    message: str | None = None

    @property
    def normal_exit(self) -> bool:
        """A process ended as it should."""
        return self.kind == "process_exit" and self.code == "0"

    @property
    def corrected(self) -> bool:
        """A device told of an error that it had dealt with: nothing ended."""
        if self.kind == "xid":
            return _xid(self.code, self.message) in CORRECTED_XIDS
        if self.kind != "ecc":
            return False
        code, words = (NONE_OF_IT.sub(" ", told or "") for told in (self.code, self.message))
        # A code that says either is believed before the words.
        told = code if CORRECTED.search(code) or NOT_CORRECTED.search(code) else words
        return CORRECTED.search(told) is not None and NOT_CORRECTED.search(told) is None

    @property
    def bad_end(self) -> bool:
        """A process or a device ended badly, or a rank was missed."""
        known = self.kind in FATAL_EVENTS | MISSED_EVENTS
        return known and not self.normal_exit and not self.corrected

    @property
    def harmless(self) -> bool:
        """A process ended as it should, or a line of progress says nothing of trouble."""
        told = self.message or ""
        progress = self.kind == "log" and self.code is None and PROGRESS.search(told) is not None
        return self.normal_exit or self.corrected or (progress and TROUBLE.search(told) is None)

    @property
    def complaint(self) -> bool:
        """Something ended badly or was missed, somebody started anew, or says that something went wrong."""
        told = self.message or ""
        in_words = COMPLAINTS.search(told) is not None and TAKEN_BACK.search(told) is None
        sound = self.normal_exit or self.corrected
        return not sound and (self.bad_end or self.kind == "restart" or in_words)


def _xid(code: str | None, message: str | None) -> int | None:
    """NVIDIA's number of an error, as exporters and kernel logs write it."""
    found = BARE_XID.fullmatch(code or "") or XID.search(code or "") or XID.search(message or "")
    return None if found is None else int(found[1])


class End(NamedTuple):
    """The end of a job's progress, as its rows tell it: what events are read against.

    Attributes
    ----------
    topology : Topology
    sign : float, Unix seconds
        Last sign of progress of the job.
    earliest : ndarray of shape (n_ranks,), Unix seconds
        A process that ended before was started again, or was not the rank's.
    step : float, seconds
    """

    topology: Topology
    sign: float
    earliest: FloatArray
    step: float

    @property
    def latest_death(self) -> float:
        """The latest moment at which a death may be what ended progress, Unix seconds."""
        return self.sign + around(self.step)


def around(step: float) -> float:
    """Seconds around the last sign of progress in which events belong to it, of a job with such steps."""
    return float(np.clip(DEATH_STEPS * step, *DEATH_SECONDS))


def events_told(window: Window) -> list[Event]:
    """The window's events in their order, with nodes by their number in the job's topology."""
    named = sorted({name for name in window.events.column("node").to_pylist() if name is not None})
    nodes = dict(zip(named, same_nodes(named, window.job.topology.node_names).tolist(), strict=True))
    columns = [window.events.column(name).to_pylist() for name in Event._fields]
    rows = zip(*columns, strict=True)
    return [
        Event(time, kind, code, rank, nodes.get(node, -1), message)
        for time, kind, code, rank, node, message in rows
    ]


def was_noticed(events: list[Event], since: float) -> bool:
    """Whether any event since then names a rank that ended badly or was missed."""
    return any(event.rank is not None and event.time >= since and event.bad_end for event in events)


def nobody_complained(events: list[Event], since: float) -> bool:
    """Whether events are collected, none of the window is of trouble, and since then all is well in words.

    Who collects no events cannot say that nobody complained. What is not known to be harmless is none.
    """
    quiet = all(event.harmless for event in events if event.time >= since)
    return bool(events) and quiet and not any(event.bad_end for event in events)


def complaints(events: list[Event], since: float) -> int:
    """How many events since then tell of trouble."""
    return sum(event.complaint for event in events if event.time >= since)


def ended_normally(events: list[Event], topology: Topology, sign: float, step: float) -> bool:
    """Whether all ranks (or their nodes) left with code 0 at last, or anybody said that the training is done.

    By whatever clock. What was long before the last sign of progress was not the job's end, nor what it was
    restarted after.
    """
    earliest = sign - step - min(DEATH_SECONDS[0], DEATH_STEPS * step)
    ended = np.zeros(topology.n_ranks, dtype=bool)
    for event in sorted(events, key=lambda each: each.time):
        if event.time >= earliest and event.kind not in FATAL_EVENTS and FINISHED.search(event.message or ""):
            ended[:] = True
        elif event.normal_exit and event.time >= earliest:
            ended[ranks_named(event, topology)] = True
        elif event.kind == "restart":
            again = ranks_named(event, topology)
            ended[again if again.size else slice(None)] = False
    return bool(ended.all())


def who_died(events: list[Event], end: End) -> BoolArray:
    """Who failed or was killed when progress ended, and before anybody was missed; shape (n_ranks,)."""
    found = np.zeros(end.topology.n_ranks, dtype=bool)
    misses = [
        event.time for event in events if event.kind in MISSED_EVENTS and event.time >= end.sign - end.step
    ]
    for event in deaths(events, min([end.latest_death, *misses])):
        # The kernel's out-of-memory killer knows the node only.
        named = ranks_named(event, end.topology)
        found[named] |= event.time >= end.earliest[named]
    return found


def whose_link_went_down(events: Sequence[Event], topology: Topology) -> BoolArray:
    """Ranks of whose nodes an event says that a port was down, if only for a moment; shape (n_ranks,)."""
    found = np.zeros(topology.n_ranks, dtype=bool)
    for event in events:
        if event.kind == "link_down" and not NOT_THE_JOBS.search(event.message or ""):
            found[ranks_named(event, topology)] = True
    return found


def deaths(events: Sequence[Event], last: float) -> list[Event]:
    """Processes that failed or were killed, until `last` (Unix seconds)."""
    return [
        event for event in events if event.kind in DEATHS and not event.normal_exit and event.time <= last
    ]


def ranks_named(event: Event, topology: Topology) -> IntArray:
    """Ranks that an event is about: its rank, or all of its node."""
    if event.rank is not None:
        return np.array([event.rank])
    return np.flatnonzero((topology.node == event.node) & (event.node >= 0))


def named_by_events(events: list[Event], topology: Topology) -> tuple[BoolArray, BoolArray, float]:
    """Who was named by fatal and by missed events, and the time of the first fatal one (NaN: none).

    An error that was corrected is a sign of the device's memory, but ends nothing.
    """
    fatal = np.zeros(topology.n_ranks, dtype=bool)
    missed = np.zeros(topology.n_ranks, dtype=bool)
    first_fatal = np.nan
    for event in events:
        target = fatal if event.kind in FATAL_EVENTS else missed if event.kind in MISSED_EVENTS else None
        if target is None or event.normal_exit:
            continue
        if target is fatal and not event.corrected:
            first_fatal = float(np.fmin(first_fatal, event.time))
        target[ranks_named(event, topology)] = True
    return fatal, missed, first_fatal
