"""From suspicious ranks to the smallest components that cover them: ranks, nodes, stages, the job."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from rca.arrays import BoolArray, FloatArray, IntArray
from rca.telemetry.job import Topology

Scope = Literal["rank", "node", "stage", "data_group", "job"]

#: Innocent ranks of a window that the rank models learn from, at most.
LEARNED_AMONG = 8
#: In which the number of guilty ranks is found: it only grows, slowly where many are hardly suspected.
MOST_ROUNDS = 50
#: The job is meant only when at least this share of its ranks is suspected.
EVERYBODY = 0.75
#: What a further component has to add to an explanation, in log-odds: each halves the belief in it.
FURTHER = math.log(2.0)
#: A rank's word for or against a component, at most, in log-odds: models may be surely wrong.
SUREST = 4.0


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


def cover(probability: FloatArray, threshold: float, topology: Topology) -> list[Component]:
    """Explain suspected ranks by the components that are likeliest together.

    Parameters
    ----------
    probability : ndarray of shape (n_ranks,)
        Probability of every rank that it straggles, or stopped the job.
    threshold : float
        A rank is suspected at or above it.

    Notes
    -----
    A node's fault shows on all its ranks and a stage's on all of the stage's, so one of them may be likelier
    than its suspected ranks each for itself: every further component halves the belief in an explanation, and
    every rank inside speaks for or against it by its log-odds beyond the threshold's. Ranks that are hardly
    suspected are no rivals to a node that they are part of, unless nobody in it is suspected more. A stage,
    and where nearly everybody is suspected the job, is weighed against the best components inside it.
    """
    suspected = probability >= threshold
    odds = _odds(probability, threshold)
    alone = np.where(suspected, odds - FURTHER, 0.0)

    def gain(members: IntArray) -> float:
        """Log-odds of one component over its ranks for themselves: those that are worth it, or else all."""
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
    everybody = np.arange(topology.n_ranks)
    nearly_all = topology.n_ranks > 2 and suspected.mean() >= EVERYBODY
    if nearly_all and gain(everybody) > sum(best for best, _, _ in chosen.values()):
        return [_component("job", everybody, probability)]
    wholes = [_component(scope, members, probability) for _, scope, members in chosen.values()]
    return _by_probability(wholes, suspected & (part_of < 0), probability)


def exact_cover(guilty: BoolArray, probability: FloatArray, topology: Topology) -> list[Component]:
    """Put ranks that are known to be guilty, all others being innocent, into components that are wholly so.

    Parameters
    ----------
    guilty : ndarray of shape (n_ranks,), bool
    probability : ndarray of shape (n_ranks,)
        Straggler probability of every rank.
    """
    if topology.n_ranks > 2 and guilty.all():
        return [_component("job", np.arange(topology.n_ranks), probability)]
    found: list[Component] = []
    left = guilty.copy()
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
    """How far probabilities are above the threshold, in log-odds, at most `SUREST` either way."""
    held = np.clip(np.append(probability, threshold), 1e-9, 1.0 - 1e-9)
    odds = np.log(held / (1.0 - held))
    result: FloatArray = np.clip(odds[:-1] - odds[-1], -SUREST, SUREST)
    return result


def likely_among_all_ranks(components: Sequence[Component], n_ranks: int) -> list[Component]:
    """The likeliest component, and those beside it that are likely even among so many ranks.

    Parameters
    ----------
    components : sequence of Component
    n_ranks : int
        Of the job.

    Notes
    -----
    Somebody has to be slow in a slow job, so the likeliest needs no more. Of thousands of innocent ranks a
    few look guilty by chance: the models learned from at most `LEARNED_AMONG` of each window, so the odds of
    every other are corrected for the ranks they did not see (case-control sampling; King and Zeng, 2001). By
    how much depends on how many are guilty, which is what all the corrected odds together say (Saerens,
    Latinne and Decaestecker, 2002): twelve that look alike are less likely to be twelve accidents than one.
    """
    found = sorted(components, key=lambda component: (-component.probability, component.ranks))
    if not found:
        return []
    odds = np.array([each.probability / max(1.0 - each.probability, 1e-9) for each in found])
    sizes = np.array([len(each.ranks) for each in found])
    guilty = np.ones(sizes.size)
    for _ in range(MOST_ROUNDS):
        corrected = odds * np.minimum(1.0, LEARNED_AMONG * np.maximum(sizes, guilty) / n_ranks)
        chances = sizes * corrected / (1.0 + corrected)
        # Nobody speaks for himself, and the likeliest for nobody: somebody always is.
        chances[0] = 0.0
        guilty, before = np.maximum(1.0, chances.sum() - chances), guilty
        if np.allclose(guilty, before, atol=0.01):
            break
    return [each for place, each in enumerate(found) if place == 0 or corrected[place] >= 1.0]


def is_whole_stage(component: Component, topology: Topology) -> bool:
    """Whether the component is exactly one of several pipeline stages."""
    ranks = np.array(component.ranks)
    stages = np.unique(topology.stage[ranks])
    return topology.n_stages > 1 and stages.size == 1 and ranks.size == (topology.stage == stages[0]).sum()


def _candidates(topology: Topology) -> Iterator[tuple[Scope, IntArray]]:
    """Nodes, then stages over several nodes: what is inside another one comes first."""
    if len(topology.node_names) > 1:
        for node in range(len(topology.node_names)):
            members = np.flatnonzero(topology.node == node)
            if members.size > 1:
                yield "node", members
    if topology.n_stages > 1:
        width = topology.n_ranks // topology.n_stages
        for stage in range(topology.n_stages):
            members = np.flatnonzero(topology.stage == stage)
            spans_nodes = np.unique(topology.node[members]).size > 1 or (topology.node[members] < 0).any()
            if members.size == width > 1 and spans_nodes:
                yield "stage", members


def _component(scope: Scope, members: IntArray, probability: FloatArray) -> Component:
    ranks = tuple(int(rank) for rank in members)
    return Component(scope, ranks, float(probability[members].mean()))
