"""The learned arrows of the cause graph: which resource may lengthen which phase, by the catalogue.

`rca.lab.training.cause_graph` has the whole graph.
"""

from __future__ import annotations

from rca.window.causes import CAUSES

#: Phases that a resource can lengthen, in the order of the mechanisms' rows.
PHASES = (
    "data_loading",
    "host_to_device",
    "forward",
    "backward",
    "optimizer",
    "checkpoint",
    "gc",
    "transfer",
)
#: Waiting changes the signals of these, too: idle GPUs lower clock, heat, activity and link state.
IDLE_RESOURCES = ("gpu_clock", "gpu_heat", "gpu_activity", "pcie")
WAITING = "waiting"


def mechanism_parents() -> dict[str, tuple[str, ...]]:
    """Phase -> the resources that may lengthen it, in a stable order."""
    parents: dict[str, list[str]] = {phase: [] for phase in PHASES}
    for spec in CAUSES.values():
        for phase in spec.phases:
            for resource in spec.resources:
                if resource not in parents[phase]:
                    parents[phase].append(resource)
    return {phase: tuple(found) for phase, found in parents.items()}
