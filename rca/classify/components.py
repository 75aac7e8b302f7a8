"""From suspicious ranks to the smallest components that cover them; components with one cause are merged."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from rca.arrays import BoolArray, FloatArray, IntArray
from rca.robust import group_members
from rca.window.job import Topology

Scope = Literal["rank", "node", "stage", "data_group", "job"]

#: Most healthy ranks of a window that the rank models learn from.
LEARNED_AMONG = 8
#: Most iterations to find the number of faulty ranks. It only grows, slowly where suspicions are weak.
MAX_ROUNDS = 50
#: The job is a component only if at least this share of its ranks is suspected.
MIN_JOB_SHARE = 0.75
#: Penalty of each further component, in log-odds: it halves the probability of an explanation.
FURTHER = math.log(2.0)
#: Bound on a rank's log-odds for or against a component: a model may be certain and wrong.
MAX_RANK_LOG_ODDS = 4.0
#: Causes whose resource serves several nodes at once, so that ranks on different nodes may share the fault.
BETWEEN_NODES = frozenset({"storage_degradation"})
#: Causes that the job's layout decides: their place is the stage, on however many nodes.
OF_THE_STAGE = frozenset({"stage_imbalance"})
#: Causes that, by the catalogue, all ranks of a node share: several suspected ranks of it mean all.
OF_ALL_MATES = frozenset({"storage_degradation"})


@dataclass(frozen=True)
class Component:
    """A group of ranks that misbehave together.

    Attributes
    ----------
    scope : {"rank", "node", "stage", "data_group", "job"}
    ranks : tuple of int
        Ascending.
    probability : float
        Mean straggler probability of its ranks.
    """

    scope: Scope
    ranks: tuple[int, ...]
    probability: float


@dataclass(frozen=True)
class ComponentCause:
    """A component and its likeliest cause; if that is unknown, the likeliest type as well."""

    component: Component
    cause: str
    unknown_type: str | None = None

    def node(self, topology: Topology) -> int:
        """The one node it lies on; -1 if unknown or several."""
        nodes = np.unique(topology.node[list(self.component.ranks)])
        return int(nodes[0]) if nodes.size == 1 else -1


def cover(probability: FloatArray, threshold: float, topology: Topology) -> list[Component]:
    """Explain suspected ranks by the likeliest set of components.

    Parameters
    ----------
    probability : ndarray of shape (n_ranks,)
        Probability of every rank that it straggles, or stopped the job.
    threshold : float
        A rank is suspected at or above it.

    Notes
    -----
    A fault of a node or stage shows on all its ranks, so the whole may be likelier than separate ranks. Every
    further component halves the probability of an explanation. Every rank inside a component adds its
    log-odds beyond the threshold's. Weakly suspected ranks do not compete with their node, unless no rank in
    it is suspected more. A stage is compared with the best components inside it. So is the job, if nearly
    all ranks are suspected.
    """
    suspected = probability >= threshold
    odds = _odds(probability, threshold)
    alone = np.where(suspected, odds - FURTHER, 0.0)

    def gain(members: IntArray) -> float:
        """Log-odds of one component over its separate ranks: those with a gain, or else all."""
        rivals = alone[members]
        worth = rivals[rivals > 0]
        return float(odds[members].sum() - FURTHER - (worth if worth.size else rivals).sum())

    chosen: dict[int, tuple[float, Scope, IntArray]] = {}
    part_of = np.full(topology.n_ranks, -1)
    for number, (scope, members) in enumerate(_candidates(topology)):
        inside = [part for part in np.unique(part_of[members]).tolist() if part >= 0]
        mine = gain(members)
        if mine > sum(chosen[part][0] for part in inside):
            for part in inside:
                part_of[chosen.pop(part)[2]] = -1
            chosen[number] = mine, scope, members
            part_of[members] = number
    all_ranks = np.arange(topology.n_ranks)
    nearly_all = topology.n_ranks > 2 and suspected.mean() >= MIN_JOB_SHARE
    if nearly_all and gain(all_ranks) > sum(best for best, _, _ in chosen.values()):
        return [_component("job", all_ranks, probability)]
    wholes = [_component(scope, members, probability) for _, scope, members in chosen.values()]
    return _by_probability(wholes, suspected & (part_of < 0), probability)


def exact_cover(faulty: BoolArray, probability: FloatArray, topology: Topology) -> list[Component]:
    """Group ranks that are known to be faulty into components without other ranks.

    Parameters
    ----------
    faulty : ndarray of shape (n_ranks,), bool
    probability : ndarray of shape (n_ranks,)
        Straggler probability of every rank.
    """
    if topology.n_ranks > 2 and faulty.all():
        return [_component("job", np.arange(topology.n_ranks), probability)]
    found: list[Component] = []
    left = faulty.copy()
    # Stages first: one that is made of whole nodes is the stage.
    for scope, members in reversed(list(_candidates(topology))):
        if left[members].all():
            found.append(_component(scope, members, probability))
            left[members] = False
    return _by_probability(found, left, probability)


def _by_probability(wholes: list[Component], singles: BoolArray, probability: FloatArray) -> list[Component]:
    """Wholes and single ranks, the most probable first."""
    ranks = (_component("rank", np.array([rank]), probability) for rank in np.flatnonzero(singles))
    return sorted([*wholes, *ranks], key=lambda component: (-component.probability, component.ranks))


def _odds(probability: FloatArray, threshold: float) -> FloatArray:
    """How far probabilities are above the threshold, in log-odds within `MAX_RANK_LOG_ODDS`."""
    clipped = np.clip(np.append(probability, threshold), 1e-9, 1.0 - 1e-9)
    odds = np.log(clipped / (1.0 - clipped))
    result: FloatArray = np.clip(odds[:-1] - odds[-1], -MAX_RANK_LOG_ODDS, MAX_RANK_LOG_ODDS)
    return result


def likely_among_all_ranks(components: Sequence[Component], n_ranks: int) -> list[Component]:
    """The likeliest component, and the others that are likely even among so many ranks.

    Parameters
    ----------
    n_ranks : int
        Of the job.

    Notes
    -----
    A slow job has a slow component, so the likeliest is kept without a test. Of thousands of healthy ranks a
    few look faulty by chance. The models learned from at most `LEARNED_AMONG` healthy ranks of a window. So
    the odds of the others are corrected for the unseen ranks (case-control sampling; King and Zeng, 2001).
    The size of the correction depends on the number of faulty ranks. The corrected odds estimate that number
    (Saerens, Latinne and Decaestecker, 2002): twelve ranks that look faulty are rarely twelve accidents.
    """
    found = sorted(components, key=lambda component: (-component.probability, component.ranks))
    if not found:
        return []
    odds = np.array([each.probability / max(1.0 - each.probability, 1e-9) for each in found])
    sizes = np.array([len(each.ranks) for each in found])
    faulty = np.ones(sizes.size)
    for _ in range(MAX_ROUNDS):
        corrected = odds * np.minimum(1.0, LEARNED_AMONG * np.maximum(sizes, faulty) / n_ranks)
        chances = sizes * corrected / (1.0 + corrected)
        # No component counts for itself. The likeliest counts for none: every window has one.
        chances[0] = 0.0
        faulty, before = np.maximum(1.0, chances.sum() - chances), faulty
        if np.allclose(faulty, before, atol=0.01):
            break
    return [each for place, each in enumerate(found) if place == 0 or corrected[place] >= 1.0]


def is_whole_stage(component: Component, topology: Topology) -> bool:
    """Whether the component is exactly one of several pipeline stages."""
    ranks = np.array(component.ranks)
    stages = np.unique(topology.stage[ranks])
    return topology.n_stages > 1 and stages.size == 1 and ranks.size == (topology.stage == stages[0]).sum()


def _candidates(topology: Topology) -> Iterator[tuple[Scope, IntArray]]:
    """Nodes, then stages over several nodes: the inner component comes first."""
    if len(topology.node_names) > 1:
        for members in topology.ranks_of_node.values():
            if members.size > 1:
                yield "node", members
    if topology.n_stages > 1:
        width = topology.n_ranks // topology.n_stages
        for members in group_members(topology.stage):
            spans_nodes = np.unique(topology.node[members]).size > 1 or (topology.node[members] < 0).any()
            if members.size == width > 1 and spans_nodes:
                yield "stage", members


def _component(scope: Scope, members: IntArray, probability: FloatArray) -> Component:
    ranks = tuple(int(rank) for rank in members)
    return Component(scope, ranks, float(probability[members].mean()))


def merge_suspects(suspects: Sequence[ComponentCause], topology: Topology) -> list[Component]:
    """Merge suspects with the same likeliest cause (if unknown, of the same type) in the same place.

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
    return component_of(tuple(int(rank) for rank in ranks), chance, topology)


def component_of(ranks: tuple[int, ...], probability: float, topology: Topology) -> Component:
    """The component that some ranks form: the job, whole nodes, a stage, or separate ranks."""
    found = Component("rank", ranks, probability)
    return Component(_scope(found, topology), ranks, probability)


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
