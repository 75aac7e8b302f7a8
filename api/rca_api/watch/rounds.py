"""Rounds of `rca watch`: each job on a thread of its own, so that a slow source delays no other."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import orjson
import pyarrow.compute as pc
import structlog

from rca.diagnosis.result import Diagnosis
from rca.errors import InvalidInput, RcaError
from rca.files import read_file, replace_file
from rca.window.fragments import within
from rca.window.window import Window
from rca_api.watch.plan import JobSelection, WatchedJob, WatchPlan

_log = structlog.stdlib.get_logger("rca_api.watch")
#: Longest pause after failed rounds, as a multiple of the job's interval.
_MAX_PAUSES = 8
#: Looks in a row in which a selection lacks a job that has ended.
MIN_MISSING = 3
#: A fault is over if it ended so long before the end of a window.
_MIN_AFTER = timedelta(seconds=30)
Read = Callable[[WatchedJob], Window]
Diagnose = Callable[[Window], Diagnosis]


@dataclass(frozen=True)
class RoundOutcome:
    """One round of one job: a diagnosis, or why there is none.

    Attributes
    ----------
    note : str
        Why nothing was diagnosed, though nothing failed; "" in other cases.
    """

    job: str
    diagnosis: Diagnosis | None
    error: RcaError | None
    note: str = ""


OnRound = Callable[[RoundOutcome], None]


class WatchState:
    """When each job was diagnosed last, and its last fault over; kept in a file, so that a restart resumes.

    Parameters
    ----------
    path : Path
        A missing or damaged file counts as empty.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._last: dict[str, float] = {}
        self._over: dict[str, float] = {}
        self._newest: dict[str, float] = {}
        try:
            held = orjson.loads(read_file(path))
            self._last = {str(job): float(at) for job, at in held["diagnosed"].items()}
            self._over = {str(job): float(at) for job, at in held.get("over", {}).items()}
            self._newest = {str(job): float(at) for job, at in held.get("newest", {}).items()}
        except FileNotFoundError:
            pass
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            _log.warning("the state cannot be read, so all jobs are due", path=str(path), reason=str(error))

    def last(self, job: str) -> float | None:
        """When a job was diagnosed last; None if never."""
        with self._lock:
            return self._last.get(job)

    def over(self, job: str) -> float | None:
        """When the last fault of a job was over, Unix seconds; None if there was none."""
        with self._lock:
            return self._over.get(job)

    def newest(self, job: str) -> float | None:
        """When the newest telemetry of the last diagnosis is of, Unix seconds; None before the first one."""
        with self._lock:
            return self._newest.get(job)

    def diagnosed(self, job: str, at: float, newest: float, over: float | None = None) -> None:
        """Remember a diagnosis, its newest telemetry, and when the fault that it found was over."""
        with self._lock:
            self._last[job], self._newest[job] = at, newest
            if over is not None:
                self._over[job] = over
            held = {"diagnosed": self._last, "newest": self._newest, "over": self._over}
            content = orjson.dumps(held, option=orjson.OPT_INDENT_2)
            try:
                replace_file(self._path, content)
            except OSError as error:
                _log.warning("the state cannot be written", path=str(self._path), reason=str(error))


def _after(window: Window, over: float | None) -> Window:
    """The part of the window after the last fault, which would be found again, and hide the next one."""
    if over is None or not window.job.start < over < window.job.end:
        return window
    return within(window, over, math.nextafter(window.job.end, math.inf))


def _newest(window: Window) -> float:
    """Begin of the newest step, or time of the newest sample or event, Unix seconds."""
    times = ((window.steps, "start_time"), (window.metrics, "time"), (window.events, "time"))
    found = [pc.max(table.column(name)).as_py() for table, name in times if table.num_rows]
    return max((float(each) for each in found), default=window.job.start)


def _over(diagnosis: Diagnosis) -> float | None:
    """When the fault of timed steps was over, if it surely was before the end of the window, Unix seconds."""
    end = None if diagnosis.window is None else diagnosis.window.end
    if diagnosis.until is None or end is None or not diagnosis.quality.steps_used:
        return None
    return diagnosis.until.timestamp() if end - diagnosis.until >= _MIN_AFTER else None


def _is_another(job: WatchedJob, other: WatchedJob | None) -> bool:
    """Whether a job has the id of one that other series are of."""
    return other is not None and (job.prometheus, job.match) != (other.prometheus, other.match)


def _twice(job: WatchedJob) -> RoundOutcome:
    error = InvalidInput(
        f"another job that is watched is called {job.id}: this one of {job.prometheus} is not watched",
        hint="watch them by two plans, with a service each",
    )
    return RoundOutcome(job.id, None, error)


@dataclass
class _Followed:
    """A job of a selection, and in how many of the last looks it was missing."""

    job: WatchedJob
    stopping: threading.Event = field(default_factory=threading.Event)
    missing: int = 0


def _end_nothing(job: str, reason: str) -> None:
    del job, reason


