"""The cause graph: which resource may lengthen which phase and change which signal. It follows the catalogue.

Its arrows are ``resource -> signal``, ``resource -> phase -> own work -> arrival -> step`` and
``waiting -> signal``. The last one is needed because peers of a slow rank idle, and idle hardware lowers its
clock: a low clock on a waiting rank is an effect. Arrival, waiting and step are not learned: the what-if
replay computes them.
"""

from __future__ import annotations

from collections.abc import Collection

from rca.causal.graph import IDLE_RESOURCES, PHASES, WAITING, mechanism_parents
from rca.features.resource_evidence import resource_names
from rca.window.causes import CAUSES


def signal_of(resource: str) -> str:
    """Name of the node for a resource's signal."""
    return f"{resource}_signal"


def hidden_parents() -> list[tuple[str, str]]:
    """Pairs of resources, and of phases, that one cause changes together.

    The severity of a fault and the job's sensitivity to it are common parents that are not measured. The
    graph does not claim that these pairs are independent. Each pair is in a fixed order.
    """
    pairs: dict[tuple[str, str], None] = {}
    order = {name: index for index, name in enumerate((*resource_names(), *PHASES))}
    for spec in CAUSES.values():
        for members in (spec.resources, spec.phases):
            ordered = sorted(members, key=order.__getitem__)
            pairs |= {(a, b): None for index, a in enumerate(ordered) for b in ordered[index + 1 :]}
    return list(pairs)


def cause_edges() -> list[tuple[str, str]]:
    """All arrows of the graph."""
    edges = [(resource, signal_of(resource)) for resource in resource_names()]
    edges += [(WAITING, signal_of(resource)) for resource in IDLE_RESOURCES]
    edges += [(resource, phase) for phase, resources in mechanism_parents().items() for resource in resources]
    edges += [(phase, "own_work") for phase in PHASES if phase != "transfer"]
    edges += [("own_work", "arrival"), ("arrival", WAITING), ("arrival", "step"), ("transfer", "step")]
    return edges


def graph_as_dot(without: Collection[str] = ()) -> str:
    """The graph in the DOT language, without some resources; learned arrows solid, computed ones dashed."""
    computed = {"own_work", "arrival", WAITING, "step"}
    lines = [
        f'  "{source}" -> "{target}"' + (" [style=dashed];" if target in computed else ";")
        for source, target in cause_edges()
        if source not in without
    ]
    return "digraph causes {\n  rankdir=LR;\n" + "\n".join(lines) + "\n}\n"
