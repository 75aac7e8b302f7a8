"""Who stays a suspect: the late, whose links explain the slowness, and who is likely without a symptom.

Collectives spread every slowness to all ranks, and among thousands of innocent ranks some signal always
looks odd. A component stays a suspect if its own work is late; or, where the collectives themselves became
slow, if its links show evidence. The others stay only if they are likely: the model has seen more than these
two, and a second fault costs nothing while the first one lasts.
"""

from __future__ import annotations

import numpy as np

from rca.arrays import FloatArray
from rca.classify.components import Component
from rca.classify.phase_lateness import largest, lateness, own_work_is_timed
from rca.features import WINDOW_FEATURES, FeatureSet
from rca.features.resource_evidence import resource_names

#: Own work above peers (or a stage above the others) from here on is a symptom, relative to the step.
OWN_SYMPTOM = 0.02
#: Transfer grown by this much of the step makes slow links a possible explanation.
SLOW_TRANSFER = 0.02
#: A link's score against peers from here on is evidence, in units.
OWN_EVIDENCE = 1.0
#: Suspicion like this is believed without a symptom: beside somebody who is late it may be a second fault,
#: and where nobody has a symptom somebody has to be slow in a slow job.
PROBABLE = 0.7
#: The same beside a sick link, which makes those it talks to look suspicious, and where neither timers nor
#: machines tell who is slow.
CERTAIN_WITHOUT_SYMPTOM = 0.95
#: More separate components than this are no longer an answer for a person.
MAX_COMPONENTS = 16
#: Resources that slow a rank when they are bad, and what shows it where no timer does: only who works has
#: busy multiprocessors, all others wait. The others tell nothing.
_TELLING = (
    "gpu_clock", "gpu_memory", "pcie", "nvlink", "nic", "tcp", "cpu_wait", "cpu_quota", "memory", "storage",
    "collector", "stopped", "gpu_activity",
)  # fmt: skip
#: A machine's score against peers from here on is evidence by itself, in units.
MACHINE_EVIDENCE = 2.0
#: Resources that can slow a collective for everybody.
_LINKS = ("nic", "tcp", "nvlink", "pcie", "cpu_wait", "cpu_quota")


def keep_explaining_suspects(components: list[Component], features: FeatureSet) -> list[Component]:
    """Keep the components that explain the slowness.

    Parameters
    ----------
    components : list of Component
        Not empty, the most probable first.
    features : FeatureSet
    """
    symptoms = [lateness(component, features) for component in components]
    links = [_link_evidence(component, features) for component in components]
    late = [symptom >= OWN_SYMPTOM for symptom in symptoms]
    needed = max(OWN_EVIDENCE, 0.5 * max(links))
    sick_links = [link >= needed for link in links]
    if any(late) or any(sick_links):
        links_matter = not any(late) or _transfer_is_slow(features)
        enough = [CERTAIN_WITHOUT_SYMPTOM] * len(components)
        if any(late):
            enough = [_enough(component, features, beside_link=any(sick_links)) for component in components]
        keep = [
            own or (link and links_matter) or component.probability >= least
            for own, link, component, least in zip(late, sick_links, components, enough, strict=True)
        ]
    else:
        # Nobody has anything but the model's suspicion. Where it is weak, slow collectives without a sick
        # link are a matter of the job; anything else would be a guess, and a wrong blame costs more.
        shown = shown_by_machines(components, features)
        if shown:
            return shown[:MAX_COMPONENTS]
        if probable := [component for component in components if component.probability >= PROBABLE]:
            return probable[:MAX_COMPONENTS]
        everybody = Component("job", tuple(range(features.rank.shape[0])), components[0].probability)
        return [everybody] if transfer_grew(features) else []
    kept = [component for component, wanted in zip(components, keep, strict=True) if wanted]
    return kept[:MAX_COMPONENTS]


def _enough(component: Component, features: FeatureSet, *, beside_link: bool) -> float:
    """Suspicion that is enough for a second fault beside a late rank.

    Less, if the component's machines show something, or if timers tell its work and no link is sick.
    """
    told = own_work_is_timed(component.ranks, features) and not beside_link
    shown = told or _machine_evidence(component, features) >= MACHINE_EVIDENCE
    return PROBABLE if shown else CERTAIN_WITHOUT_SYMPTOM


def shown_by_machines(components: list[Component], features: FeatureSet) -> list[Component]:
    """Those whose machines show what the clocks cannot: no timer tells their work from waiting for others.

    A late rank has no symptom of its own then: a resource that is far from its peers' is all there can be.

    Returns
    -------
    list of Component
        Empty where timers do tell.
    """
    scores = [
        0.0 if own_work_is_timed(component.ranks, features) else _machine_evidence(component, features)
        for component in components
    ]
    needed = max(MACHINE_EVIDENCE, 0.5 * max(scores, default=0.0))
    return [component for component, score in zip(components, scores, strict=True) if score >= needed]


def _machine_evidence(component: Component, features: FeatureSet) -> float:
    """Largest score of a telling resource against peers: of the least conspicuous of the ranks."""
    if component.scope == "job":
        return 0.0
    scores = _against_peers(component, _TELLING, features)
    return float(np.where(np.isfinite(scores), scores, -np.inf).max(axis=1).min())


def _link_evidence(component: Component, features: FeatureSet) -> float:
    """Largest score of the component's links against peers, in units."""
    return largest(_against_peers(component, _LINKS, features))


def _against_peers(component: Component, resources: tuple[str, ...], features: FeatureSet) -> FloatArray:
    """Scores of the component's ranks against peers, units, shape (n_ranks, n_resources)."""
    columns = [resource_names().index(name) for name in resources]
    return features.evidence.versus_peers[np.ix_(list(component.ranks), columns)]


def _transfer_is_slow(features: FeatureSet) -> bool:
    """Whether the collectives got slower; without a quiet stretch to compare with, they may have."""
    growth = features.window[WINDOW_FEATURES.index("transfer_growth")]
    return not np.isfinite(growth) or bool(growth >= SLOW_TRANSFER)


def transfer_grew(features: FeatureSet) -> bool:
    """Whether the collectives were seen to get slower."""
    return bool(features.window[WINDOW_FEATURES.index("transfer_growth")] >= SLOW_TRANSFER)
