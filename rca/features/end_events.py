"""Events at a job's end: which processes died, which ranks were missed, whether the job ended normally.

Events come from launchers, kernels, device exporters and logs. So codes and messages are matched by pattern.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from rca.arrays import BoolArray, FloatArray, IntArray
from rca.window.job import Topology
from rca.window.node_names import same_nodes
from rca.window.window import Window

#: Kinds of events in which a process ends or a device fails.
FATAL_EVENTS = frozenset(
    {
        "process_exit",
        "process_error",
        "oom_kill",
        "xid",
        "ecc",
        "device_error",
        "link_down",
        "node_down",
        "job_ended",
    }
)
#: Kinds of events in which a rank, or its collective, is missed. Other ranks name one that did not join.
MISSED_EVENTS = frozenset({"heartbeat_missed", "nccl_timeout", "did_not_join"})
#: Kinds of events in which a process ends. A device's error may be harmless.
DEATHS = frozenset({"process_exit", "process_error", "oom_kill"})
#: Messages at a normal end, of Lightning, Transformers, Megatron and Kubernetes operators.
FINISHED = re.compile(
    r"\btraining( is| has| was)?( been)? (finished|completed?|done)\b|\bfinished training\b"
    r"|\bmax_(steps|epochs|iters|iterations|time)\S* (was )?reached|\bexiting program at iteration\b"
    r"|(job|\brun)\b.*\b(successfully completed|completed successfully|succeeded)\b",
    re.IGNORECASE,
)
#: Log lines of normal progress. They are harmless unless `TROUBLE` matches as well.
PROGRESS = re.compile(
    r"\b(steps?|iter(ation)?s?|epochs?|loss|lr|grad(ient)? norm|tokens|samples|throughput|checkpoint|saved"
    r"|saving)\b",
    re.IGNORECASE,
)
TROUBLE = re.compile(
    r"error|exception|fail|abort|kill|nan|inf\b|warn|timeout|skip|retry|died|lost", re.IGNORECASE
)
#: Messages of failures, and messages that deny one. Narrower than `TROUBLE`, which only keeps a line from
#: being harmless; these lines count as evidence of trouble.
FAILURE = re.compile(
    r"traceback|exception|errors?\b|\bnan\b|out of memory|fallen off|timed? ?out"
    r"|exited with (code |status )?[1-9]|\bsig(term|kill|abrt|segv)\b"
    r"|\b(fail(ed|ures?)?|abort(ed|ing)?|killed|died|dead|crash(ed)?|hung|stuck|oom)\b",
    re.IGNORECASE,
)
NO_FAILURE = re.compile(
    r"\b(no|0|zero|without( any)?) (errors?|failures?|exceptions?)\b|\brecovered\b", re.IGNORECASE
)
#: Messages of memory errors that a device corrected or of rows that it replaced; messages of errors that were
#: not corrected; and counts of zero, which are ignored.
CORRECTED = re.compile(
    r"(?<![a-z])(sbe|ce|cecc|correct(ed|able))(?![a-z])|single[- ]bit|row.?remap", re.IGNORECASE
)
NOT_CORRECTED = re.compile(
    r"(?<![a-z])(dbe|mbe|uc?e)(?![a-z])|(double|multi|2)[- ]?bit|(?<![a-z])(un|non)-?corr"
    r"|\b(not|cannot|can't|unable to)( be)? correct|fail|out of spare|fatal",
    re.IGNORECASE,
)
ZERO_COUNT = re.compile(r"\b[\w-]+( errors?)?( count)?\s*[:= ]\s*(0|no|none)\b(?![.\w])", re.IGNORECASE)
#: NVIDIA XID codes of a remapped row, many corrected errors, a corrected link error and memory to repair.
CORRECTED_XIDS = frozenset({63, 92, 121, 160})
#: XID codes that come from a program's error or end, not from the device: engine exception, page fault, ended
#: by the user, cleaned up afterwards (NVIDIA, "XID Errors"). It may be another program on the same device.
APPLICATION_XIDS = frozenset({13, 31, 43, 45})
XID = re.compile(r"\bxid\b\s*(?:\([^)]*\))?\W*(\d+)", re.IGNORECASE)
BARE_XID = re.compile(r"\s*(?:xid)?\W*(\d+)(?:\.0)?\s*", re.IGNORECASE)
#: Ports without collectives: of management, containers and storage.
NON_COLLECTIVE_PORTS = re.compile(
    r"management|mgmt|\b(bmc|ipmi|idrac|ilo|oob|storage|nfs|lo)\b|docker|veth|virbr|\bcni|\bbr-",
    re.IGNORECASE,
)
#: A process that ends later than this after the last progress has another cause. In steps, but within these
#: bounds in seconds, because launchers poll and logs round times.
DEATH_STEPS, DEATH_SECONDS = 5.0, (5.0, 60.0)

_NO_RANK = np.empty(0, dtype=np.int64)


class Event(NamedTuple):
    """One row of the events table; `node` is the index in the topology, -1 if none or unknown."""

    time: float
    kind: str
    code: str | None
    rank: int | None
    node: int
    message: str | None = None

    @property
    def normal_exit(self) -> bool:
        """A process ended with code 0."""
        return self.kind == "process_exit" and self.code == "0"

    @property
    def corrected(self) -> bool:
        """A device reported an error that it had corrected."""
        if self.kind == "xid":
            return _xid(self.code, self.message) in CORRECTED_XIDS
        if self.kind != "ecc":
            return False
        code, message = (ZERO_COUNT.sub(" ", text or "") for text in (self.code, self.message))
        # The code decides if it matches either pattern, else the message.
        text = code if CORRECTED.search(code) or NOT_CORRECTED.search(code) else message
        return CORRECTED.search(text) is not None and NOT_CORRECTED.search(text) is None

    @property
    def failure(self) -> bool:
        """A process or a device failed, or a rank was missed."""
        known = self.kind in FATAL_EVENTS | MISSED_EVENTS
        return known and not self.normal_exit and not self.corrected

    @property
    def final(self) -> bool:
        """A process failed, was killed or gave up, or its device failed for good."""
        if self.kind in DEATHS or self.kind == "nccl_timeout":
            # The kernel's out-of-memory killer names a node, and kills any process of it.
            return self.rank is not None and not self.normal_exit
        code = _xid(self.code, self.message)
        lost = self.kind == "xid" and code is not None and code not in APPLICATION_XIDS
        return (lost or self.kind in {"ecc", "device_error", "node_down"}) and not self.corrected

    @property
    def harmless(self) -> bool:
        """A process ended normally, an error was corrected, or a log line shows progress without trouble."""
        text = self.message or ""
        progress = self.kind == "log" and self.code is None and PROGRESS.search(text) is not None
        return self.normal_exit or self.corrected or (progress and TROUBLE.search(text) is None)

    @property
    def trouble(self) -> bool:
        """A failure, a restart, or a message of a failure."""
        text = self.message or ""
        in_message = FAILURE.search(text) is not None and NO_FAILURE.search(text) is None
        fine = self.normal_exit or self.corrected
        return not fine and (self.failure or self.kind == "restart" or in_message)


def _xid(code: str | None, message: str | None) -> int | None:
    """NVIDIA's XID code, as exporters and kernel logs write it."""
    found = BARE_XID.fullmatch(code or "") or XID.search(code or "") or XID.search(message or "")
    return None if found is None else int(found[1])


