"""What was measured and is normal speaks against the causes that cannot be without it.

Slow compute looks the same whatever slowed it. A classifier that must choose between the catalogue's causes
chooses the usual one, even where the very clock it is about was watched and never moved.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rca.arrays import BoolArray, FloatArray
from rca.causal.scores import BusyEvidence
from rca.classify.classifier import Suspect, ordered
from rca.features import RANK_FEATURES, FeatureSet
from rca.features.resource_evidence import resource_names
from rca.robust import nan_max
from rca.telemetry.causes import DECIDING

#: Scores below this are normal, in units. Mild faults move their signals by less than is remarkable (1).
MAX_NORMAL_SCORE = 0.3
#: Share of the belief that a contradicted cause keeps: exporters may lie, too.
CONTRADICTED_FACTOR = 0.25
#: Others are sounder than a suspect if this share of them shows at most this part of what he does.
SOUNDEST, ALIKE = 0.2, 0.5
#: A device that is busier than this, for the time its rank computes, works for somebody else as well.
OTHERS_WORK = 1.0
_ACTIVITY = RANK_FEATURES.index("activity_per_compute")


def contradicted(suspect: Suspect, features: FeatureSet, busy: BusyEvidence) -> Suspect:
    """The suspect with less belief in causes whose own signals are normal; what they lose nobody gains.

    Parameters
    ----------
    suspect : Suspect
    features : FeatureSet
    busy : BusyEvidence
    """
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
    """Whether devices are no busier than their own work makes them (activity per compute); no if unknown."""
    return bool(np.isfinite(activity).any() and np.nanmedian(activity) < OTHERS_WORK)


def is_contradicted(cause: str, unlike: FloatArray) -> bool:
    """Whether every resource that the cause cannot do without was measured on its ranks and is normal.

    Parameters
    ----------
    cause : str
    unlike : ndarray of shape (n_resources,), units
        From `most_unlike`.
    """
    if cause not in DECIDING:
        return False
    worst = unlike[[resource_names().index(name) for name in DECIDING[cause]]]
    return bool(np.isfinite(worst).all() and (worst < MAX_NORMAL_SCORE).all())


def most_unlike(ranks: list[int], features: FeatureSet, busy: BusyEvidence) -> FloatArray:
    """Largest score of every resource over ranks, against peers, past or a sound machine, (n_resources,).

    What the peers show as well sets nobody apart: a sound machine counts where some of them are sounder, or
    there are none to compare with. Where most ranks are suspected they are each other's peers, and looking
    alike proves nothing.
    """
    beside, since = busy.versus_peers[ranks], busy.versus_past[ranks]
    sound = features.evidence.versus_nominal[ranks]
    if 2 * len(ranks) <= features.topology.n_ranks:
        alike = np.isfinite(beside) & ~_others_are_closer_to_nominal(sound, ranks, features)
        return nan_max(np.fmax(np.fmax(beside, since), np.where(alike, np.nan, sound)))
    others = np.fmax(since, sound)
    return nan_max(np.where(np.isfinite(others), np.fmax(beside, others), np.nan))


def _others_are_closer_to_nominal(sound: FloatArray, ranks: list[int], features: FeatureSet) -> BoolArray:
    """Whether enough others are sounder than the suspects' worst, (n_resources,); yes if none is known.

    The others are those of other nodes, where there are any: what a node shows, all its ranks show.
    """
    node = features.topology.node
    elsewhere = np.flatnonzero(~np.isin(node, node[ranks]))
    others = elsewhere if elsewhere.size else np.setdiff1d(np.arange(node.size), ranks)
    shown = features.evidence.versus_nominal[others]
    sounder = (shown <= ALIKE * nan_max(sound)).sum(axis=0)
    return np.asarray(sounder >= SOUNDEST * np.isfinite(shown).sum(axis=0))
