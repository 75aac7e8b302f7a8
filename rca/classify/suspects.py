"""The suspects of a window: the whole job, or the smallest components that cover suspected ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rca.arrays import FloatArray
from rca.classify.components import Component, cover, likely_among_all_ranks
from rca.classify.decision_table import (
    CERTAIN_TYPE,
    LEFT_BEHIND,
    LIKELIER_THAN_NOT,
    NAMED_BY_EVENTS,
    POINTED_TO,
)
from rca.classify.head import Head
from rca.classify.link_evidence import (
    transfer_grew,
)
from rca.classify.preconditions import stopped_within_a_step
from rca.features import WINDOW_FEATURES, FeatureSet
from rca.robust import nan_max, zero_if_nan

#: Most separate components of an answer.
MAX_COMPONENTS = 16
#: A machine's score against peers that shows why its ranks are late, where no timer does, in units.
SHOWN = 2.0
_MEASURED = WINDOW_FEATURES.index("communication_measured")


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
        """Components that may have slowed the job: the whole job, or parts, the most probable first."""
        if (slowed := self.features.comparison.slowed) is not None:
            slow_ranks = tuple(int(rank) for rank in np.flatnonzero(slowed))
            return [Component("rank", slow_ranks, max(float(self.per_rank[slowed].mean()), POINTED_TO))]
        whole = float(self.heads["scope"].probabilities(self.features.window[None, :])[0, 1])
        if whole >= LIKELIER_THAN_NOT:
            return [Component("job", tuple(range(self.per_rank.size)), whole)]
        components = self._by_ranks()
        if np.isfinite(self.features.work.own).any():
            return components
        # Whole steps are equally long on all ranks: several of them are suspects if their machines show why.
        loudest = zero_if_nan(nan_max(self.features.evidence.versus_peers, axis=1))
        return [
            each
            for each in components
            if len(each.ranks) == 1 or each.scope == "job" or loudest[list(each.ranks)].min() >= SHOWN
        ]

    def of_a_stopped_job(self) -> list[Component]:
        """Components that may have stopped the job: the origin by the events, else the model's suspects."""
        if (began := self.features.job_end.origin).any():
            chances = np.where(began, np.maximum(self.per_rank, NAMED_BY_EVENTS), 0.0)
            return cover(chances, LIKELIER_THAN_NOT, self.features.topology)
        if stopped_within_a_step(self.features):
            chances = np.where(self.features.job_end.left_behind, np.maximum(self.per_rank, LEFT_BEHIND), 0.0)
            return cover(chances, LEFT_BEHIND, self.features.topology)
        lost = self.features.job_end.lost
        chances = self.per_rank if lost.all() else np.where(lost, 0.0, self.per_rank)
        components = cover(chances, self.threshold, self.features.topology)
        return likely_among_all_ranks(components, self.per_rank.size)

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


def own_work_is_timed(ranks: Sequence[int], features: FeatureSet) -> bool:
    """Whether timers separate own work from waiting on any of these ranks.

    They do not where communication has no timer: then steps, or the phase with the waiting, are equally long
    on all ranks. Nor do they for ranks without rows, where one rank reports for its node.
    """
    return bool(features.window[_MEASURED] > 0 and np.isfinite(features.work.own[list(ranks)]).any())