class End(NamedTuple):
    """The end of a job's progress according to its step rows. Events are compared with it.

    Attributes
    ----------
    sign : float, Unix seconds
        Last sign of progress of the job.
    earliest : ndarray of shape (n_ranks,), Unix seconds
        A process that ended earlier was started again, or was not the rank's.
    step : float, seconds
        The usual step.
    waited : float, seconds
        So long before the sign a device may have broken, if the sign is the end of a wait.
    """

    topology: Topology
    sign: float
    earliest: FloatArray
    step: float
    waited: float = 0.0

    @property
    def latest_death(self) -> float:
        """The latest time at which a death can have ended the progress, Unix seconds."""
        return self.sign + self.tolerance

    @property
    def tolerance(self) -> float:
        """Seconds around the last sign of progress in which events belong to it."""
        return end_tolerance(self.step)


def end_tolerance(step: float) -> float:
    """Seconds around the last sign of progress in which events belong to it; `step` is the usual step."""
    return float(np.clip(DEATH_STEPS * step, *DEATH_SECONDS))


def xid_of(event: Event) -> int | None:
    """NVIDIA's XID code of an event; None without one."""
    return _xid(event.code, event.message)


def read_events(window: Window, topology: Topology | None = None) -> list[Event]:
    """The window's events in their order, with nodes as indices in the topology, by default the job's."""
    topology = window.job.topology if topology is None else topology
    named = sorted({name for name in window.events.column("node").to_pylist() if name is not None})
    nodes = dict(zip(named, same_nodes(named, topology.node_names).tolist(), strict=True))
    columns = [window.events.column(name).to_pylist() for name in Event._fields]
    rows = zip(*columns, strict=True)
    return [
        Event(time, kind, code, rank, nodes.get(node, -1), message)
        for time, kind, code, rank, node, message in rows
    ]


