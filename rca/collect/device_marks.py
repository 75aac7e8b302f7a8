"""Phases as a GPU spends them: events between the kernels, read later and never waited for.

The host only enqueues kernels, so its own clock shows when work was enqueued. An event is recorded in the
GPU's stream at each change of phase. The time between two events belongs to the phase between them, with the
time in which the GPU waited for the host. So data loading counts as far as it delayed the GPU.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from itertools import pairwise
from typing import Any, Final

from rca.collect.timers import GC, UNTIMED

#: A step with more changes of phase keeps its duration only.
MAX_MARKS: Final = 2048
#: Finished steps that wait for the GPU. The oldest of more keeps its duration by the host's clock only.
MAX_WAITING: Final = 64
_MILLISECOND: Final = 1e-3
_NAN: Final = float("nan")


class DeviceMarks:
    """Marks of one stream.

    Parameters
    ----------
    new_event : callable
        Makes an event with ``record``, ``query`` and ``elapsed_time``, as ``torch.cuda.Event``.
    stream : callable
        The stream of the step that begins now.
    write : callable
        Takes finished rows, in seconds of the device.
    recordable : callable
        Whether events may be recorded now; not while a graph is captured.
    """

    def __init__(
        self,
        new_event: Callable[[], Any],
        stream: Callable[[], Any],
        write: Callable[[list[float]], None],
        recordable: Callable[[], bool] = lambda: True,
    ) -> None:
        self._new_event, self._current_stream = new_event, stream
        self._write, self._recordable = write, recordable
        self._free: list[Any] = []
        self._marks: list[tuple[int, Any]] = []
        self._whole = True
        self._waiting: deque[tuple[list[float], list[tuple[int, Any]], bool]] = deque()
        #: Of the step in progress.
        self.stream: Any = None

    def change(self, phase: int) -> None:
        """The stream goes over to a phase, after the work enqueued so far."""
        if not self._marks:
            self.stream, self._whole = self._current_stream(), True
        if len(self._marks) >= MAX_MARKS or not self._recordable():
            self._whole = False
            return
        self._marks.append((phase, self._record()))

    def relabel(self, phase: int) -> None:
        """The current phase was another one from its begin."""
        if self._marks:
            self._marks[-1] = phase, self._marks[-1][1]

    def finish(self, row: list[float]) -> None:
        """End the step; its row is written as soon as the device has done it."""
        if self._marks and self._recordable():
            self._marks.append((UNTIMED, self._record()))
            self._waiting.append((row, self._marks, self._whole))
        else:
            self._free += [event for _, event in self._marks]
            self._write(_without_phases(row))
        self._marks = []
        self.settle()

    def drop(self) -> None:
        """Forget the step in progress."""
        self._free += [event for _, event in self._marks]
        self._marks = []

    def settle(self, *, last: bool = False) -> None:
        """Write the rows that the device has done, in order; at the end, all of them."""
        while self._waiting:
            row, marks, whole = self._waiting[0]
            done = bool(marks[-1][1].query())
            if not (done or last or len(self._waiting) > MAX_WAITING):
                return
            self._waiting.popleft()
            self._write(_on_device(row, marks, whole=whole) if done else _without_phases(row))
            if done:
                self._free += [event for _, event in marks]

    def _record(self) -> Any:
        event = self._free.pop() if self._free else self._new_event()
        event.record(self.stream)
        return event


def _on_device(row: list[float], marks: list[tuple[int, Any]], *, whole: bool) -> list[float]:
    """The row with the device's times; garbage collection stays as the host has it."""
    row = row if whole else _without_phases(row)
    spent = [0.0] * (UNTIMED + 1)
    for (phase, begin), (_, end) in pairwise(marks):
        spent[phase] += begin.elapsed_time(end) * _MILLISECOND
    for phase in range(UNTIMED):
        if phase != GC and row[2 + phase] == row[2 + phase]:
            row[2 + phase] = spent[phase]
    row[2 + UNTIMED] = marks[0][1].elapsed_time(marks[-1][1]) * _MILLISECOND
    return row


def _without_phases(row: list[float]) -> list[float]:
    return [
        *row[:2],
        *(value if phase == GC else _NAN for phase, value in enumerate(row[2 : 2 + UNTIMED])),
        *row[2 + UNTIMED :],
    ]


def marks_of_gpu(write: Callable[[list[float]], None]) -> DeviceMarks | None:
    """Marks of the current GPU; None if the training code has not used one so far."""
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    if cuda is None or not cuda.is_initialized():
        return None
    return DeviceMarks(
        lambda: cuda.Event(enable_timing=True),
        cuda.current_stream,
        write,
        lambda: not cuda.is_current_stream_capturing(),
    )
