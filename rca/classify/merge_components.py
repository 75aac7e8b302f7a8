"""Merge suspects that have the same cause in the same place into one component.

A failing fan heats two GPUs of a node; a slow file server starves three nodes. One fault gets one line and
one price. Two lines would each be priced with the other fault in force, so both would look cheap.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rca.arrays import IntArray
from rca.classify.components import Component, Scope, is_whole_stage
from rca.classify.link_evidence import ComponentCause
from rca.telemetry.job import Topology

#: Causes whose resource serves several nodes at once, so that ranks on different nodes may share the fault.
BETWEEN_NODES = frozenset({"storage_degradation"})
#: Causes that the job's layout decides: their place is the stage, on however many nodes.
OF_THE_STAGE = frozenset({"stage_imbalance"})
#: Causes that, by the catalogue, all ranks of a node share: several suspected ranks of it mean all.
OF_ALL_MATES = frozenset({"storage_degradation"})


def merge_suspects(suspects: Sequence[ComponentCause], topology: Topology) -> list[Component]:
    """Merge suspects with the same likeliest cause (if unknown, of the same type) in the same place.

    Parameters
    ----------
    suspects : sequence of ComponentCause
    topology : Topology

    Returns
    -------
    list of Component
        In the order of each group's first member.
    """
    groups: dict[tuple[str, str | None, tuple[int, ...]], list[ComponentCause]] = {}
    for each in suspects:
        # Two unknown causes of different types are not the same cause.
        groups.setdefault((each.cause, each.unknown_type, _place(each, topology)), []).append(each)
    return [_together(group, topology) for group in groups.values()]


def _place(suspected: ComponentCause, topology: Topology) -> tuple[int, ...]:
    """Where the cause acts: the suspect's nodes, or its stages; a shared resource is one place.

    Ranks without a node name are one place as well: one fault is likelier than two of the same cause.
    """
    if suspected.cause in BETWEEN_NODES:
        return ()
    where = topology.stage if suspected.cause in OF_THE_STAGE else topology.node
    return tuple(int(place) for place in np.unique(where[list(suspected.component.ranks)]))


def _together(group: Sequence[ComponentCause], topology: Topology) -> Component:
    if len(group) == 1:
        return group[0].component
    ranks = np.unique([rank for each in group for rank in each.component.ranks])
    if group[0].cause in OF_ALL_MATES:
        ranks = _with_mates(ranks, topology)
    chance = max(each.component.probability for each in group)
    found = Component("rank", tuple(int(rank) for rank in ranks), chance)
    return Component(_scope(found, topology), found.ranks, chance)


def _with_mates(ranks: IntArray, topology: Topology) -> IntArray:
    """Whole nodes where several ranks of a node are given; a single rank may have a fault of its own."""
    nodes, counts = np.unique(topology.node[ranks], return_counts=True)
    shared = nodes[(counts > 1) & (nodes >= 0)]
    result: IntArray = np.union1d(ranks, np.flatnonzero(np.isin(topology.node, shared)))
    return result


def _scope(component: Component, topology: Topology) -> Scope:
    """What the ranks form: the job, whole nodes, a stage, or separate ranks."""
    ranks = np.array(component.ranks)
    if ranks.size == topology.n_ranks:
        return "job"
    nodes = np.unique(topology.node[ranks])
    if nodes[0] >= 0 and len(topology.node_names) > 1 and np.isin(topology.node, nodes).sum() == ranks.size:
        return "node"
    return "stage" if is_whole_stage(component, topology) else "rank"