@dataclass(eq=False)
class Rounds:
    """Diagnoses every job of a plan on time.

    Attributes
    ----------
    read : callable
        Gives the present window of a job.
    report : callable
        Called with each outcome, one at a time.
    clock : callable
        Unix seconds.
    end : callable
        Called with the id of a job that left its selection, and a reason for people.
    """

    plan: WatchPlan
    read: Read
    diagnose: Diagnose
    report: OnRound
    state: WatchState
    clock: Callable[[], float] = time.time
    end: Callable[[str, str], None] = _end_nothing
    _reporting: threading.Lock = field(init=False, default_factory=threading.Lock)
    #: By id: those of selections while they are there.
    _watched: dict[str, WatchedJob] = field(init=False, default_factory=dict)

    def once(self) -> list[RoundOutcome]:
        """Diagnose every job now, all at the same time."""
        outcomes: list[RoundOutcome] = []
        jobs = {job.id: job for job in self.plan.jobs}
        for selection in self.plan.select:
            try:
                present = self._unlisted(selection)
                if not present:
                    raise InvalidInput(f"no job of {selection.prometheus} is selected", hint="see `rca jobs`")
            except RcaError as error:
                outcomes.append(self._reported(RoundOutcome(selection.jobs, None, error)))
                continue
            outcomes += [self._reported(_twice(job)) for job in present if _is_another(job, jobs.get(job.id))]
            jobs = {job.id: job for job in present} | jobs
        threads = [
            threading.Thread(target=lambda job=job: outcomes.append(self._round(job)), daemon=True)
            for job in jobs.values()
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return outcomes

    def run(self, stopping: threading.Event) -> None:
        """Diagnose until `stopping` is set; rounds in progress are not waited for."""
        for job in self.plan.jobs:
            threading.Thread(target=self._follow, args=(job, stopping), daemon=True).start()
        for selection in self.plan.select:
            threading.Thread(target=self._select, args=(selection, stopping), daemon=True).start()
        stopping.wait()

    def _unlisted(self, selection: JobSelection) -> list[WatchedJob]:
        """The jobs of a selection without those that the plan lists."""
        listed = {(job.job, job.namespace) for job in self.plan.jobs}
        return [
            job
            for job in selection.present()
            if listed.isdisjoint({(job.job, None), (job.job, job.namespace)})
        ]

    def _select(self, selection: JobSelection, stopping: threading.Event) -> None:
        """Follow the jobs of a selection, each until it is missing in several looks in a row."""
        followed: dict[str, _Followed] = {}
        while True:
            try:
                present = {job.id: job for job in self._unlisted(selection)}
            except RcaError as error:
                self._reported(RoundOutcome(selection.jobs, None, error))
            else:
                self._leave(followed, present)
                self._join(followed, present)
            if stopping.wait(selection.every or self.plan.every):
                for one in followed.values():
                    one.stopping.set()
                return

    def _join(self, followed: dict[str, _Followed], present: dict[str, WatchedJob]) -> None:
        """Follow the jobs of a selection that are new."""
        for name in present.keys() - followed.keys():
            other = self._watched.setdefault(name, present[name])
            if other is present[name]:
                one = followed[name] = _Followed(other)
                threading.Thread(target=self._follow, args=(other, one.stopping), daemon=True).start()
            elif _is_another(present[name], other):
                self._reported(_twice(present[name]))

    def _leave(self, followed: dict[str, _Followed], present: dict[str, WatchedJob]) -> None:
        """End the jobs that a selection has lacked for long enough."""
        for name, one in list(followed.items()):
            one.missing = 0 if name in present else one.missing + 1
            if one.missing >= MIN_MISSING and self._ended(one):
                del followed[name], self._watched[name]

    def _ended(self, one: _Followed) -> bool:
        """End a job that left its selection; gives whether the service knows of it."""
        reason = f"no longer listed by {one.job.prometheus}"
        try:
            self.end(one.job.id, reason)
        except RcaError as error:
            # It is looked at on, and ended with the next list.
            self._reported(RoundOutcome(one.job.id, None, error))
            return False
        one.stopping.set()
        self._reported(RoundOutcome(one.job.id, None, None, f"{reason}; it is not watched any more"))
        return True

    def _follow(self, job: WatchedJob, stopping: threading.Event) -> None:
        every = job.every or self.plan.every
        last = self.state.last(job.id)
        pause = 0.0 if last is None else min(every, max(0.0, last + every - self.clock()))
        failures = 0
        while not stopping.wait(pause):
            began = self.clock()
            failed = self._round(job, self.state.newest(job.id)).error is not None
            failures = failures + 1 if failed else 0
            longest = min(2 ** max(0, failures - 1), _MAX_PAUSES) * every
            pause = max(0.0, began + longest - self.clock())

    def _round(self, job: WatchedJob, known: float | None = None) -> RoundOutcome:
        """Diagnose the present window; if its fault is over, also the part after it.

        Nothing is diagnosed without telemetry that is newer than `known`: a job that has ended would be
        found faulty again and again.
        """
        at = self.clock()
        try:
            whole = self.read(job)
            # A sample may be of a clock that is ahead.
            newest = min(_newest(whole), at)
            if known is not None and newest <= known:
                since = datetime.fromtimestamp(newest, UTC)
                return self._reported(
                    RoundOutcome(job.id, None, None, f"no new telemetry since {since:%Y-%m-%d %H:%M:%S} UTC")
                )
            window = _after(whole, self.state.over(job.id))
            outcome = RoundOutcome(job.id, self.diagnose(window), None)
            over = None if outcome.diagnosis is None else _over(outcome.diagnosis)
            self.state.diagnosed(job.id, at, newest, over)
            if over is not None:
                self._reported(outcome)
                self._reported(RoundOutcome(job.id, self.diagnose(_after(window, over)), None))
                return outcome
        except RcaError as error:
            outcome = RoundOutcome(job.id, None, error)
        except Exception:
            _log.exception("a round failed unexpectedly", job=job.id)
            outcome = RoundOutcome(
                job.id, None, RcaError("the round failed unexpectedly; the log has the reason")
            )
        return self._reported(outcome)

    def _reported(self, outcome: RoundOutcome) -> RoundOutcome:
        with self._reporting:
            self.report(outcome)
        return outcome
