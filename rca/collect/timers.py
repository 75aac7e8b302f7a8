"""Timers of a rank's training steps: exclusive seconds per phase, in a ring of fixed size.

The training thread writes a row at the end of each step. Another thread takes finished rows. Neither waits
for the other: rows that are not taken in time are overwritten and counted.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final, Protocol

import numpy as np

from rca.collect.exits import exit_code
from rca.collect.segments import Array

#: Phases by the name that training code gives, in the order of their columns.
PHASES: Final = (
    "data_loading",
    "host_to_device",
    "forward",
    "backward",
    "communication_wait",
    "communication_transfer",
    "communication",
    "optimizer",
    "checkpoint",
    "gc",
)
PHASE_NUMBERS: Final = {name: number for number, name in enumerate(PHASES)}
LOADS: Final = ("samples", "tokens", "sum_squared_sequence_length")
#: Columns of a row; names and units are those of the table ``steps`` of a window.
COLUMNS: Final = ("step", "start_time", *(f"{name}_seconds" for name in PHASES), "step_seconds", *LOADS)
GC: Final = PHASE_NUMBERS["gc"]
#: Time of a step in no phase.
UNTIMED: Final = len(PHASES)
ROWS: Final = 4096
_NAN: Final = float("nan")


class Marks(Protocol):
    """Records the changes of phase on a device that runs behind the host."""

    def change(self, phase: int) -> None:
        """The host goes over to this phase now."""

    @property
    def stream(self) -> object:
        """Stream of the step in progress."""

    def relabel(self, phase: int) -> None:
        """The current phase was another one from its begin."""

    def finish(self, row: list[float]) -> None:
        """The step has ended; `row` is as the host's clock has it."""

    def drop(self) -> None:
        """Forget the step in progress."""

    def settle(self, *, last: bool = False) -> None:
        """Write the rows of finished steps; at the end, all of them."""


