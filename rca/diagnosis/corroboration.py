"""One loud signal, or one long phase, decides where the classifier does not.

Its models learned how faults of simulated machines show. A real one may show another mix: steal and nothing
else, a clock that falls without heat. They then believe in no cause, or in "unknown", while one resource of
the suspects is far from their peers' and from their own past, and all others are as usual. Or nothing is
loud, and nearly all of the lateness is in a phase that few causes lengthen.
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
#: Belief in the first cause below which the classifier is not sure; that nothing explains it is never sure.
UNSURE = 0.9
#: A resource that is so many times as loud as those of other causes is the loud one.
LOUDEST = 2.0
#: Belief that the loud resource's causes share then.
CORROBORATED = 0.75
NOT_AT_ALL = 1e-3
FABRIC = "fabric"
#: Share of what ranks take longer that makes one phase decide, and how much longer that has to be, in steps.
NEARLY_ALL, FELT = 0.75, 0.02
_OWN_EXCESS = RANK_FEATURES.index("own_time_excess")
#: Phases that some causes lengthen and nothing else, and where their excess stands.
_PHASES = {phase: RANK_FEATURES.index(f"{phase}_excess") for phase in ("data_loading", "checkpoint")}
#: Resources that move with other faults, or with none, and so tell little on their own.
UNTELLING = frozenset({"gpu_heat", "gpu_activity", "stopped", "tcp", FABRIC})


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
    """The suspect with more belief in the causes of the one resource or phase that is loud, if none is sure.

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
    # Most ranks have each other for peers, and in a slow job all wait more than before: nothing of a machine
    # is loud then. Switches that mark more packets than before, although fewer are sent, still are.
    if 2 * len(ranks) > features.topology.n_ranks:
        told = _causes_of_loud_fabric(busy.versus_past[ranks])
    else:
        told = causes_of_loudest_resource(_usual_score(ranks, features, busy))
    # Of links the classifier has ruled out what happens on machines.
    told = told & beliefs.keys() or _causes_of_one_phase(features.rank[ranks]) & beliefs.keys()
    if not told or sum(beliefs[cause] for cause in told) >= CORROBORATED:
        return suspect
    causes = _shared(beliefs, told)
    return replace(suspect, causes=causes, types=types_of(causes))


def causes_of_loudest_resource(scores: FloatArray) -> frozenset[str]:
    """Causes of the loud resources, if all of these have the same causes or one drowns the others; else none.

    Parameters
    ----------
    scores : ndarray of shape (n_resources,), units
    """
    families: dict[frozenset[str], float] = {}
    for name, score in zip(resource_names(), scores, strict=True):
        if score >= LOUD_SCORE and name not in UNTELLING:
            families[_moving(name)] = max(families.get(_moving(name), 0.0), float(score))
    if not families:
        return frozenset()
    loudest, *others = sorted(families, key=families.__getitem__, reverse=True)
    drowned = all(families[loudest] >= LOUDEST * families[other] for other in others)
    return loudest if drowned else frozenset()


def _moving(resource: str) -> frozenset[str]:
    return frozenset(cause for cause, spec in CAUSES.items() if resource in spec.resources)


def _causes_of_loud_fabric(since: FloatArray) -> frozenset[str]:
    """The fabric's causes, if it is loud beside the past on most ranks that tell; (n_ranks, n_resources)."""
    score = nan_median(since)[resource_names().index(FABRIC)]
    return _moving(FABRIC) if score >= LOUD_SCORE else frozenset()


def _causes_of_one_phase(rows: FloatArray) -> frozenset[str]:
    """Causes that lengthen one phase alone, if nearly all that the ranks take longer is in that phase."""
    own = nan_median(rows[:, [_OWN_EXCESS]])[0]
    if not own >= FELT:
        return frozenset()
    for phase, column in _PHASES.items():
        if nan_median(rows[:, [column]])[0] >= NEARLY_ALL * own:
            return frozenset(cause for cause, spec in CAUSES.items() if spec.phases == (phase,))
    return frozenset()


def _usual_score(ranks: list[int], features: FeatureSet, busy: BusyEvidence) -> FloatArray:
    """Each resource's median score over the ranks: against peers, and against the past where there is one.

    Without a past, what the node's other ranks show as well is how the node always was: they are not slow.
    """
    beside, since = nan_median(busy.versus_peers[ranks]), nan_median(busy.versus_past[ranks])
    if not features.comparison.segment.whole:
        return np.where(np.isfinite(since), np.fmin(beside, 2.0 * since), beside)
    node = features.topology.node
    mates = np.flatnonzero(np.isin(node, node[ranks]) & (node >= 0))
    mates = np.setdiff1d(mates, ranks)
    if not mates.size:
        return beside
    shared = nan_median(busy.versus_peers[mates]) >= LOUD_SCORE
    return np.where(shared, np.nan, beside)


def _shared(beliefs: dict[str, float], told: frozenset[str]) -> dict[str, float]:
    """Beliefs with `CORROBORATED` of them on what is told, by the causes' own shares."""
    # Of what was not believed in at all, one is as likely as the other.
    inside = sum(beliefs[cause] + NOT_AT_ALL for cause in told)
    total = sum(beliefs.values())
    outside = total - sum(beliefs[cause] for cause in told)
    return ordered(
        {
            cause: total * CORROBORATED * (chance + NOT_AT_ALL) / inside
            if cause in told
            else total * (1.0 - CORROBORATED) * chance / max(outside, NOT_AT_ALL)
            for cause, chance in beliefs.items()
        }
    )
