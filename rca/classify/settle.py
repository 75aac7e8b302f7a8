"""One slow collective needs one culprit: suspects that only share the symptom are let go.

When a link is slow every rank's transfer is long, so lateness singles nobody out and small differences
between innocent ranks can lift one over the threshold. Whoever has evidence of its own explains the others.
"""

from __future__ import annotations

import numpy as np

from rca.classify.components import Component
from rca.features import RANK_FEATURES, FeatureSet
from rca.features.evidence import resource_names

#: Own work above peers from here on (relative to the step) is a symptom of the component itself.
OWN_SYMPTOM = 0.02
#: A resource score against peers from here on is evidence of its own, in units.
OWN_EVIDENCE = 1.0
#: Resources that can slow a collective for everybody.
_LINKS = ("nic", "tcp", "nvlink", "pcie", "cpu_wait", "cpu_quota")


def settle(components: list[Component], features: FeatureSet) -> list[Component]:
    """Drop components without any symptom or evidence of their own if another one has some."""
    strength = [_strength(component, features) for component in components]
    if max(strength, default=0) == 0:
        return components[:1]
    return [component for component, own in zip(components, strength, strict=True) if own]


def _strength(component: Component, features: FeatureSet) -> int:
    rows = list(component.ranks)
    excess = features.rank[rows, RANK_FEATURES.index("own_excess")]
    gain = features.rank[rows, RANK_FEATURES.index("gain_stage")]
    columns = [resource_names().index(name) for name in _LINKS]
    scores = features.evidence.versus_peers[np.ix_(rows, columns)]
    symptom = (
        np.nanmax(np.append(excess, 0.0)) >= OWN_SYMPTOM or np.nanmax(np.append(gain, 0.0)) >= OWN_SYMPTOM
    )
    evidence = np.nanmax(np.append(scores.ravel(), 0.0)) >= OWN_EVIDENCE
    return int(symptom) + int(evidence)
