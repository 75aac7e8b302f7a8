"""Contexts and iterators that time steps and phases in training code."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Final, TypeVar

from rca.collect.collection import CURRENT
from rca.collect.timers import PHASE_NUMBERS

_T = TypeVar("_T")


class StepContext:
    """Context of one step."""

    __slots__ = ("_number",)

    def __init__(self, number: int | None) -> None:
        self._number = number

    def __enter__(self) -> StepContext:
        timer = CURRENT.timer
        if timer is not None:
            try:
                timer.begin(self._number)
            except Exception as error:
                CURRENT.faults.lost_step(timer, error)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        timer = CURRENT.timer
        if timer is not None:
            try:
                if error is None:
                    timer.end()
                else:
                    # The step stays open: it was begun and never finished.
                    timer.fail(error)
            except Exception as failed:
                CURRENT.faults.lost_step(timer, failed)

    def cancel(self) -> None:
        """Forget the step."""
        if CURRENT.timer is not None:
            CURRENT.timer.cancel()


class Phase:
    """Context of a phase; one object serves all steps."""

    __slots__ = ("_number",)

    def __init__(self, number: int | None) -> None:
        self._number = number

    def __enter__(self) -> Phase:
        timer = CURRENT.timer
        if timer is not None and self._number is not None:
            try:
                timer.enter(self._number)
            except Exception as error:
                CURRENT.faults.lost_step(timer, error)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        timer = CURRENT.timer
        if timer is not None and self._number is not None:
            try:
                timer.leave(self._number)
                if error is not None:
                    timer.fail(error)
            except Exception as failed:
                CURRENT.faults.lost_step(timer, failed)


_PHASES: Final = {name: Phase(number) for name, number in PHASE_NUMBERS.items()}
_UNKNOWN: Final = Phase(None)


def _unknown(name: str) -> Phase:
    CURRENT.faults.warn(
        f"phase {name}", f"collect.phase({name!r}) is not timed; phases are {', '.join(_PHASES)}"
    )
    return _UNKNOWN


def step(number: int | None = None) -> StepContext:
    """Time a step: ``with collect.step():`` around all of its phases.

    Parameters
    ----------
    number : int, optional
        The training step, for jobs that go on from a checkpoint; counted from 0 by default.
    """
    return StepContext(number)


def phase(name: str) -> Phase:
    """Time a phase of a step: ``with collect.phase("forward"):``.

    Time in an inner phase does not count for the outer one. Phases between two steps belong to the next.

    Parameters
    ----------
    name : str
        `data_loading`, `host_to_device`, `forward`, `backward`, `communication`, `communication_wait`,
        `communication_transfer`, `optimizer`, `checkpoint` or `gc`. Another name is logged once and not
        timed.
    """
    return _PHASES.get(name) or _unknown(name)


def batches(loader: Iterable[_T]) -> Iterator[_T]:
    """Iterate over `loader`, and time the wait for each batch as data loading."""
    iterator = iter(loader)
    while True:
        with _PHASES["data_loading"]:
            try:
                batch = next(iterator)
            except StopIteration:
                return
        yield batch


def steps(loader: Iterable[_T]) -> Iterator[_T]:
    """Iterate over `loader`; each round is a step that begins with the wait for its batch."""
    iterator = iter(loader)
    while True:
        with StepContext(None) as current:
            with _PHASES["data_loading"]:
                try:
                    batch = next(iterator)
                except StopIteration:
                    current.cancel()
                    return
            # `break` and errors leave the step open.
            yield batch
