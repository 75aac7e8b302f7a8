"""The same window without the lateness of some ranks, and the suspects that only show there.

The latest rank sets the pace of the job and hides other faults: less late ranks wait for it. So its lateness
is removed from its own work, and the time that the job waited for it is removed from the steps. Removing
lateness leaves traces. So suspects of the counterfactual job need a higher probability than those of the job
itself, other ranks or another cause, and a cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from rca.arrays import BoolArray, FloatArray, IntArray
from rca.classify.components import Component, ComponentCause
from rca.classify.decision_table import CERTAIN_RESIDUAL
from rca.classify.link_evidence import LINK_CAUSES
from rca.features.comparison import Comparison
from rca.features.extract import FeatureSet, collect_evidence, table_rows
from rca.features.post_stop_signals import PostStopSignals
from rca.features.resource_evidence import ResourceEvidence
from rca.features.work import Work
from rca.robust import REFERENCE_QUANTILE, nan_mean, nan_median, nan_quantile
from rca.window.causes import CAUSES
from rca.window.job import Topology
from rca.window.node_names import placed
from rca.window.window import Window

#: The counterfactual job may be slow if its mean step exceeds its fast steps by this share, or if its last
#: rank or a stage still costs this share of a step.
MIN_UNEVEN_STEPS, MIN_REMAINING_COST = 0.06, 0.03
#: Least cost of a suspect of the counterfactual job, as a share of the step, in the slow steps of both jobs.
MIN_RESIDUAL_COST = 0.01
#: A stage may contain the first suspects if it has at least so many times their ranks.
WIDER = 2
#: Cause that a whole stage may have although one of its ranks has another fault.
_OF_THE_STAGE = "stage_imbalance"


@dataclass(frozen=True)
class Counterfactual:
    """The effect of some ranks' lateness on the job.

    Attributes
    ----------
    features : FeatureSet
        Of the window as it was.
    ranks : ndarray of shape (n_removed,), int
    excess : ndarray of shape (n_ranks, n_steps), seconds
        Own work above the reference of the counterfactual ranks; zero for the others.
    left : ndarray of shape (n_steps,), seconds
        Lateness of the last of the other ranks.
    saved : ndarray of shape (n_steps,), seconds
        How much shorter the job's steps become.
    """

    features: FeatureSet
    ranks: IntArray
    excess: FloatArray
    left: FloatArray
    saved: FloatArray

    @classmethod
    def of(cls, features: FeatureSet, ranks: Sequence[int]) -> Counterfactual:
        """Take the lateness of these ranks out of the job."""
        late = np.fmax(np.nan_to_num(features.comparison.excess), 0.0)
        counterfactual = np.array(sorted(ranks), dtype=np.int64)
        excess = np.zeros(late.shape)
        excess[counterfactual] = late[counterfactual]
        left = (late - excess).max(axis=0, initial=0.0)
        return cls(features, counterfactual, excess, left, late.max(axis=0, initial=0.0) - left)

    def is_still_slow(self) -> bool:
        """Whether the job may be slow without the lateness; if not, no feature has to be computed again."""
        if not self.left.size:
            return False
        step = self.features.work.job_step - self.saved
        quick = float(nan_quantile(step[:, None], REFERENCE_QUANTILE)[0])
        if float(nan_mean(step[:, None])[0]) - quick >= MIN_UNEVEN_STEPS * quick:
            return True
        stages = float(self.features.comparison.gain_stage.mean(axis=1).max(initial=0.0))
        return max(stages, float(self.left.mean())) >= MIN_REMAINING_COST * self.features.work.step_reference

    def features_without_lateness(self, window: Window) -> FeatureSet:
        """Features of the counterfactual job, without machine evidence of the counterfactual ranks.

        Parameters
        ----------
        window : Window
            The window of the features. The counterfactual job may be slow in other steps, so evidence is
            collected again from its metrics.
        """
        features, topology = self.features, self.features.topology
        work = self._work()
        comparison = Comparison.from_work(work, topology)
        signals, evidence = features.signals, features.evidence
        before, now = (each.segment.mask(work.steps.size) for each in (features.comparison, comparison))
        if not np.array_equal(before, now):
            signals, evidence, _, _ = collect_evidence(
                placed(window), work, comparison, features.job_end, topology
            )
        evidence = _silenced(evidence, self.ranks)
        per_rank, per_window = table_rows(
            work, comparison, evidence, features.job_end, topology, PostStopSignals.unknown(topology.n_ranks)
        )
        return replace(
            features,
            rank=per_rank,
            window=per_window,
            work=work,
            comparison=comparison,
            evidence=evidence,
            signals=signals,
        )

    def _work(self) -> Work:
        """Own work, phases, waiting and steps of the counterfactual job; transfers take as long as before."""
        work = self.features.work
        step = work.step - self.saved
        usual = float(nan_median(nan_median(step)[None, :], axis=1)[0])
        return replace(
            work,
            step=step,
            own=work.own - self.excess,
            wait=np.maximum(work.wait + self.excess - self.saved, 0.0),
            phases=self._phases(),
            step_reference=usual if usual > 0 else float("nan"),
        )

    def _phases(self) -> dict[str, FloatArray]:
        """Each phase without its excess over the peers, up to the total excess of the rank."""
        left, phases = self.excess[self.ranks], {}
        for name, seconds in self.features.work.phases.items():
            longer = np.fmax(np.nan_to_num(self.features.comparison.phase_excess[name][self.ranks]), 0.0)
            taken = np.minimum(longer, left)
            left = left - taken
            phases[name] = seconds.copy()
            phases[name][self.ranks] -= taken
        return phases


def _silenced(evidence: ResourceEvidence, ranks: IntArray) -> ResourceEvidence:
    """The evidence with unknown scores for some ranks."""
    scores_by_kind = {
        name: getattr(evidence, name).copy() for name in ("versus_peers", "versus_past", "versus_nominal")
    }
    for scores in scores_by_kind.values():
        scores[ranks] = np.nan
    return replace(evidence, **scores_by_kind)


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
    # Transfers are unchanged in the counterfactual job; `link_evidence` looks for link faults.
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
