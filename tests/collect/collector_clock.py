"""A clock that tests move by hand."""

from __future__ import annotations

from rca.collect.timers import COLUMNS, PHASE_NUMBERS, StepTimer


class Clock:
    """Both the steady clock and the wall clock, the latter 1,000 s ahead."""

    def __init__(self) -> None:
        self.now = 0.0

    def steady(self) -> float:
        return self.now

    def wall(self) -> float:
        return 1000.0 + self.now


def timer_with_clock(rows: int = 64) -> tuple[StepTimer, Clock]:
    clock = Clock()
    return StepTimer(clock.steady, clock.wall, rows), clock


def spend(timer: StepTimer, clock: Clock, phase: str, seconds: float) -> None:
    """Be in a phase for some time."""
    timer.enter(PHASE_NUMBERS[phase])
    clock.now += seconds
    timer.leave(PHASE_NUMBERS[phase])


def rows(timer: StepTimer) -> list[dict[str, float]]:
    """The finished steps, by column."""
    return [dict(zip(COLUMNS, row.tolist(), strict=True)) for row in timer.take()]