class StepTimer:
    """Exclusive time of each phase of each step.

    Phases nest: time in an inner phase does not count for the outer one, nor does garbage collection. Phases
    between two steps count for the next step, which then begins with the first of them.

    Parameters
    ----------
    clock, wall : callable
        Seconds of a steady clock, and Unix seconds.
    rows : int
        Size of the ring.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.perf_counter,
        wall: Callable[[], float] = time.time,
        rows: int = ROWS,
    ) -> None:
        self._clock, self._wall = clock, wall
        self._ring: Array = np.full((rows, len(COLUMNS)), _NAN)
        self._written = self._taken = 0
        self._marks: Marks | None = None
        #: Called after each step until it returns marks of a device, which the timer then follows.
        self.find_marks: Callable[[], Marks | None] | None = None
        self._thread = 0
        #: Called with each error that passes through a step, a phase or a collective.
        self.report: Callable[[BaseException], None] | None = None
        #: Whether an error has passed through the step in progress.
        self.failed = False
        #: Whether a step is in progress; before `begin`, the first phase opens one for the next step.
        self._open = self._begun = False
        self._number, self._start, self._began, self._since = -1, 0.0, 0.0, 0.0
        self._stack: list[int] = [UNTIMED]
        self._spent = [0.0] * (UNTIMED + 1)
        self._load = [_NAN] * len(LOADS)
        self._seen = [False] * UNTIMED
        self._seen[GC] = True
        #: Seconds of garbage collection so far, of the process, and how many of them are accounted for.
        self.collected = self._collected = 0.0
        self.lost_rows = 0

    @property
    def in_step(self) -> bool:
        """Whether a step has begun and not ended."""
        return self._begun

    @property
    def finished(self) -> int:
        """Number of finished steps so far."""
        return self._written

    @property
    def phase(self) -> int:
        """Number of the current phase."""
        return self._stack[-1]

    @property
    def stream(self) -> object:
        """Stream of the device that runs the step in progress; None without a device."""
        return None if self._marks is None else self._marks.stream

    def give_up(self) -> None:
        """After an error: forget the step in progress, and leave the device alone from now on."""
        self._marks = self.find_marks = None
        self._drop()

    def begin(self, number: int | None = None) -> None:
        """Begin a step; one that is in progress is forgotten."""
        if self._begun or not self._open:
            self._open_row()
        self._begun = True
        self._number = self._number + 1 if number is None else number

    def end(self) -> None:
        """Finish the step in progress, on the thread that began it."""
        if not self._begun or threading.get_ident() != self._thread:
            return
        self._account()
        row = self._row()
        row[UNTIMED + 2] = self._since - self._began
        if self._marks is not None:
            self._marks.finish(row)
        else:
            self.write(row)
        self._open = self._begun = False
        if self._marks is None and self.find_marks is not None:
            self._marks = self.find_marks()

    def cancel(self) -> None:
        """Forget the step in progress, which has no number then."""
        if self._begun:
            self._number -= 1
        self._drop()

    def fail(self, error: BaseException) -> None:
        """An error passes through the step in progress, or through a phase between two steps."""
        if exit_code(error) != "0":
            self.failed = self._begun
            if self.report is not None:
                self.report(error)

    def enter(self, phase: int, *, any_thread: bool = False) -> None:
        """Go over to a phase within the current one.

        Other threads than the step's are ignored, unless `any_thread`: the training thread waits meanwhile.
        """
        if not self._open:
            self._open_row()
        elif not any_thread and threading.get_ident() != self._thread:
            return
        self._account()
        self._stack.append(phase)
        self._seen[phase] = True
        if self._marks is not None:
            self._marks.change(phase)

    def leave(self, phase: int, *, any_thread: bool = False) -> None:
        """Go back to the phase around `phase`; phases inside that are still open end too."""
        if not self._open or not (any_thread or threading.get_ident() == self._thread):
            return
        if phase not in self._stack:
            return
        self._account()
        while self._stack.pop() != phase:
            pass
        if self._marks is not None:
            self._marks.change(self._stack[-1])

    def relabel(self, phase: int) -> None:
        """Count the current phase as another one, from its begin, and leave it."""
        if self._open and len(self._stack) > 1 and threading.get_ident() == self._thread:
            self._stack[-1] = phase
            self._seen[phase] = True
            if self._marks is not None:
                self._marks.relabel(phase)
            self.leave(phase)

    def settle(self) -> None:
        """At the end of a collection: write the rows that wait for a device."""
        if self._marks is not None:
            self._marks.settle(last=True)

    def load(self, number: int, amount: float) -> None:
        """Add an amount of work to the step in progress; `number` is the place in `LOADS`."""
        held = self._load[number]
        self._load[number] = amount if held != held else held + amount

    def write(self, row: list[float]) -> None:
        """Put a finished row into the ring."""
        self._ring[self._written % len(self._ring)] = row
        self._written += 1

    def take(self) -> Array:
        """The rows that were finished since the last call, shape (n_rows, n_columns)."""
        written, size = self._written, len(self._ring)
        # One row less than fit: the training thread may be writing the oldest.
        first = max(self._taken, written - size + 1)
        rows = self._ring[np.arange(first, written) % size]
        # Rows that were overwritten during the copy.
        torn = max(0, self._written - size + 1 - first)
        self.lost_rows += first - self._taken + min(torn, len(rows))
        self._taken = written
        return rows[torn:]

    def open_row(self) -> Array | None:
        """The step in progress, shape (n_columns,): NaN for phases that are not over; None without one."""
        if not self._begun:
            return None
        row = self._row()
        within = set(self._stack)
        for phase in range(UNTIMED):
            if phase in within or (phase != GC and not self._spent[phase]):
                row[2 + phase] = _NAN
        row[UNTIMED + 2] = _NAN
        return np.array(row)

    def _open_row(self) -> None:
        self._drop()
        self._thread = threading.get_ident()
        self._collected = self.collected
        self._since = self._began = self._clock()
        self._start = self._wall()
        self._open = True
        if self._marks is not None:
            self._marks.change(UNTIMED)

    def _drop(self) -> None:
        if self._open and self._marks is not None:
            self._marks.drop()
        self._open = self._begun = self.failed = False
        self._stack = [UNTIMED]
        self._spent = [0.0] * (UNTIMED + 1)
        self._load = [_NAN] * len(LOADS)

    def _account(self) -> None:
        """Count the time since the last change for the current phase."""
        now, collected = self._clock(), self.collected
        pause = collected - self._collected
        self._spent[self._stack[-1]] += max(0.0, now - self._since - pause)
        self._spent[GC] += pause
        self._since, self._collected = now, collected

    def _row(self) -> list[float]:
        spent = [time if seen else _NAN for time, seen in zip(self._spent, self._seen, strict=False)]
        return [self._number, self._start, *spent, _NAN, *self._load]
