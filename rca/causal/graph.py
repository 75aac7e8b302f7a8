"""The cause graph: which resource may lengthen which phase, read off the cause catalogue.

``resource -> phase -> own work -> arrival -> step``, with ``waiting -> clock`` as its own arrow: peers of a
slow rank idle, and idle hardware clocks down, so a low clock on a waiting rank is an effect.
Arrival and step are not learned: the what-if replay computes them.
"""

from __future__ import annotations

from rca.telemetry.causes import CAUSES

#: Phases a resource can act on, in the order of the mechanisms' rows.
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
#: Resources that answer to waiting as well as to faults.
IDLE_RESOURCES = ("gpu_clock", "gpu_activity", "gpu_heat")


def mechanism_parents() -> dict[str, tuple[str, ...]]:
    """Phase -> resources that may lengthen it, in a stable order."""
    parents: dict[str, list[str]] = {phase: [] for phase in PHASES}
    for spec in CAUSES.values():
        for phase in spec.phases:
            for resource in spec.resources:
                if resource not in parents[phase]:
                    parents[phase].append(resource)
    return {phase: tuple(found) for phase, found in parents.items()}


def cause_edges() -> list[tuple[str, str]]:
    """All arrows of the graph, for people and for graph tests."""
    edges = [(resource, phase) for phase, resources in mechanism_parents().items() for resource in resources]
    edges += [(phase, "own_work") for phase in PHASES if phase != "transfer"]
    edges += [("own_work", "arrival"), ("arrival", "waiting"), ("arrival", "step"), ("transfer", "step")]
    edges += [("waiting", resource + "_idle") for resource in IDLE_RESOURCES]
    return edges
