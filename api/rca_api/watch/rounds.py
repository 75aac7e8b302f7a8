"""Rounds of `rca watch`: each job on a thread of its own, so that a slow source delays no other."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import orjson
import structlog

from rca.diagnosis.result import Diagnosis
from rca.errors import RcaError
from rca.files import read_file, replace_file
from rca.window.window import Window
from rca_api.watch.plan import WatchedJob, WatchPlan

_log = structlog.stdlib.get_logger("rca_api.watch")
#: Longest pause after failed rounds, as a multiple of the job's interval.
_MAX_PAUSES = 8
Read = Callable[[WatchedJob], Window]
Diagnose = Callable[[Window], Diagnosis]


@dataclass(frozen=True)
class RoundOutcome:
    """One round of one job: a diagnosis, or why there is none."""

    job: str
    diagnosis: Diagnosis | None
    error: RcaError | None


OnRound = Callable[[RoundOutcome], None]


class WatchState:
    """When each job was diagnosed last, Unix seconds; kept in a file, so that a restart resumes.

    Parameters
    ----------
    path : Path
        A missing or damaged file counts as empty.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._last: dict[str, float] = {}
        try:
            held = orjson.loads(read_file(path))
            self._last = {str(job): float(at) for job, at in held["diagnosed"].items()}
        except FileNotFoundError:
            pass
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            _log.warning("the state cannot be read, so all jobs are due", path=str(path), reason=str(error))

    def last(self, job: str) -> float | None:
        """When a job was diagnosed last; None if never."""
        with self._lock:
            return self._last.get(job)

    def diagnosed(self, job: str, at: float) -> None:
        """Remember a diagnosis."""
        with self._lock:
            self._last[job] = at
            content = orjson.dumps({"diagnosed": self._last}, option=orjson.OPT_INDENT_2)
            try:
                replace_file(self._path, content)
            except OSError as error:
                _log.warning("the state cannot be written", path=str(self._path), reason=str(error))


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
    """

    plan: WatchPlan
    read: Read
    diagnose: Diagnose
    report: OnRound
    state: WatchState
    clock: Callable[[], float] = time.time
    _reporting: threading.Lock = field(init=False, default_factory=threading.Lock)

    def once(self) -> list[RoundOutcome]:
        """Diagnose every job now, all at the same time."""
        outcomes: list[RoundOutcome] = []
        threads = [
            threading.Thread(target=lambda job=job: outcomes.append(self._round(job)), daemon=True)
            for job in self.plan.jobs
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
        stopping.wait()

    def _follow(self, job: WatchedJob, stopping: threading.Event) -> None:
        every = job.every or self.plan.every
        last = self.state.last(job.job)
        pause = 0.0 if last is None else min(every, max(0.0, last + every - self.clock()))
        failures = 0
        while not stopping.wait(pause):
            began = self.clock()
            failed = self._round(job).error is not None
            failures = failures + 1 if failed else 0
            longest = min(2 ** max(0, failures - 1), _MAX_PAUSES) * every
            pause = max(0.0, began + longest - self.clock())

    def _round(self, job: WatchedJob) -> RoundOutcome:
        at = self.clock()
        try:
            outcome = RoundOutcome(job.job, self.diagnose(self.read(job)), None)
            self.state.diagnosed(job.job, at)
        except RcaError as error:
            outcome = RoundOutcome(job.job, None, error)
        except Exception:
            _log.exception("a round failed unexpectedly", job=job.job)
            outcome = RoundOutcome(
                job.job, None, RcaError("the round failed unexpectedly; the log has the reason")
            )
        with self._reporting:
            self.report(outcome)
        return outcome
