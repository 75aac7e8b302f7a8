"""What a job still suffers from were its first suspects like their peers: a second fault that they hide.

A mended job is asked like any other. It bears traces of what was taken out of it, so what it says has to be
likelier than what is said of a job as it was, about somebody or something else, and has to cost something.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rca.arrays import BoolArray, IntArray
from rca.classify.components import Component
from rca.classify.link_evidence import LINK_CAUSES, Suspected
from rca.features import FeatureSet
from rca.telemetry.causes import CAUSES
from rca.telemetry.job import Topology

#: Least belief in a fault of the mended job: that its ranks straggle times that it is this cause.
SURE = 0.7
#: ... and the least that some ranks cost the mended job, in its slow steps and in those of the job as it was.
COSTLY = 0.01
#: A stage of at least so many times the first suspects' ranks may hold them: it is late whatever they do.
WIDER = 2
#: What a whole stage shares although one of its ranks has a fault of its own.
_OF_THE_STAGE = "stage_imbalance"


def is_left_over(
    each: Suspected, belief: float, first: Sequence[Suspected], features: FeatureSet, mended: FeatureSet
) -> bool:
    """Whether a suspect of the mended job is told beside those that were mended.

    Parameters
    ----------
    each : Suspected
        Of the mended job.
    belief : float
        In its cause.
    first : sequence of Suspected
        Whose lateness was taken out.
    features, mended : FeatureSet
        Of the job as it was, and of the mended one.
    """
    if each.cause not in CAUSES or each.component.probability * belief < SURE:
        return False
    # Moving data takes as long as it did, and links have rules of their own.
    if each.cause in LINK_CAUSES:
        return False
    if each.component.scope == "job":
        return all(each.cause != other.cause for other in first)
    if any(other.cause in LINK_CAUSES for other in first):
        # Waiting for a link is not in anybody's own work, so it could not be taken out.
        return False
    ranks = np.array([rank for other in first for rank in other.component.ranks])
    apart = _is_elsewhere(each.component, ranks, mended.topology)
    # Its evidence is of the mended job's slow steps, and its price of the job's.
    slow = [job.comparison.segment.mask(job.work.steps.size) for job in (features, mended)]
    costs = min(cost(each.component, mended, steps) for steps in slow)
    return (apart or _is_their_stage(each, ranks)) and costs >= COSTLY


def cost(component: Component, features: FeatureSet, inside: BoolArray) -> float:
    """What some steps would be shorter by without the lateness of some ranks, their node or stage; in steps.

    Parameters
    ----------
    component : Component
    features : FeatureSet
    inside : ndarray of shape (n_steps,), bool
    """
    comparison = features.comparison
    ranks = list(component.ranks)
    stages = np.unique(features.topology.stage[ranks])
    # A stage is late as a whole only where all of its ranks are meant.
    whole = [comparison.gain_stage[stages]] if component.scope == "stage" and stages.size == 1 else []
    gains = [comparison.gain_rank[ranks].sum(axis=0, keepdims=True), comparison.gain_node[ranks], *whole]
    saved = max(float(gain[:, inside].mean(axis=1).max()) for gain in gains)
    return saved / features.work.step_reference


def _is_elsewhere(component: Component, mended: IntArray, topology: Topology) -> bool:
    """Whether none of its ranks was mended, nor works in lock-step with one that was."""
    worker = topology.worker
    return not np.isin(worker[list(component.ranks)], worker[mended]).any()


def _is_their_stage(each: Suspected, mended: IntArray) -> bool:
    ranks = each.component.ranks
    holds = set(mended.tolist()) < set(ranks) and len(ranks) >= WIDER * mended.size
    return each.cause == _OF_THE_STAGE and holds
