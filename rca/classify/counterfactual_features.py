"""Counterfactual features: the same window with the lateness of some ranks removed.

The latest rank sets the pace of the job and hides other faults: less late ranks wait for it. So its lateness
is removed from its own work, and the time that the job waited for it is removed from the steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from rca.arrays import FloatArray, IntArray
from rca.features.comparison import Comparison
from rca.features.extract import FeatureSet, collect_evidence, table_rows
from rca.features.post_stop_signals import PostStopSignals
from rca.features.resource_evidence import Evidence
from rca.features.work import Work
from rca.robust import REFERENCE_QUANTILE, nan_mean, nan_median, nan_quantile
from rca.telemetry.node_names import placed
from rca.telemetry.window import Window

#: The counterfactual job may be slow if its mean step exceeds its fast steps by this share, or if its last
#: rank or a stage still costs this share of a step.
MIN_UNEVEN_STEPS, MIN_REMAINING_COST = 0.06, 0.03


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


def _silenced(evidence: Evidence, ranks: IntArray) -> Evidence:
    """The evidence with unknown scores for some ranks."""
    scores_by_kind = {
        name: getattr(evidence, name).copy() for name in ("versus_peers", "versus_past", "versus_nominal")
    }
    for scores in scores_by_kind.values():
        scores[ranks] = np.nan
    return replace(evidence, **scores_by_kind)
