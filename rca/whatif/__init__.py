"""What-if analysis: replay a job without its stragglers.

- `what_if` analyses an operation trace or a window.
- `scenarios_of` gives step times under described scenarios.
- `TraceReplay` replays operations, `PhaseReplay` replays the phases of each step.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rca.whatif.analysis import scenarios_of, what_if
    from rca.whatif.graph.trace_replay import TraceReplay
    from rca.whatif.phases.phase_replay import PhaseReplay
    from rca.whatif.result import WhatIf
    from rca.whatif.scenario import Change, Scenario, Selection

_PLACES = {
    "Change": "scenario",
    "PhaseReplay": "phases.phase_replay",
    "Scenario": "scenario",
    "Selection": "scenario",
    "TraceReplay": "graph.trace_replay",
    "WhatIf": "result",
    "scenarios_of": "analysis",
    "what_if": "analysis",
}

__all__ = [
    "Change",
    "PhaseReplay",
    "Scenario",
    "Selection",
    "TraceReplay",
    "WhatIf",
    "scenarios_of",
    "what_if",
]


def __getattr__(name: str) -> Any:
    # A diagnosis needs only `PhaseReplay`. The other modules are imported on first use.
    if name in _PLACES:
        return getattr(import_module(f"rca.whatif.{_PLACES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
