"""What machine signals say for and against the causes of a suspect.

Slow compute looks the same for every cause. The classifier then chooses the usual cause, even where its
signal, for example the GPU clock, was measured and is normal. Its models learned the signals of simulated
faults. Real faults may show others: steal and nothing else, a clock that falls without heat. So one loud
resource, or one long phase, decides where the classifier is not certain.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rca.arrays import BoolArray, FloatArray
from rca.causal.scores import BusyEvidence
from rca.classify.beliefs import ordered, types_of
from rca.classify.classifier import Suspect
from rca.classify.decision_table import CONTRADICTED_FACTOR, CORROBORATED, UNSURE
from rca.features import RANK_FEATURES, FeatureSet
from rca.features.resource_evidence import resource_names
from rca.robust import nan_max, nan_median
from rca.window.causes import CAUSES, DECIDING, UNKNOWN

#: Scores below this are normal, in units. It is below 1 (remarkable) because mild faults score less than 1.
MAX_NORMAL_SCORE = 0.3
#: Other ranks are closer to nominal if this share of them has at most this part of the suspects' score.
CLOSER_RANKS, CLOSER_SCORE = 0.2, 0.5
#: A device that is busier than this, for the time its rank computes, also works for another process.
OTHERS_WORK = 1.0
_ACTIVITY = RANK_FEATURES.index("activity_per_compute")
#: Scores from here on are loud, in units (1 is remarkable).
LOUD_SCORE = 2.0
#: The loudest resource decides if its score is so many times those of other causes' resources.
LOUDEST = 2.0
#: Least weight of a cause of the loud resource or phase.
NOT_AT_ALL = 1e-3
FABRIC = "fabric"
#: A phase decides if it has this share of the ranks' excess, and the excess is this share of a step.
NEARLY_ALL, MIN_EXCESS = 0.75, 0.02
_OWN_EXCESS = RANK_FEATURES.index("own_time_excess")
#: Phases that are the only phase of some causes -> column of their excess.
_PHASES = {phase: RANK_FEATURES.index(f"{phase}_excess") for phase in ("data_loading", "checkpoint")}
#: Resources that change with many faults, or without one, and so decide nothing on their own.
UNSPECIFIC = frozenset({"gpu_heat", "gpu_activity", "stopped", "tcp", FABRIC})


def contradicted(suspect: Suspect, features: FeatureSet, busy: BusyEvidence) -> Suspect:
    """The suspect with lower probabilities of contradicted causes; the other causes do not gain."""
    ranks = list(suspect.component.ranks)
    unlike = most_unlike(ranks, features, busy)
    if is_its_own(features.rank[ranks, _ACTIVITY]):
        unlike[resource_names().index("gpu_activity")] = 0.0
    weighed = {
        cause: chance * (CONTRADICTED_FACTOR if is_contradicted(cause, unlike) else 1.0)
        for cause, chance in suspect.causes.items()
    }
    return replace(suspect, causes=ordered(weighed))


def is_its_own(activity: FloatArray) -> bool:
    """Whether the devices work for their own rank only (activity per compute); false if unknown."""
    return bool(np.isfinite(activity).any() and np.nanmedian(activity) < OTHERS_WORK)


def is_contradicted(cause: str, unlike: FloatArray) -> bool:
    """Whether every resource that the cause always affects was measured on its ranks and is normal.

    Parameters
    ----------
    unlike : ndarray of shape (n_resources,), units
        From `most_unlike`.
    """
    if cause not in DECIDING:
        return False
    worst = unlike[[resource_names().index(name) for name in DECIDING[cause]]]
    return bool(np.isfinite(worst).all() and (worst < MAX_NORMAL_SCORE).all())


def most_unlike(ranks: list[int], features: FeatureSet, busy: BusyEvidence) -> FloatArray:
    """Largest score of every resource over ranks, against peers, past or nominal values, (n_resources,).

    A score against the nominal value counts only if some peers are closer to it, or if there are no peers.
    Where most ranks are suspected they are their own peers, so a score against peers alone proves nothing.
    """
    peers, past = busy.versus_peers[ranks], busy.versus_past[ranks]
    nominal = features.evidence.versus_nominal[ranks]
    if 2 * len(ranks) <= features.topology.n_ranks:
        alike = np.isfinite(peers) & ~_others_are_closer_to_nominal(nominal, ranks, features)
        return nan_max(np.fmax(np.fmax(peers, past), np.where(alike, np.nan, nominal)))
    others = np.fmax(past, nominal)
    return nan_max(np.where(np.isfinite(others), np.fmax(peers, others), np.nan))


def _others_are_closer_to_nominal(nominal: FloatArray, ranks: list[int], features: FeatureSet) -> BoolArray:
    """Whether enough others are closer to nominal than the suspects' worst, (n_resources,); true if unknown.

    The others are the ranks of other nodes, if there are any, because a node's metrics show on all its ranks.
    """
    node = features.topology.node
    elsewhere = np.flatnonzero(~np.isin(node, node[ranks]))
    others = elsewhere if elsewhere.size else np.setdiff1d(np.arange(node.size), ranks)
    shown = features.evidence.versus_nominal[others]
    closer = (shown <= CLOSER_SCORE * nan_max(nominal)).sum(axis=0)
    return np.asarray(closer >= CLOSER_RANKS * np.isfinite(shown).sum(axis=0))


def with_machine_evidence(suspect: Suspect, features: FeatureSet, busy: BusyEvidence) -> Suspect:
    """The suspect with more belief in causes whose signals are loud, and less in those whose are normal."""
    return contradicted(corroborated(suspect, features, busy), features, busy)


def corroborated(suspect: Suspect, features: FeatureSet, busy: BusyEvidence) -> Suspect:
    """The suspect with more belief in causes of the one loud resource or phase, if none is certain."""
    beliefs, ranks = suspect.causes, list(suspect.component.ranks)
    first = next(iter(beliefs), None)
    if first is None or (first != UNKNOWN and beliefs[first] >= UNSURE):
        return suspect
    # If most ranks are suspects, they are their own peers, and all wait more than before, so no machine is
    # loud. The fabric still is if switches mark more packets than before although fewer are sent.
    if 2 * len(ranks) > features.topology.n_ranks:
        shown = _causes_of_loud_fabric(busy.versus_past[ranks])
    else:
        shown = causes_of_loudest_resource(_usual_score(ranks, features, busy))
    # For a link suspect the classifier has already ruled out other causes.
    shown = shown & beliefs.keys() or _causes_of_one_phase(features.rank[ranks]) & beliefs.keys()
    if not shown or sum(beliefs[cause] for cause in shown) >= CORROBORATED:
        return suspect
    causes = _shared(beliefs, shown)
    return replace(suspect, causes=causes, types=types_of(causes))


def causes_of_loudest_resource(scores: FloatArray) -> frozenset[str]:
    """Causes of the loud resources, if all have the same causes or one is far louder; else none.

    Parameters
    ----------
    scores : ndarray of shape (n_resources,), units
    """
    families: dict[frozenset[str], float] = {}
    for name, score in zip(resource_names(), scores, strict=True):
        if score >= LOUD_SCORE and name not in UNSPECIFIC:
            families[_affecting(name)] = max(families.get(_affecting(name), 0.0), float(score))
    if not families:
        return frozenset()
    loudest, *others = sorted(families, key=families.__getitem__, reverse=True)
    far_louder = all(families[loudest] >= LOUDEST * families[other] for other in others)
    return loudest if far_louder else frozenset()


def _affecting(resource: str) -> frozenset[str]:
    return frozenset(cause for cause, spec in CAUSES.items() if resource in spec.resources)


def _causes_of_loud_fabric(past: FloatArray) -> frozenset[str]:
    """The fabric's causes, if most ranks with a score have a loud one; `past` is (n_ranks, n_resources)."""
    score = nan_median(past)[resource_names().index(FABRIC)]
    return _affecting(FABRIC) if score >= LOUD_SCORE else frozenset()


