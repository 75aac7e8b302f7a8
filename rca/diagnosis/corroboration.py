"""One loud signal, or one long phase, decides where the classifier is not certain of a cause.

Its models learned the signals of simulated faults. Real faults may show other signals: steal and nothing
else, a clock that falls without heat. Then no cause, or "unknown", is likely, although one resource of the
suspects is far from their peers and their past and all others are normal. Or no signal is loud, and nearly
all of the lateness is in a phase that few causes lengthen.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rca.arrays import FloatArray
from rca.causal.scores import BusyEvidence
from rca.classify.classifier import Suspect, ordered, types_of
from rca.diagnosis.contradiction import contradicted
from rca.features import RANK_FEATURES, FeatureSet
from rca.features.resource_evidence import resource_names
from rca.robust import nan_median
from rca.telemetry.causes import CAUSES, UNKNOWN

#: Scores from here on are loud, in units (1 is remarkable).
LOUD_SCORE = 2.0
#: Probability of the first cause below which the classifier is uncertain; `unknown` is always uncertain.
UNSURE = 0.9
#: The loudest resource decides if its score is so many times those of other causes' resources.
LOUDEST = 2.0
#: Probability that the causes of the loud resource or phase share.
CORROBORATED = 0.75
NOT_AT_ALL = 1e-3
FABRIC = "fabric"
#: A phase decides if it has this share of the ranks' excess, and the excess is this share of a step.
NEARLY_ALL, MIN_EXCESS = 0.75, 0.02
_OWN_EXCESS = RANK_FEATURES.index("own_time_excess")
#: Phases that are the only phase of some causes -> column of their excess.
_PHASES = {phase: RANK_FEATURES.index(f"{phase}_excess") for phase in ("data_loading", "checkpoint")}
#: Resources that change with many faults, or without one, and so decide nothing on their own.
UNSPECIFIC = frozenset({"gpu_heat", "gpu_activity", "stopped", "tcp", FABRIC})


def with_machine_evidence(suspect: Suspect, features: FeatureSet, busy: BusyEvidence) -> Suspect:
    """The suspect with more belief in causes whose signals are loud, and less in those whose are normal.

    Parameters
    ----------
    suspect : Suspect
    features : FeatureSet
    busy : BusyEvidence
    """
    return contradicted(corroborated(suspect, features, busy), features, busy)


def corroborated(suspect: Suspect, features: FeatureSet, busy: BusyEvidence) -> Suspect:
    """The suspect with more belief in the causes of the one loud resource or phase, if no cause is certain.

    Parameters
    ----------
    suspect : Suspect
    features : FeatureSet
    busy : BusyEvidence
    """
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
