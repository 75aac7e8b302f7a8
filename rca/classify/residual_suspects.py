"""What a job still suffers from were its first suspects like their peers: a second fault that they hide.

Removing lateness leaves traces in the counterfactual job. So a suspect of it needs more probability than one
of the job as it was, other ranks or another cause, and a cost.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rca.arrays import BoolArray, IntArray
from rca.classify.components import Component
from rca.classify.link_evidence import LINK_CAUSES, ComponentCause
from rca.features import FeatureSet
from rca.telemetry.causes import CAUSES
from rca.telemetry.job import Topology

#: Least belief in a fault of the counterfactual job: that its ranks straggle times that it is this cause.
CERTAIN_RESIDUAL = 0.7
#: ... and least cost of its ranks, relative to the step, in the slow steps of both jobs.
MIN_RESIDUAL_COST = 0.01
#: A stage of at least so many times the first suspects' ranks may hold them: it is late whatever they do.
WIDER = 2
#: What a whole stage shares although one of its ranks has a fault of its own.
_OF_THE_STAGE = "stage_imbalance"


def is_residual_suspect(
    each: ComponentCause,
    belief: float,
    first: Sequence[ComponentCause],
    features: FeatureSet,
    counterfactual: FeatureSet,
) -> bool:
    """Whether a suspect of the counterfactual job is told beside those that were counterfactual.

    Parameters
    ----------
    each : ComponentCause
        Of the counterfactual job.
    belief : float
        In its cause.
    first : sequence of ComponentCause
        Whose lateness was taken out.
    features, counterfactual : FeatureSet
        Of the job as it was, and of the counterfactual one.
    """
    if each.cause not in CAUSES or each.component.probability * belief < CERTAIN_RESIDUAL:
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
    apart = _is_elsewhere(each.component, ranks, counterfactual.topology)
    # Its evidence is of the counterfactual job's slow steps, and its price of the job's.
    slow = [job.comparison.segment.mask(job.work.steps.size) for job in (features, counterfactual)]
    costs = min(cost(each.component, counterfactual, steps) for steps in slow)
    return (apart or _is_their_stage(each, ranks)) and costs >= MIN_RESIDUAL_COST


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


def _is_elsewhere(component: Component, counterfactual: IntArray, topology: Topology) -> bool:
    """Whether none of its ranks was counterfactual, nor works in lock-step with one that was."""
    worker = topology.worker
    return not np.isin(worker[list(component.ranks)], worker[counterfactual]).any()


def _is_their_stage(each: ComponentCause, counterfactual: IntArray) -> bool:
    ranks = each.component.ranks
    holds = set(counterfactual.tolist()) < set(ranks) and len(ranks) >= WIDER * counterfactual.size
    return each.cause == _OF_THE_STAGE and holds