def failure_reported(events: list[Event], since: float) -> bool:
    """Whether an event since then names a rank that failed or was missed."""
    return any(event.rank is not None and event.time >= since and event.failure for event in events)


def no_trouble_reported(events: list[Event], since: float) -> bool:
    """Whether there are events, none is a failure, and all since then are harmless.

    A window without events gives False: there, silence in the events shows nothing.
    """
    harmless = all(event.harmless for event in events if event.time >= since)
    return bool(events) and harmless and not any(event.failure for event in events)


def count_trouble(events: list[Event], since: float) -> int:
    """Number of events since then that report trouble."""
    return sum(event.trouble for event in events if event.time >= since)


def ended_normally(events: list[Event], topology: Topology, sign: float, step: float) -> bool:
    """Whether all ranks (or their nodes) ended with code 0, or a message reports the end of training.

    Events long before the last sign of progress do not count, nor those before a restart.
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


def dead_ranks(events: list[Event], end: End) -> BoolArray:
    """Ranks whose process died at the end of progress, before any rank was missed; shape (n_ranks,)."""
    found = np.zeros(end.topology.n_ranks, dtype=bool)
    misses = [
        event.time for event in events if event.kind in MISSED_EVENTS and event.time >= end.sign - end.step
    ]
    for event in deaths(events, min([end.latest_death, *misses])):
        # The kernel's out-of-memory killer names the node only.
        named = ranks_named(event, end.topology)
        found[named] |= event.time >= end.earliest[named]
    return found


def ranks_with_link_down(events: Sequence[Event], topology: Topology) -> BoolArray:
    """Ranks of nodes on which a port was down at any time; shape (n_ranks,)."""
    found = np.zeros(topology.n_ranks, dtype=bool)
    for event in events:
        if event.kind == "link_down" and not NON_COLLECTIVE_PORTS.search(event.message or ""):
            found[ranks_named(event, topology)] = True
    return found


def deaths(events: Sequence[Event], last: float) -> list[Event]:
    """Events of processes that failed or were killed until `last` (Unix seconds)."""
    return [
        event for event in events if event.kind in DEATHS and not event.normal_exit and event.time <= last
    ]


def ranks_named(event: Event, topology: Topology) -> IntArray:
    """Ranks of an event: its rank, or all ranks of its node."""
    if event.rank is not None:
        return np.array([event.rank])
    return topology.ranks_of_node.get(event.node, _NO_RANK)


def ranks_that_failed(events: Sequence[Event], topology: Topology, since: float) -> BoolArray:
    """Ranks whose process or device failed for good since then, by the events; shape (n_ranks,)."""
    found = np.zeros(topology.n_ranks, dtype=bool)
    for event in events:
        if event.time >= since and event.final:
            found[ranks_named(event, topology)] = True
    return found


def ranks_in_events(events: list[Event], topology: Topology) -> tuple[BoolArray, BoolArray, float]:
    """Ranks that fatal and missed events name, and the time of the first fatal event.

    A corrected error counts as fatal for its rank, as a sign of bad memory, but not for the time.

    Returns
    -------
    fatal, missed : ndarray of shape (n_ranks,), bool
    first_fatal : float, Unix seconds
        NaN without one.
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
