"""Work on the telemetry of jobs in the processes of the pool; see `rca_api.shell.processes.process`."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow.compute as pc

from rca.arrays import FloatArray, IntArray
from rca.collect.exits import lost_peer
from rca.errors import InvalidInput
from rca.features.end_events import read_events
from rca.features.lateness_change import LatenessChange, UnitLateness
from rca.features.step_time_change import StepTimeChange, change_in, job_step_seconds
from rca.robust import nan_median
from rca.window.fragments import between_steps, complete_until, current, within
from rca.window.memory import WindowCounts, refuse_beyond, refuse_large
from rca.window.schema import PHASES
from rca.window.step_times import with_arrival
from rca.window.times.phases import PhaseArrays
from rca.window.window import Window
from rca_api.diagnoses.work import StoredWindow, decoded, store
from rca_api.jobs.segments import (
    COPIES,
    MAX_STEPS_BEHIND,
    MAX_STEPS_LOOKED_AT,
    MIN_STEPS_DIAGNOSED,
    NewestSteps,
    gathered,
    newest_gathered,
    newest_steps,
    oldest_gathered,
)
from rca_api.shell.processes.process import Context
from rca_api.shell.requests.decoding import JSON, Sent
from rca_api.shell.store.canonical import CanonicalPieces

#: Steps before a change that its diagnosis compares with.
STEPS_BEFORE = 120
#: Tables that a diagnosis of a running job uses.
USED_TABLES = ("steps", "metrics", "events")
#: Steps of a window without a change.
STEPS_OF_A_WINDOW = 200
#: Steps of each later window without a change. They do not overlap: what misleads in one is not in the next.
STEADY_STEPS = 64
#: Longer steps of the job, or ranks that became late.
Change = StepTimeChange | LatenessChange


@dataclass(frozen=True)
class Fragment:
    """Stored telemetry, with the bounds of its rows.

    Attributes
    ----------
    begin, end : float
        Unix seconds; `end` is later than every row.
    first_step, last_step : int or None
        None without steps.
    """

    window: StoredWindow
    begin: float
    end: float
    first_step: int | None
    last_step: int | None


@dataclass(frozen=True)
class Look:
    """What a look at the last steps of a job has found.

    Attributes
    ----------
    change : Change or None
        A lasting change of the step time, or else of one unit's lateness.
    last_step : int or None
        Last step that a rank has begun.
    usual_seconds : float or None
        Median step time.
    window : StoredWindow or None
        The window to diagnose, if one was wanted.
    remarks : tuple of str
        What of the telemetry does not count or was moved.
    """

    change: Change | None
    last_step: int | None
    usual_seconds: float | None
    window: StoredWindow | None
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True)
class WantedLook:
    """Which window of a look is to be diagnosed.

    Attributes
    ----------
    changed_step, next_step : int or None
        Of the change that is followed.
    first_step : int or None
        The first diagnosis is due from this step on; None if it was made.
    silent_until : float or None
        Unix seconds; given if the job has sent nothing for long.
    steady_since : int or None
        First step after a change or a silence that was diagnosed.
    ended : bool
        The trainer has ended the job: it is diagnosed if its last events report a failure.
    """

    changed_step: int | None
    next_step: int | None
    first_step: int | None
    silent_until: float | None = None
    ended: bool = False
    steady_since: int | None = None


@dataclass(frozen=True)
class WatchedSteps:
    """What a look compares: the job's step times, and the lateness of its ranks and nodes."""

    steps: IntArray
    seconds: FloatArray
    lateness: UnitLateness

    @classmethod
    def of(cls, window: Window, nodes: Mapping[int, str]) -> WatchedSteps:
        """The steps of a window.

        Parameters
        ----------
        nodes : mapping of int to str
            Node of each rank, where it is known.
        """
        phases = PhaseArrays.from_window(window, only=PHASES)
        steps, seconds = job_step_seconds(phases)
        return cls(steps, seconds, UnitLateness.of(phases, window.job.topology.stage, nodes))

    def change(self, last_step: int) -> Change | None:
        """The change that the steps up to one show."""
        looked = self._looked(last_step)
        found = change_in(self.steps[looked], self.seconds[looked])
        return found or self.lateness.change(last_step, self.usual(last_step), MAX_STEPS_LOOKED_AT)

    def usual(self, last_step: int) -> float:
        """Median step time, seconds; NaN where it is unknown."""
        return float(nan_median(self.seconds[None, self._looked(last_step)], axis=1)[0])

    def _looked(self, last_step: int) -> slice:
        end = int(np.searchsorted(self.steps, last_step, side="right"))
        return slice(max(0, end - MAX_STEPS_LOOKED_AT), end)


