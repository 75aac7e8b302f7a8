"""Pool stragglers of one cause into one player: a certain cause on several, and any if there are too many.

A collective waits for the last rank, so removing one of eight equal stragglers saves nothing. Only coalitions
with all of them show the cost, and coalitions are enumerated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from rca.arrays import FloatArray, IntArray
from rca.causal.attribution import RemovedCause
from rca.classify.decision_table import CERTAIN_SAME_CAUSE
from rca.window.causes import UNKNOWN


@dataclass(frozen=True)
class PricedCause:
    """One removal with its result in the replay.

    Attributes
    ----------
    suspects : tuple of int
        Indices of its suspects; several where they were pooled.
    belief : float
        Probability that these ranks straggle because of this cause, given the mechanisms.
    phases : dict of str to float, seconds per step
        Mean excess per phase that the cause explains, on its ranks.
    coverage : float
        Share of its ranks' whole excess that this is, 0 to 1.
    """

    removal: RemovedCause
    suspects: tuple[int, ...]
    belief: float
    phases: dict[str, float]
    coverage: float

    @property
    def without_price(self) -> bool:
        """Whether its cost is unknown: it explains no phase."""
        return not self.phases


def one_fault_each(causes: Sequence[PricedCause]) -> list[PricedCause]:
    """The causes, with a certain cause of several suspects pooled into one, on whatever nodes.

    Two devices of one bad batch, or two nodes of one hot aisle, get one line with one price. Suspects that
    share a rank are alternatives: then all suspects of that cause stay separate.
    """
    groups: dict[str, list[PricedCause]] = {}
    for cause in causes:
        if cause.belief >= CERTAIN_SAME_CAUSE and cause.removal.cause != UNKNOWN:
            groups.setdefault(cause.removal.cause, []).append(cause)
    pooled = [group for group in groups.values() if len(group) > 1 and _are_disjoint(group)]
    members = {id(cause) for group in pooled for cause in group}
    # The least certain comes first: the pool has its probability.
    faults = [_together(sorted(group, key=lambda each: each.belief)) for group in pooled]
    return [*faults, *(cause for cause in causes if id(cause) not in members)]


def affordable_causes(causes: Sequence[PricedCause], limit: int) -> list[PricedCause]:
    """At most `limit` causes; suspects of one cause are pooled if there are more suspects than that.

    Parameters
    ----------
    causes : sequence of PricedCause
        The weightiest first.
    """
    if len(causes) <= limit or len({suspect for cause in causes for suspect in cause.suspects}) <= limit:
        return list(causes[:limit])
    groups: dict[str, list[PricedCause]] = {}
    for cause in causes:
        groups.setdefault(cause.removal.cause, []).append(cause)
    pooled = [
        replace(_together(group), belief=max(each.belief for each in group)) for group in groups.values()
    ]
    return pooled[:limit]


def _are_disjoint(group: Sequence[PricedCause]) -> bool:
    ranks = [rank for each in group for rank in each.removal.ranks]
    return len(set(ranks)) == len(ranks)


def _together(group: list[PricedCause]) -> PricedCause:
    """One cause for all of a group, with the probability of its first."""
    if len(group) == 1:
        return group[0]
    ranks = np.concatenate([each.removal.ranks for each in group])
    weights = np.array([len(each.removal.ranks) for each in group]) / ranks.size
    # Components may overlap: for a rank in two of them only the larger removal counts.
    kept = np.unique(ranks)
    first = group[0].removal
    removal = RemovedCause(
        first.cause,
        tuple(int(rank) for rank in kept),
        _largest(ranks, kept, [each.removal.own for each in group]),
        np.sum([each.removal.transfer for each in group], axis=0),
        _largest(ranks, kept, [_serial(each.removal) for each in group]),
    )
    names = {name for each in group for name in each.phases}
    return replace(
        group[0],
        removal=removal,
        suspects=tuple(sorted({suspect for each in group for suspect in each.suspects})),
        phases={
            name: float(weights @ [each.phases.get(name, 0.0) for each in group]) for name in sorted(names)
        },
        coverage=float(weights @ [each.coverage for each in group]),
    )


def _serial(removal: RemovedCause) -> FloatArray:
    return np.zeros(removal.own.shape) if removal.serial is None else removal.serial


def _largest(ranks: IntArray, kept: IntArray, parts: list[FloatArray]) -> FloatArray:
    """Stack the parts' rows by rank, shape (n_kept, n_steps)."""
    stacked = np.concatenate(parts)
    found = np.zeros((kept.size, stacked.shape[1]))
    np.maximum.at(found, np.searchsorted(kept, ranks), stacked)
    return found