def _causes_of_one_phase(rows: FloatArray) -> frozenset[str]:
    """Causes that lengthen one phase only, if nearly all of the ranks' excess is in that phase."""
    own = nan_median(rows[:, [_OWN_EXCESS]])[0]
    if not own >= MIN_EXCESS:
        return frozenset()
    for phase, column in _PHASES.items():
        if nan_median(rows[:, [column]])[0] >= NEARLY_ALL * own:
            return frozenset(cause for cause, spec in CAUSES.items() if spec.phases == (phase,))
    return frozenset()


def _usual_score(ranks: list[int], features: FeatureSet, busy: BusyEvidence) -> FloatArray:
    """Each resource's median score over the ranks: against peers, and against the past where there is one.

    Without a past, a resource that is loud on the node's other ranks as well is ignored: they are not slow.
    """
    peers, past = nan_median(busy.versus_peers[ranks]), nan_median(busy.versus_past[ranks])
    if not features.comparison.segment.whole:
        return np.where(np.isfinite(past), np.fmin(peers, 2.0 * past), peers)
    node = features.topology.node
    mates = np.flatnonzero(np.isin(node, node[ranks]) & (node >= 0))
    mates = np.setdiff1d(mates, ranks)
    if not mates.size:
        return peers
    shared = nan_median(busy.versus_peers[mates]) >= LOUD_SCORE
    return np.where(shared, np.nan, peers)


def _shared(beliefs: dict[str, float], shown: frozenset[str]) -> dict[str, float]:
    """Probabilities with a share of `CORROBORATED` on the shown causes, in their own proportions."""
    # Causes that all had probability 0 become equally likely.
    inside = sum(beliefs[cause] + NOT_AT_ALL for cause in shown)
    total = sum(beliefs.values())
    outside = total - sum(beliefs[cause] for cause in shown)
    return ordered(
        {
            cause: total * CORROBORATED * (chance + NOT_AT_ALL) / inside
            if cause in shown
            else total * (1.0 - CORROBORATED) * chance / max(outside, NOT_AT_ALL)
            for cause, chance in beliefs.items()
        }
    )
