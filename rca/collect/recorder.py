"""One rank's collection: its timers, a thread that samples counters, and the files that both end up in."""

from __future__ import annotations

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
from rca.collect.faults import LOG, Faults
from rca.collect.identity import Identity
from rca.collect.push import Pusher, PushSettings
from rca.collect.segments import OPEN_STEP, SAMPLES, STEPS, Array, SegmentWriter, event_block, table_block
from rca.collect.timers import COLUMNS, StepTimer

#: Seconds between two samples, between two writes, and between two looks for rows that are to be sent.
SAMPLE_SECONDS: Final = 1.0
WRITE_SECONDS: Final = 2.0
TAKE_SECONDS: Final = 0.1
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
    folder : Path or None
        None: nothing is written to files.
    identify : callable
        Called at the first write.
    header : mapping
        More keys of the header, such as `parallelism`.
    max_bytes : int
        Limit on the files of this rank.
    push : PushSettings or None
        None: nothing is sent.
    """

    folder: Path | None
    identify: Callable[[], Identity]
    header: Mapping[str, Any] = field(default_factory=dict)
    max_bytes: int = 16 * 1024**2
    push: PushSettings | None = None


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
        self._identity: Identity | None = None
        self._writer: SegmentWriter | None = None
        #: What was taken since the last write.
        self._rows: list[Array] = []
        self._last_rows_at = self.started
        self._taken_events: list[dict[str, Any]] = []
        self._pusher = None if settings.push is None else Pusher(settings.push, settings.header, faults)
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

    def end(self, *, over: bool = False) -> None:
        """Write and send what is left; waits for `END_SECONDS` at most for the disk, and for the service.

        Parameters
        ----------
        over : bool
            Training is over, and not only this process.
        """
        self._pauses.stop()
        self._ended.set()
        self._asked.set()
        if self._thread.is_alive():
            self._thread.join(END_SECONDS)
        if self._pusher is not None:
            self._pusher.end(over=over, seconds=END_SECONDS)
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
        if self._pusher is not None:
            self._pusher.add_sample(row)

    def take(self, *, young: bool = False) -> None:
        """Take finished steps and events: for the next write, and for the service.

        Parameters
        ----------
        young : bool
            Send a step in progress even if it is young.
        """
        rows, now = self.timer.take(), self._wall()
        events, self._events = self._events, []
        if self.settings.folder is not None:
            self._rows.append(rows)
            self._taken_events += events
        if len(rows):
            self._last_rows_at = now
        if self._pusher is None:
            return
        # To look at the step in progress takes longer than all else.
        old = young or now - self._last_rows_at > WRITE_SECONDS
        opened = self.timer.open_row() if old else None
        if len(rows) or events or opened is not None:
            self._pusher.add(rows, events, opened)
        known = self._identified(now, at_once=young)
        if known is not None:
            self._pusher.start(known)

    def write(self, *, failed: bool = False, last: bool = False) -> None:
        """Append what is new to the files.

        Parameters
        ----------
        failed : bool
            Write a step in progress even if it is young.
        last : bool
            The same, and close the files.
        """
        self.take(young=failed or last)
        now = self._wall()
        writer = self._opened(now, at_once=failed or last)
        if writer is None:
            return
        events, self._taken_events = self._taken_events, []
        rows, self._rows = self._rows, []
        blocks = [table_block(STEPS, np.concatenate(rows))]
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

    def _identified(self, now: float, *, at_once: bool) -> Identity | None:
        """The place of this process in its job; None until it is known."""
        if self._identity is None and (
            self.timer.finished or at_once or now - self.started > IDENTITY_SECONDS
        ):
            self._identity = self.settings.identify()
        return self._identity

    def _opened(self, now: float, *, at_once: bool) -> SegmentWriter | None:
        """The writer; None until the rank is known, and without a folder."""
        identity = self._identified(now, at_once=at_once)
        if self._writer is None and identity is not None and self.settings.folder is not None:
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
        """Sample, take and write until the end; an error costs its own round only."""
        tick = SAMPLE_SECONDS if self._pusher is None else TAKE_SECONDS
        elapsed, next_sample, next_write = 0.0, SAMPLE_SECONDS, SAMPLE_SECONDS
        writing = f"writing to {self.settings.folder}"
        while True:
            asked = self._asked.wait(tick)
            if self._ended.is_set():
                break
            if asked:
                self._asked.clear()
                self._guarded(writing, lambda: self.write(failed=True))
                self._written.set()
                continue
            elapsed += tick
            if self._pusher is not None:
                self._guarded("taking steps", self.take)
            # Sums of a tenth are not exact.
            if elapsed >= next_sample - tick / 2:
                next_sample += SAMPLE_SECONDS
                self._guarded("sampling counters", self.sample)
            if elapsed >= next_write - tick / 2:
                next_write = elapsed + WRITE_SECONDS
                self._guarded(writing, self.write)
        self._guarded("sampling counters", self.sample)
        self._guarded(writing, lambda: self.write(last=True))

    def _guarded(self, doing: str, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # Training must not notice.
            self.faults.add(doing, error)
