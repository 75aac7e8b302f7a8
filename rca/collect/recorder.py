"""One rank's collection: its timers, a thread that samples counters, and the files that both end up in."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from rca.collect.counters import SERIES, CollectorPauses, Counters
from rca.collect.exits import error_text, lost_peer
from rca.collect.identity import Identity
from rca.collect.segments import OPEN_STEP, SAMPLES, STEPS, Array, SegmentWriter, event_block, table_block
from rca.collect.timers import COLUMNS, StepTimer

LOG: Final = logging.getLogger("rca.collect")
#: Seconds between two samples, and between two writes.
SAMPLE_SECONDS: Final = 1.0
WRITE_SECONDS: Final = 2.0
#: The first write waits so long for a step: by then the process group exists, and with it the rank.
IDENTITY_SECONDS: Final = 30.0
#: Samples that are held until the first write, and at a disk that does not answer.
HELD_SAMPLES: Final = 120
HELD_EVENTS: Final = 100
#: A loss of a peer that follows another one sooner is not recorded: it is the same one, or of a retry.
ERROR_SECONDS: Final = 1.0
#: Training waits at most so long for the thread, at its end and after an error.
END_SECONDS: Final = 2.0


@dataclass(frozen=True)
class RecorderSettings:
    """What `rca.collect.start` was given.

    Attributes
    ----------
    identify : callable
        Called at the first write.
    header : mapping
        More keys of the header, such as `parallelism`.
    max_bytes : int
        Limit on the files of this rank.
    """

    folder: Path
    identify: Callable[[], Identity]
    header: Mapping[str, Any] = field(default_factory=dict)
    max_bytes: int = 16 * 1024**2


class Faults:
    """Counts errors of the collector, and logs the first."""

    def __init__(self) -> None:
        self.count = 0
        self._warned: set[str] = set()

    def add(self, doing: str, error: BaseException) -> None:
        """Count an error; only the first is logged, so that a log does not fill up."""
        self.count += 1
        if self.count == 1:
            LOG.warning("%s failed, training goes on; more errors are counted only: %r", doing, error)

    def lost_step(self, timer: StepTimer, error: BaseException) -> None:
        """Count an error of a timer, and give up its step."""
        self.add("timing a step", error)
        timer.give_up()

    def warn(self, key: str, text: str) -> None:
        """Log a text once."""
        if key not in self._warned:
            self._warned.add(key)
            LOG.warning("%s", text)


class Recorder:
    """Collects in this process, from `start` to `end`.

    Parameters
    ----------
    wall : callable
        Unix seconds.
    """

    def __init__(
        self,
        settings: RecorderSettings,
        timer: StepTimer,
        faults: Faults,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.settings, self.timer, self.faults = settings, timer, faults
        self.started = wall()
        self._wall = wall
        self._pauses = CollectorPauses(timer)
        self._counters = Counters(timer, self._pauses)
        self._samples: Array = np.full((HELD_SAMPLES, 1 + len(SERIES)), np.nan)
        self._held = 0
        self._events: list[dict[str, Any]] = []
        self._writer: SegmentWriter | None = None
        self._reported_open = False
        self._failed_at = -np.inf
        self._asked, self._written, self._ended = threading.Event(), threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="rca-collect", daemon=True)

    def start(self) -> None:
        """Begin to sample and to write."""
        self.timer.report = self.fail
        self._pauses.start()
        self._thread.start()

    def event(self, kind: str, code: str | None, message: str | None) -> None:
        """Record an event of this rank now."""
        if len(self._events) < HELD_EVENTS:
            self._events.append({"time": self._wall(), "kind": kind, "code": code, "message": message})

    def fail(self, error: BaseException) -> None:
        """Record the loss of a peer, which passes through training code, and write: the process may end now.

        Training code may handle other errors, so they count at its end only.
        """
        now, text = self._wall(), error_text(error)
        if lost_peer(text) and now - self._failed_at >= ERROR_SECONDS:
            self._failed_at = now
            self.event("log", type(error).__name__, text)
            if self._thread.is_alive():
                self._written.clear()
                self._asked.set()
                self._written.wait(END_SECONDS)

    def end(self) -> None:
        """Write what is left, and close the files; waits for `END_SECONDS` at most."""
        self._pauses.stop()
        self._ended.set()
        self._asked.set()
        if self._thread.is_alive():
            self._thread.join(END_SECONDS)
        if self.faults.count:
            LOG.warning("the collector had %d errors in all", self.faults.count)

    def forget(self) -> None:
        """In a forked child: the thread is not there, and the files are the parent's."""
        self._pauses.stop()

    def sample(self) -> None:
        """Read the counters once. If nothing can be written, the oldest samples go."""
        row = np.concatenate([[self._wall()], self._counters.read()])
        if self._held == HELD_SAMPLES:
            self._samples[:-1] = self._samples[1:]
            self._held -= 1
        self._samples[self._held] = row
        self._held += 1

    def write(self, *, failed: bool = False, last: bool = False) -> None:
        """Append what is new to the files.

        Parameters
        ----------
        failed : bool
            Write a step in progress even if it is young.
        last : bool
            The same, and close the files.
        """
        now = self._wall()
        writer = self._opened(now, at_once=failed or last)
        if writer is None:
            return
        events, self._events = self._events, []
        blocks = [table_block(STEPS, self.timer.take())]
        blocks.append(table_block(OPEN_STEP, self._open_step(now, young=failed or last)))
        samples, self._held = self._samples[: self._held].copy(), 0
        blocks.append(table_block(SAMPLES, samples))
        blocks += [event_block(event) for event in events]
        if last:
            blocks.append(event_block(self._counts(now)))
        if content := b"".join(blocks):
            writer.append(content)
        if last:
            writer.close()

    def _open_step(self, now: float, *, young: bool) -> Array:
        """A row for the step in progress, if it is old or `young`; a row of NaN once if there is none."""
        row = self.timer.open_row()
        if row is not None and (young or now - row[1] > WRITE_SECONDS):
            self._reported_open = True
            return row
        gone, self._reported_open = self._reported_open and row is None, False
        return np.full(len(COLUMNS) if gone else 0, np.nan)

    def _counts(self, now: float) -> dict[str, Any]:
        counts = {"errors": self.faults.count, "lost_rows": self.timer.lost_rows}
        return {"time": now, "kind": "collector_end", "code": None, "message": None, **counts}

    def _opened(self, now: float, *, at_once: bool) -> SegmentWriter | None:
        """The writer; None until the rank is known."""
        if self._writer is None:
            if not (self.timer.finished or at_once or now - self.started > IDENTITY_SECONDS):
                return None
            identity = self.settings.identify()
            header = {
                **identity.header(),
                "pid": os.getpid(),
                "started": self.started,
                "steps": list(COLUMNS),
                "series": [list(each) for each in SERIES],
                **self.settings.header,
            }
            began = time.strftime("%Y%m%dT%H%M%S", time.gmtime(self.started))
            stem = f"rank-{identity.rank:05}-{began}-{os.getpid()}"
            self._writer = SegmentWriter(self.settings.folder, stem, header, self.settings.max_bytes)
        return self._writer

    def _run(self) -> None:
        """Sample and write until the end; an error costs its own round only."""
        next_write = SAMPLE_SECONDS
        elapsed = 0.0
        while True:
            asked = self._asked.wait(SAMPLE_SECONDS)
            if self._ended.is_set():
                break
            if asked:
                self._asked.clear()
                self._guarded("writing to " + str(self.settings.folder), lambda: self.write(failed=True))
                self._written.set()
                continue
            elapsed += SAMPLE_SECONDS
            self._guarded("sampling counters", self.sample)
            if elapsed >= next_write:
                next_write = elapsed + WRITE_SECONDS
                self._guarded("writing to " + str(self.settings.folder), self.write)
        self._guarded("sampling counters", self.sample)
        self._guarded("writing to " + str(self.settings.folder), lambda: self.write(last=True))

    def _guarded(self, doing: str, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # Training must not notice.
            self.faults.add(doing, error)