def accept_fragment(context: Context, sent: Sent, job_id: str) -> Fragment:
    """Decode, check and store telemetry of one job; durably once the caller flushes it.

    Steps that begin long after now get the time of their arrival, by which it shows later that their own
    times are impossible.
    """
    window = decoded(context, sent, scope="fragment")
    if window.job.job_id != job_id:
        raise InvalidInput(
            f"the body is of job {window.job.job_id!r}, the address of {job_id!r}",
            hint="send it to the address of its own job",
        )
    size = COPIES * sum(table.nbytes for table in window.tables.values())
    if context.max_memory_bytes is not None:
        refuse_beyond(context.max_memory_bytes, size, "rows that are joined with others")
    return _fragment(context, replace(window, steps=with_arrival(window.steps, time.time())), flush=False)


def cut(
    context: Context, digests: Sequence[str], begin: float, end: float, accept: str, as_sent: bool
) -> tuple[bytes, list[str]]:
    """The window of a time, encoded, and the tables that a diagnosis would use and that have no row.

    Parameters
    ----------
    as_sent : bool
        All rows with their own times, those of earlier attempts as well.
    """
    with context.stage("decode"):
        window = gathered(context, digests)
        if not as_sent:
            window = current(window)
    if math.isfinite(begin) or math.isfinite(end):
        window = within(
            window, max(begin, window.job.start), min(end, math.nextafter(window.job.end, math.inf))
        )
    missing = [name for name in USED_TABLES if not getattr(window, name).num_rows]
    if accept == JSON:
        return window.to_json(), missing
    return b"".join(bytes(piece) for piece in CanonicalPieces(window)), missing


def look(context: Context, digests: Sequence[str], wanted: WantedLook) -> Look:
    """Look for a change of the step time or of lateness, and cut the window that is to be diagnosed.

    Steps that some ranks have not sent yet are left out. The window has as many of the newest steps as a
    diagnosis has memory for.

    Raises
    ------
    TooLarge
        If it has no memory for a few steps.
    """
    with context.stage("decode"):
        newest = newest_steps(context, digests)
    last = None if newest is None else complete_until(newest.window, MAX_STEPS_BEHIND)
    if newest is None or last is None:
        return Look(None, None, None, _without_steps(context, digests, wanted))
    watched = WatchedSteps.of(newest.window, newest.nodes)
    change, usual = watched.change(last), watched.usual(last)
    window = _over(context, newest, last, wanted)
    if window is None and wanted.silent_until is None and is_due(change, last, wanted):
        window = store(context, _cut(context, newest, first_step(change, last, wanted), last))
    return Look(change, last, usual if math.isfinite(usual) else None, window, newest.remarks)


def merge(context: Context, digests: Sequence[str]) -> tuple[Fragment, list[str]]:
    """Store the rows of the oldest of these segments as one: as many as memory allows, and which."""
    window, merged = oldest_gathered(context, digests)
    return _fragment(context, window), merged


def first_step(change: Change | None, last_step: int, wanted: WantedLook) -> int:
    """First step of the window to diagnose, which may lie before the job's first one."""
    if change is not None:
        return change.step - STEPS_BEFORE
    if wanted.steady_since is not None:
        return max(wanted.steady_since, last_step - STEADY_STEPS + 1)
    return last_step - STEPS_OF_A_WINDOW


