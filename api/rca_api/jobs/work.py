"""Work on the telemetry of jobs in the processes of the pool; see `rca_api.compute.process`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pyarrow.compute as pc

from rca.collect.exits import lost_peer
from rca.errors import InvalidInput, TooLarge
from rca.features.end_events import read_events
from rca.features.step_time_change import StepTimeChange, change_in, job_step_seconds
from rca.robust import nan_median
from rca.telemetry.fragments import between_steps, complete_until, joined, within
from rca.telemetry.names import accepted_before
from rca.telemetry.window import Window
from rca.telemetry.window_memory import refuse_large
from rca_api.compute.process import Context
from rca_api.decoding import JSON, Sent
from rca_api.diagnoses.work import StoredWindow, decoded, store
from rca_api.store.canonical import CanonicalPieces

#: Steps before a change that its diagnosis compares with.
STEPS_BEFORE = 120
#: Tables that a diagnosis of a running job uses.
USED_TABLES = ("steps", "metrics", "events")
TABLES = ("steps", "metrics", "events", "ops", "collectives")
#: Copies of all rows while fragments are joined: read, joined, without repetitions, validated.
_COPIES = 4
#: Steps of a window without a change.
STEPS_OF_A_WINDOW = 200


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
    last_step : int or None
        Last step that a rank has begun.
    usual_seconds : float or None
        Median step time.
    window : StoredWindow or None
        The window to diagnose, if one was wanted.
    """

    change: StepTimeChange | None
    last_step: int | None
    usual_seconds: float | None
    window: StoredWindow | None


@dataclass(frozen=True)
class Wanted:
    """Which window of a look is to be diagnosed.

    Attributes
    ----------
    changed_step, next_step : int or None
        Of the change that is followed.
    first_step : int or None
        The first diagnosis is due from this step on; None if it was made.
    silent_until : float or None
        Unix seconds; given if the job has sent nothing for long.
    ended : bool
        The trainer has ended the job: it is diagnosed if its last events report a failure.
    """

    changed_step: int | None
    next_step: int | None
    first_step: int | None
    silent_until: float | None = None
    ended: bool = False


def accept_fragment(context: Context, sent: Sent, job_id: str) -> Fragment:
    """Decode, check and store telemetry of one job."""
    window = decoded(context, sent)
    if window.job.job_id != job_id:
        raise InvalidInput(
            f"the body is of job {window.job.job_id!r}, the address of {job_id!r}",
            hint="send it to the address of its own job",
        )
    return _fragment(context, window)


def cut(
    context: Context, digests: Sequence[str], begin: float, end: float, accept: str
) -> tuple[bytes, list[str]]:
    """The window of a time, encoded, and the tables that a diagnosis would use and that have no row."""
    window = _window(context, digests)
    if math.isfinite(begin) or math.isfinite(end):
        window = within(
            window, max(begin, window.job.start), min(end, math.nextafter(window.job.end, math.inf))
        )
    missing = [name for name in USED_TABLES if not getattr(window, name).num_rows]
    if accept == JSON:
        return window.to_json(), missing
    return b"".join(bytes(piece) for piece in CanonicalPieces(window)), missing


def look(context: Context, digests: Sequence[str], wanted: Wanted) -> Look:
    """Look for a change of the step time, and cut the window that is to be diagnosed.

    Steps that some ranks have not sent yet are left out. If all segments need too much memory, the newest
    ones are looked at.
    """
    window = _window(context, digests, newest=True)
    last = complete_until(window)
    if last is None:
        return Look(None, None, None, _over(context, window, wanted, last))
    steps, seconds = job_step_seconds(window)
    steps, seconds = steps[steps <= last], seconds[steps <= last]
    change = change_in(steps, seconds)
    usual = float(nan_median(seconds[None, :], axis=1)[0])
    due = _over(context, window, wanted, last)
    if due is None and is_due(change, last, wanted):
        due = store(context, between_steps(window, first_step(change, last), last))
    return Look(change, last, usual if math.isfinite(usual) else None, due)


def merge(context: Context, digests: Sequence[str]) -> Fragment:
    """Store the rows of several segments as one."""
    return _fragment(context, _window(context, digests))


def first_step(change: StepTimeChange | None, last_step: int) -> int:
    """First step of the window to diagnose, which may lie before the job's first one."""
    return last_step - STEPS_OF_A_WINDOW if change is None else change.step - STEPS_BEFORE


def is_due(change: StepTimeChange | None, last_step: int, wanted: Wanted) -> bool:
    """Whether a diagnosis is due: the first one, at a new change, or again while a change lasts."""
    if wanted.first_step is not None and last_step >= wanted.first_step:
        return True
    if change is None:
        return False
    if wanted.changed_step is None or wanted.next_step is None:
        return True
    return last_step >= wanted.next_step


def _over(context: Context, window: Window, wanted: Wanted, last: int | None) -> StoredWindow | None:
    """The last steps of a job that is silent, up to now, or that was ended with a failure.

    Parameters
    ----------
    last : int or None
        Last step that all ranks have sent.
    """
    end = window.job.end
    if wanted.silent_until is not None:
        end = max(end, wanted.silent_until)
    elif not (wanted.ended and _failed(window, last)):
        return None
    if window.steps.num_rows:
        newest = int(pc.max(window.steps.column("step")).as_py())
        window = between_steps(window, newest - STEPS_OF_A_WINDOW, newest)
    return store(context, replace(window, job=window.job.model_copy(update={"end": end})))


def _failed(window: Window, last: int | None) -> bool:
    """Whether an event since the step `last` reports a failure or a lost peer."""
    since = -math.inf
    if last is not None:
        begun = window.steps.filter(pc.equal(window.steps.column("step"), last)).column("start_time")
        since = float(pc.min(begun).as_py())
    return any(
        event.time >= since and (event.failure or lost_peer(event.message)) for event in read_events(window)
    )


def _window(context: Context, digests: Sequence[str], *, newest: bool = False) -> Window:
    """All rows of the segments, or as many of the newest segments as memory allows.

    Raises
    ------
    TooLarge
        Without `newest`, if they need too much memory.
    """
    with context.stage("decode"):
        fragments: list[Window] = []
        held = 0
        for digest in reversed(digests):
            fragment = context.windows.get(digest)
            held += sum(getattr(fragment, name).nbytes for name in TABLES)
            if context.max_memory_bytes is not None and _COPIES * held > context.max_memory_bytes:
                if newest and fragments:
                    break
                raise TooLarge(
                    f"the telemetry of this time has more than {held:,} bytes",
                    hint="name a shorter time with since and until",
                )
            fragments.append(fragment)
        with accepted_before():
            window = joined(fragments[::-1])
        refuse_large(window, context.max_memory_bytes)
    return window


def _fragment(context: Context, window: Window) -> Fragment:
    """Store a window whose bounds hold all of its rows."""
    begin, end = window.job.start, window.job.end
    for table, column in ((window.steps, "start_time"), (window.metrics, "time"), (window.events, "time")):
        if table.num_rows:
            bounds = pc.min_max(table.column(column)).as_py()
            begin, end = min(begin, bounds["min"]), max(end, bounds["max"])
    if (begin, end) != (window.job.start, window.job.end):
        window = replace(window, job=window.job.model_copy(update={"start": begin, "end": end}))
    first = last = None
    if window.steps.num_rows:
        numbers = pc.min_max(window.steps.column("step")).as_py()
        first, last = numbers["min"], numbers["max"]
    return Fragment(store(context, window), begin, end, first, last)
