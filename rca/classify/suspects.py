"""The suspects of a window: the whole job, the smallest components that cover suspected ranks, or outliers.

Some symptoms belong to the job: garbage collection, checkpoints and slow collectives on all ranks. A job may
show them while one rank makes it slow. A rank is an outlier if it is nearly certain to straggle and the other
ranks are not suspected. Without it the last arrival would come clearly earlier. The job is a suspect as well
if a job-wide cause is likely, or if its steps are slower than the outliers explain.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rca.arrays import BoolArray, FloatArray
from rca.classify.components import Component, cover, exact_cover, likely_among_all_ranks
from rca.classify.decision_table import (
    CERTAIN_STRAGGLER,
    CERTAIN_TYPE,
    JOB_CAUSE_CERTAIN,
    LEFT_BEHIND,
    LIKELIER_THAN_NOT,
    MAX_OUTLIER_SHARE,
    NAMED_BY_EVENTS,
    NOT_SUSPECTED,
    POINTED_TO,
)
from rca.classify.head import Head
from rca.classify.link_evidence import transfer_grew
from rca.classify.preconditions import stopped_within_a_step
from rca.classify.stop_origin import stop_origin
from rca.features import WINDOW_FEATURES, FeatureSet
from rca.robust import REFERENCE_QUANTILE, nan_max, nan_mean, nan_quantile, zero_if_nan

#: Least number of slow steps.
MIN_SLOW_STEPS = 10
#: Without the outliers the last arrival comes earlier by at least this share of a step.
MIN_LATENESS_REMOVED = 0.03
#: Slowdown that the outliers do not explain and that makes the job a suspect, as a share of a step.
MIN_RESIDUAL_SLOWDOWN = 0.1
#: A job-wide cause that every job shows.
COMMON_JOB_CAUSE = "runtime_gc"
#: Most separate components of an answer.
MAX_COMPONENTS = 16
#: A machine's score against peers that shows why its ranks are late, where no timer does, in units.
SHOWN = 2.0
_MEASURED = WINDOW_FEATURES.index("communication_measured")


def outlier_ranks_of(per_rank: FloatArray, features: FeatureSet) -> BoolArray:
    """Ranks without which the job would be faster, shape (n_ranks,); all false if there is no outlier.

    Parameters
    ----------
    per_rank : ndarray of shape (n_ranks,)
        Straggler probability.
    """
    certain: BoolArray = per_rank.ravel() >= CERTAIN_STRAGGLER
    none = np.zeros(per_rank.size, dtype=bool)
    few = certain.any() and certain.mean() <= MAX_OUTLIER_SHARE and per_rank[~certain].max() <= NOT_SUSPECTED
    segment = features.comparison.segment
    # With uneven batches the same rank is sometimes last in a few steps by chance.
    if not few or segment.last - segment.first + 1 < MIN_SLOW_STEPS:
        return none
    removed = _lateness_removed(certain, features)
    return certain if removed >= MIN_LATENESS_REMOVED * features.work.step_reference else none


def job_is_suspect(causes: Mapping[str, float], named: list[int], features: FeatureSet) -> bool:
    """Whether the job as a whole is a suspect next to its outlier ranks.

    Parameters
    ----------
    causes : mapping of cause to float
        Probabilities of the job's causes, the likeliest first.
    named : list of int
        The outlier ranks.
    """
    first = next(iter(causes), None)
    if first is not None and first != COMMON_JOB_CAUSE and causes[first] >= JOB_CAUSE_CERTAIN:
        return True
    outliers = np.isin(np.arange(features.topology.n_ranks), named)
    longer = _longer(features) - _lateness_removed(outliers, features, newly=True)
    return longer >= MIN_RESIDUAL_SLOWDOWN * features.work.step_reference


def _longer(features: FeatureSet) -> float:
    """Seconds by which the slow steps are longer than the others; if all are slow, than the quick ones."""
    step = features.work.job_step
    inside = features.comparison.segment.mask(step.size)
    others, share = (step, REFERENCE_QUANTILE) if inside.all() else (step[~inside], 0.5)
    usual = float(nan_quantile(others[:, None], share)[0])
    return float(nan_mean(step[inside][:, None])[0]) - min(usual, features.work.step_reference)


def _lateness_removed(outliers: BoolArray, features: FeatureSet, *, newly: bool = False) -> float:
    """Seconds per slow step by which the last rank arrives later than the last non-outlier.

    Ranks of a heavy stage are as late as their peers, so the stage is compared with the next slowest. With
    `newly`, its difference outside the slow segment is subtracted.
    """
    excess, stage = features.comparison.excess, features.topology.stage
    inside = features.comparison.segment.mask(excess.shape[1])
    if features.topology.n_stages > 1 and (stage[outliers] == stage[outliers][0]).all():
        heavy = int(stage[outliers][0])
        if outliers[stage == heavy].all():
            gain = features.comparison.gain_stage[heavy]
            always = float(np.median(gain[~inside])) if newly and not inside.all() else 0.0
            return float(nan_mean(gain[inside][:, None])[0]) - always
    last = np.maximum(nan_max(excess[:, inside]), 0.0)
    others = np.maximum(nan_max(excess[~outliers][:, inside]), 0.0)
    return float(nan_mean((last - others)[:, None])[0])


@dataclass(frozen=True)
class Suspicion:
    """Finds the suspects of one window.

    Attributes
    ----------
    heads : mapping of str to Head
        ``scope`` and ``type`` of the classifier.
    threshold : float
        Probability from which a rank is suspected.
    per_rank : ndarray of shape (n_ranks,)
        Probability that a rank straggles, or stopped the job.
    """

    heads: Mapping[str, Head]
    threshold: float
    features: FeatureSet
    per_rank: FloatArray

    def of_a_slow_job(self) -> list[Component]:
        """Components that may have slowed the job, the most probable first; the whole job comes last."""
        components = self._whole_or_parts()
        if np.isfinite(self.features.work.own).any():
            return components
        # Whole steps are equally long on all ranks: several of them are suspects if their machines show why.
        loudest = zero_if_nan(nan_max(self.features.evidence.versus_peers, axis=1))
        return [
            each
            for each in components
            if len(each.ranks) == 1 or each.scope == "job" or loudest[list(each.ranks)].min() >= SHOWN
        ]

    def _whole_or_parts(self) -> list[Component]:
        if (slowed := self.features.comparison.slowed) is not None:
            slow_ranks = tuple(int(rank) for rank in np.flatnonzero(slowed))
            return [Component("rank", slow_ranks, max(float(self.per_rank[slowed].mean()), POINTED_TO))]
        whole = float(self.heads["scope"].probabilities(self.features.window[None, :])[0, 1])
        if whole >= LIKELIER_THAN_NOT:
            job = Component("job", tuple(range(self.per_rank.size)), whole)
            outliers = outlier_ranks_of(self.per_rank, self.features)
            if not outliers.any():
                return [job]
            return [*exact_cover(outliers, self.per_rank, self.features.topology), job]
        return self._by_ranks()

    def of_a_stopped_job(self) -> list[Component]:
        """Components that may have stopped the job: the origin by the events, else the model's suspects."""
        if (began := self.features.job_end.origin).any():
            chances = np.where(began, np.maximum(self.per_rank, NAMED_BY_EVENTS), 0.0)
            return exact_cover(began, chances, self.features.topology)
        if stopped_within_a_step(self.features):
            chances = np.where(self.features.job_end.left_behind, np.maximum(self.per_rank, LEFT_BEHIND), 0.0)
            return stop_origin(cover(chances, LEFT_BEHIND, self.features.topology), self.features)
        lost = self.features.job_end.lost
        chances = self.per_rank if lost.all() else np.where(lost, 0.0, self.per_rank)
        components = cover(chances, self.threshold, self.features.topology)
        return likely_among_all_ranks(stop_origin(components, self.features), self.per_rank.size)

    def _by_ranks(self) -> list[Component]:
        found = cover(self.per_rank, self.threshold, self.features.topology)
        components = [part for component in found for part in self._parts(component)]
        if components:
            return likely_among_all_ranks(components[:MAX_COMPONENTS], self.per_rank.size)
        if not transfer_grew(self.features):
            return []
        return [Component("job", tuple(range(self.per_rank.size)), POINTED_TO)]

    def _parts(self, component: Component) -> list[Component]:
        """The ranks of a node with two faults; any other component as it is."""
        if component.scope != "node":
            return [component]
        chances = self.heads["type"].probabilities(self.features.rank[list(component.ranks)])
        likeliest = chances.argmax(axis=1)
        if chances.max(axis=1).min() < CERTAIN_TYPE or (likeliest == likeliest[0]).all():
            return [component]
        return [Component("rank", (rank,), float(self.per_rank[rank])) for rank in component.ranks]


def most_probable(components: list[Component]) -> tuple[list[Component], int]:
    """The first `MAX_COMPONENTS` components and the job as a whole, and how many others there are."""
    parts = [each for each in components if each.scope != "job"]
    whole = [each for each in components if each.scope == "job"]
    return [*parts[:MAX_COMPONENTS], *whole], max(len(parts) - MAX_COMPONENTS, 0)


def own_work_is_timed(ranks: Sequence[int], features: FeatureSet) -> bool:
    """Whether timers separate own work from waiting on any of these ranks.

    They do not where communication has no timer: then steps, or the phase with the waiting, are equally long
    on all ranks. Nor do they for ranks without rows, where one rank reports for its node.
    """
    return bool(features.window[_MEASURED] > 0 and np.isfinite(features.work.own[list(ranks)]).any())
