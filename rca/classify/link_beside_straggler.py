"""A link fault next to a straggler: stragglers explain waiting, but not longer transfers of all ranks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rca.arrays import FloatArray
from rca.classify.components import Component
from rca.classify.link_evidence import LINK_CAUSES, ComponentCause, Ports, isolated_link_fault
from rca.classify.suspects import transfer_grew
from rca.features import FeatureSet
from rca.features.resource_evidence import resource_names
from rca.features.slow_segment import MIN_SEGMENT_Z, high_segment
from rca.robust import nan_mean, nan_median
from rca.telemetry.causes import CAUSES

#: Least growth of the collectives: this share of the steps' growth, and this share of a step.
OWN_MATTER, MIN_GROWTH = 0.2, 0.05
#: From this score on, in units, a port is a suspect next to stragglers of other nodes. Healthy ports reach it
#: at times, so the port has to be worse than before, or transfers longer for a while by this share of a step.
FAULTY_PORT, LONGER_TRANSFER = 4.0, 0.1
#: Slow transfers of which less than this share lies in the job's slow segment are separate from it.
APART = 0.5
#: Causes of single ranks that also delay their transfers: a host that reclaims memory is late to copy into
#: and out of its sockets. Transfer is not among their phases in the catalogue, so they have no price for it.
_ALSO_LENGTHENS_TRANSFER = frozenset({"memory_pressure"})


def residual_collectives(suspects: Sequence[ComponentCause], features: FeatureSet) -> bool:
    """Whether the collectives became slower by more than the suspects' causes explain.

    Parameters
    ----------
    suspects : sequence of ComponentCause
    features : FeatureSet
    """
    if not suspects or not transfer_grew(features):
        return False
    work, segment = features.work, features.comparison.segment
    if segment.whole or any(_lengthens_transfer(each.cause) for each in suspects):
        return False
    inside = segment.mask(work.steps.size)

    def grown(series: FloatArray) -> float:
        return float(nan_mean(series[inside][:, None])[0] - nan_mean(series[~inside][:, None])[0])

    transfer = grown(nan_median(work.transfer))
    return transfer >= max(OWN_MATTER * grown(work.job_step), MIN_GROWTH * work.step_reference)


def faulty_port_of_other_node(suspects: Sequence[ComponentCause], features: FeatureSet) -> Component | None:
    """The node without a suspect whose port is far worse than all others; None if there is none.

    Transfers may have been slow in other steps than the stragglers' and hide the port's fault there.

    Parameters
    ----------
    suspects : sequence of ComponentCause
        With the likeliest cause of each, of the catalogue or not.
    features : FeatureSet
    """
    ports = Ports.from_features(features)
    if ports.queues.max(initial=0.0) < FAULTY_PORT or not suspects:
        return None
    if any(each.cause in LINK_CAUSES for each in suspects):
        return None
    port = isolated_link_fault(ports, features.topology)
    if port is None:
        return None
    ranks = list(port.component.ranks)
    if any(not set(ranks).isdisjoint(each.component.ranks) for each in suspects):
        return None
    became = features.evidence.versus_past[ranks, resource_names().index("nic")]
    slowed = np.nan_to_num(became).max() >= FAULTY_PORT or _slow_for_a_while(features, suspects)
    return port.component if slowed else None


def _slow_for_a_while(features: FeatureSet, suspects: Sequence[ComponentCause]) -> bool:
    """Whether transfers took longer over a segment that the suspects do not explain.

    Suspects whose cause lengthens transfers explain those in the job's slow segment. That is the whole
    window where no segment was found.
    """
    series, unit = nan_median(features.work.transfer), features.work.step_reference
    if not np.isfinite(unit):
        return False
    slow = high_segment(series, min_z=MIN_SEGMENT_Z, min_contrast=LONGER_TRANSFER * unit)
    if slow.whole or not any(_lengthens_transfer(each.cause) for each in suspects):
        return not slow.whole
    of_the_job = features.comparison.segment.mask(series.size)
    return bool(of_the_job[slow.mask(series.size)].mean() < APART)


def _lengthens_transfer(cause: str) -> bool:
    """Whether the cause slows collectives, or its effect on them is unknown."""
    return cause not in CAUSES or "transfer" in CAUSES[cause].phases or cause in _ALSO_LENGTHENS_TRANSFER


def between_machines(causes: dict[str, float]) -> dict[str, float]:
    """Probabilities of the causes given a link fault; empty if no link cause has any."""
    links = {name: chance for name, chance in causes.items() if name in LINK_CAUSES and chance > 0}
    total = sum(links.values())
    return {name: chance / total for name, chance in links.items()} if total > 0 else {}
