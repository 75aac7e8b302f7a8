"""The cause graph: which resource may lengthen which phase and move which signal, read off the catalogue.

``resource -> signal``, ``resource -> phase -> own work -> arrival -> step``, with ``waiting -> signal`` as
its own arrow: peers of a slow rank idle, and idle hardware clocks down, so a low clock on a waiting rank is
an effect. Arrival, waiting and step are not learned: the what-if replay computes them.
"""

from __future__ import annotations

from rca.features.resource_evidence import resource_names
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
#: Resources whose signals answer to waiting as well: idle GPUs lower clock, heat, activity and link state.
IDLE_RESOURCES = ("gpu_clock", "gpu_heat", "gpu_activity", "pcie")
WAITING = "waiting"


def signal_of(resource: str) -> str:
    """Node of what the exporters show of a resource."""
    return f"{resource}_signal"


def mechanism_parents() -> dict[str, tuple[str, ...]]:
    """Phase -> resources that may lengthen it, in a stable order."""
    parents: dict[str, list[str]] = {phase: [] for phase in PHASES}
    for spec in CAUSES.values():
        for phase in spec.phases:
            for resource in spec.resources:
                if resource not in parents[phase]:
                    parents[phase].append(resource)
    return {phase: tuple(found) for phase, found in parents.items()}


def hidden_parents() -> list[tuple[str, str]]:
    """Pairs of resources, and of phases, that one cause moves together.

    How severe a fault is, and how sensitive a job is to it, are common parents that nobody measures: the
    graph does not claim these pairs to be independent. Each pair is in a fixed order.
    """
    pairs: dict[tuple[str, str], None] = {}
    order = {name: index for index, name in enumerate((*resource_names(), *PHASES))}
    for spec in CAUSES.values():
        for members in (spec.resources, spec.phases):
            ordered = sorted(members, key=order.__getitem__)
            pairs |= {(a, b): None for index, a in enumerate(ordered) for b in ordered[index + 1 :]}
    return list(pairs)


def cause_edges() -> list[tuple[str, str]]:
    """All arrows of the graph, for people and for graph tests."""
    edges = [(resource, signal_of(resource)) for resource in resource_names()]
    edges += [(WAITING, signal_of(resource)) for resource in IDLE_RESOURCES]
    edges += [(resource, phase) for phase, resources in mechanism_parents().items() for resource in resources]
    edges += [(phase, "own_work") for phase in PHASES if phase != "transfer"]
    edges += [("own_work", "arrival"), ("arrival", WAITING), ("arrival", "step"), ("transfer", "step")]
    return edges


def graph_as_dot() -> str:
    """The graph in Graphviz' language; learned arrows solid, computed ones dashed."""
    computed = {"own_work", "arrival", WAITING, "step"}
    lines = [
        f'  "{source}" -> "{target}"' + (" [style=dashed];" if target in computed else ";")
        for source, target in cause_edges()
    ]
    return "digraph causes {\n  rankdir=LR;\n" + "\n".join(lines) + "\n}\n"
