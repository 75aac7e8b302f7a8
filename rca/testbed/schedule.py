"""When each fault starts and stops, by the job's own steps; and when it really did."""

from __future__ import annotations

from dataclasses import dataclass, replace

from rca.testbed.injection import Injector
from rca.testbed.scenario import Fault


@dataclass(frozen=True)
class Acted:
    """What really happened of a fault.

    Attributes
    ----------
    first_step : int
        The step in which it was fully there.
    last_step : int or None
        The last step it touched; None where it lasted to the end.
    """

    fault: Fault
    first_step: int
    last_step: int | None


@dataclass
class _Planned:
    fault: Fault
    injector: Injector
    acted: Acted | None = None
    over: bool = False


class Schedule:
    """Starts and stops injectors as the job's steps go by.

    Parameters
    ----------
    injectors : list of (Fault, Injector)
    """

    def __init__(self, injectors: list[tuple[Fault, Injector]]) -> None:
        self._plans = [_Planned(fault, injector) for fault, injector in injectors]

    def advance(self, slowest: int, fastest: int) -> None:
        """Act on what is due when the slowest and the fastest rank are in these steps."""
        for plan in self._plans:
            if plan.acted is None and fastest >= plan.fault.first_step:
                plan.injector.start()
                plan.acted = Acted(plan.fault, fastest, None)
            last = plan.fault.last_step
            if plan.acted is not None and not plan.over and last is not None and slowest > last:
                plan.over = True
                plan.injector.stop()
                plan.acted = replace(plan.acted, last_step=slowest)

    def close(self) -> None:
        """Stop what still runs."""
        for plan in self._plans:
            if plan.acted is not None and not plan.over:
                plan.over = True
                plan.injector.stop()

    @property
    def acted(self) -> list[Acted]:
        """Faults that were started, in the scenario's order."""
        return [plan.acted for plan in self._plans if plan.acted is not None]