def is_due(change: Change | None, last_step: int, wanted: WantedLook) -> bool:
    """Whether a diagnosis is due: the first one, at a new change, again while it lasts, or after its end."""
    if wanted.first_step is not None and last_step >= wanted.first_step:
        return True
    if change is None:
        return wanted.steady_since is not None and last_step >= steady_step(wanted.steady_since, wanted)
    if wanted.changed_step is None or wanted.next_step is None or wanted.changed_step > last_step:
        # A change at a later step was one of an earlier attempt.
        return True
    return last_step >= wanted.next_step


def steady_step(since: int, wanted: WantedLook) -> int:
    """Step from which the steps after a change are diagnosed next."""
    following = wanted.next_step if wanted.changed_step is None else None
    return since + STEADY_STEPS if following is None else following


def _over(context: Context, newest: NewestSteps, last: int, wanted: WantedLook) -> StoredWindow | None:
    """The last steps of a job that is silent, up to now, or that was ended with a failure.

    Parameters
    ----------
    last : int
        Last step that all ranks have sent.
    """
    if wanted.silent_until is None and not wanted.ended:
        return None
    highest = int(newest.numbers[-1])
    window = _cut(context, newest, highest - STEPS_OF_A_WINDOW, highest, wanted.silent_until)
    begun = newest.window.steps.filter(pc.equal(newest.window.steps.column("step"), last))
    since = float(pc.min(begun.column("start_time")).as_py())
    return store(context, window) if wanted.silent_until is not None or _failed(window, since) else None


def _failed(window: Window, since: float) -> bool:
    """Whether an event since a time, Unix seconds, reports a failure or a lost peer."""
    return any(
        event.time >= since and (event.failure or lost_peer(event.message)) for event in read_events(window)
    )


def _cut(context: Context, newest: NewestSteps, first: int, last: int, until: float | None = None) -> Window:
    """The window of the newest steps from `first` to `last` that a diagnosis has memory for."""
    numbers = newest.numbers[newest.numbers <= last]
    following = newest.numbers[newest.numbers > last]
    n_steps = newest.n_fitting
    while True:
        first = max(first, int(numbers[max(0, numbers.size - n_steps)]))
        read_to = int(following[0]) if following.size else last
        window = between_steps(current(gathered(context, newest.digests, first, read_to)), first, last)
        needed = WindowCounts.of(window)
        if context.max_memory_bytes is None or needed.memory() <= context.max_memory_bytes:
            break
        # Metrics and events take memory as well.
        n_steps = numbers[numbers >= first].size // 2
        if n_steps < MIN_STEPS_DIAGNOSED:
            refuse_beyond(context.max_memory_bytes, needed.memory(), str(needed))
    # What is left out may be of other steps: the same remarks as on the job.
    changes = {"end": max(window.job.end, until or 0.0), "remarks": newest.remarks or None}
    return replace(window, job=window.job.model_copy(update=changes))


def _without_steps(context: Context, digests: Sequence[str], wanted: WantedLook) -> StoredWindow | None:
    """The window of a job without steps that is silent, up to now, or that was ended with a failure."""
    if wanted.silent_until is None and not wanted.ended:
        return None
    window = current(newest_gathered(context, digests))
    if wanted.silent_until is None and not _failed(window, -math.inf):
        return None
    refuse_large(window, context.max_memory_bytes)
    end = max(window.job.end, wanted.silent_until or window.job.end)
    return store(context, replace(window, job=window.job.model_copy(update={"end": end})))


def _fragment(context: Context, window: Window, *, flush: bool = True) -> Fragment:
    """Store rows, with the bounds of all of them."""
    begin, end = window.job.start, window.job.end
    for table, column in ((window.steps, "start_time"), (window.metrics, "time"), (window.events, "time")):
        if table.num_rows:
            bounds = pc.min_max(table.column(column)).as_py()
            begin, end = min(begin, bounds["min"]), max(end, bounds["max"])
    first = last = None
    if window.steps.num_rows:
        numbers = pc.min_max(window.steps.column("step")).as_py()
        first, last = numbers["min"], numbers["max"]
    return Fragment(store(context, window, flush=flush), begin, end, first, last)
