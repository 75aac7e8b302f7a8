"""Residual suspects: a second fault that shows once the lateness of the first suspects is removed.

Removing lateness leaves traces in the counterfactual job. So its suspects need a higher probability than
those of the job itself, other ranks or another cause, and a cost.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rca.arrays import BoolArray, IntArray
from rca.classify.components import Component
from rca.classify.decision_table import CERTAIN_RESIDUAL
from rca.classify.link_evidence import LINK_CAUSES, ComponentCause
from rca.features import FeatureSet
from rca.telemetry.causes import CAUSES
from rca.telemetry.job import Topology

#: ... and least cost of its ranks, relative to the step, in the slow steps of both jobs.
MIN_RESIDUAL_COST = 0.01
#: A stage may contain the first suspects if it has at least so many times their ranks.
WIDER = 2
#: Cause that a whole stage may have although one of its ranks has another fault.
_OF_THE_STAGE = "stage_imbalance"


def is_residual_suspect(
    each: ComponentCause,
    belief: float,
    first: Sequence[ComponentCause],
    features: FeatureSet,
    counterfactual: FeatureSet,
) -> bool:
    """Whether a suspect of the counterfactual job is added to the first suspects.

    Parameters
    ----------
    each : ComponentCause
        Of the counterfactual job.
    belief : float
        Probability of its cause.
    first : sequence of ComponentCause
        The suspects whose lateness was removed.
    features, counterfactual : FeatureSet
        Of the job itself, and of the counterfactual job.
    """
    if each.cause not in CAUSES or each.component.probability * belief < CERTAIN_RESIDUAL:
        return False
    # Transfers are unchanged in the counterfactual job; `link_beside_straggler` looks for link faults.
    if each.cause in LINK_CAUSES:
        return False
    if each.component.scope == "job":
        return all(each.cause != other.cause for other in first)
    if any(other.cause in LINK_CAUSES for other in first):
        # Waiting for a link is not part of own work, so it was not removed.
        return False
    ranks = np.array([rank for other in first for rank in other.component.ranks])
    apart = _is_elsewhere(each.component, ranks, counterfactual.topology)
    # The evidence is of the counterfactual job's slow steps, the price of the job's slow steps.
    slow = [job.comparison.segment.mask(job.work.steps.size) for job in (features, counterfactual)]
    costs = min(cost(each.component, counterfactual, steps) for steps in slow)
    return (apart or _is_their_stage(each, ranks)) and costs >= MIN_RESIDUAL_COST


def cost(component: Component, features: FeatureSet, inside: BoolArray) -> float:
    """Time saved in some steps without the lateness of some ranks, their node or stage; in usual steps.

    Parameters
    ----------
    component : Component
    features : FeatureSet
    inside : ndarray of shape (n_steps,), bool
    """
    comparison = features.comparison
    ranks = list(component.ranks)
    stages = np.unique(features.topology.stage[ranks])
    # The stage's lateness counts only if the component is the whole stage.
    whole = [comparison.gain_stage[stages]] if component.scope == "stage" and stages.size == 1 else []
    gains = [comparison.gain_rank[ranks].sum(axis=0, keepdims=True), comparison.gain_node[ranks], *whole]
    saved = max(float(gain[:, inside].mean(axis=1).max()) for gain in gains)
    return saved / features.work.step_reference


def _is_elsewhere(component: Component, counterfactual: IntArray, topology: Topology) -> bool:
    """Whether none of its ranks is counterfactual or in lock-step with a counterfactual rank."""
    worker = topology.worker
    return not np.isin(worker[list(component.ranks)], worker[counterfactual]).any()


def _is_their_stage(each: ComponentCause, counterfactual: IntArray) -> bool:
    ranks = each.component.ranks
    holds = set(counterfactual.tolist()) < set(ranks) and len(ranks) >= WIDER * counterfactual.size
    return each.cause == _OF_THE_STAGE and holds
