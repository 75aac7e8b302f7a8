"""What was measured and is normal speaks against the causes that cannot be without it.

Slow compute looks the same whatever slowed it. A classifier that must choose between the catalogue's causes
chooses the usual one, even where the very clock it is about was watched and never moved.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rca.causal.mechanisms import Mechanisms
from rca.causal.scores import busy_evidence
from rca.classify.classifier import Suspect
from rca.features import FeatureSet
from rca.features.evidence import resource_names
from rca.robust import FloatArray, nan_max
from rca.telemetry.causes import DECIDING

#: Scores below this are normal, in units. Mild faults move their signals by less than is remarkable (1).
NORMAL = 0.3
#: Share of the belief that a contradicted cause keeps: exporters may lie, too.
KEPT = 0.25


def contradicted(suspect: Suspect, features: FeatureSet, mechanisms: Mechanisms) -> Suspect:
    """The suspect with less belief in causes whose own signals are normal; what they lose nobody gains.

    Parameters
    ----------
    suspect : Suspect
    features : FeatureSet
    mechanisms : Mechanisms
    """
    ranks = list(suspect.component.ranks)
    weighed = {
        cause: chance * (KEPT if is_contradicted(cause, ranks, features, mechanisms) else 1.0)
        for cause, chance in suspect.causes.items()
    }
    order = sorted(weighed.items(), key=lambda item: (-item[1], item[0]))
    return replace(suspect, causes=dict(order))


def is_contradicted(cause: str, ranks: list[int], features: FeatureSet, mechanisms: Mechanisms) -> bool:
    """Whether every resource that the cause cannot do without was measured on its ranks and is normal."""
    if cause not in DECIDING:
        return False
    columns = [resource_names().index(name) for name in DECIDING[cause]]
    worst = nan_max(_scores(ranks, features, mechanisms)[:, columns])
    return bool(np.isfinite(worst).all() and (worst < NORMAL).all())


def _scores(ranks: list[int], features: FeatureSet, mechanisms: Mechanisms) -> FloatArray:
    """Largest score of every resource against peers, past or a sound machine, (len(ranks), n_resources).

    Where most ranks are suspected they are each other's peers: looking alike proves nothing then.
    """
    beside, since = busy_evidence(features, ranks, mechanisms)
    others = np.fmax(since, features.evidence.versus_sound[ranks])
    if 2 * len(ranks) <= features.topology.n_ranks:
        return np.fmax(beside, others)
    return np.where(np.isfinite(others), np.fmax(beside, others), np.nan)
