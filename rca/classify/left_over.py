"""What a job still suffers from were its first suspects like their peers: a second fault that they hide.

A mended job is asked like any other. It bears traces of what was taken out of it, so what it says has to be
likelier than what is said of a job as it was, and about somebody, or something, else.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rca.classify.components import Component
from rca.classify.ports import LINK_CAUSES, Suspected
from rca.telemetry.causes import CAUSES
from rca.telemetry.job import Topology

#: Least belief in a fault of the mended job: that its ranks straggle times that it is this cause.
SURE = 0.7
#: A stage of at least so many times the first suspects' ranks may hold them: it is late whatever they do.
WIDER = 2
#: What a whole stage shares although one of its ranks has a fault of its own.
_OF_THE_STAGE = "stage_imbalance"


def is_left_over(each: Suspected, belief: float, first: Sequence[Suspected], topology: Topology) -> bool:
    """Whether a suspect of the mended job is told beside those that were mended.

    Parameters
    ----------
    each : Suspected
        Of the mended job.
    belief : float
        In its cause.
    first : sequence of Suspected
        Whose lateness was taken out.
    topology : Topology
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
    mended = np.array([rank for other in first for rank in other.component.ranks])
    return _is_elsewhere(each.component, mended, topology) or (
        each.cause == _OF_THE_STAGE and _holds(each.component, mended)
    )


def _is_elsewhere(component: Component, mended: np.ndarray, topology: Topology) -> bool:
    """Whether none of its ranks was mended, nor works in lock-step with one that was."""
    worker = topology.worker
    return bool(np.isin(worker[list(component.ranks)], worker[mended]).sum() == 0)


def _holds(component: Component, mended: np.ndarray) -> bool:
    return set(mended.tolist()) < set(component.ranks) and len(component.ranks) >= WIDER * mended.size
