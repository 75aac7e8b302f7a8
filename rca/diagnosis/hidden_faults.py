"""Hidden faults: classify the job again with the lateness of the first suspects removed.

`rca.diagnosis.segment_rediagnosis` finds faults that act in other steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from rca.causal.scores import BusyEvidence
from rca.classify.classifier import Classification, Suspect, as_component_cause, named_ranks
from rca.classify.components import merge_suspects
from rca.classify.counterfactual import Counterfactual, is_residual_suspect
from rca.diagnosis.bundle import Bundle
from rca.diagnosis.machine_evidence import with_machine_evidence
from rca.diagnosis.step_time_fallback import timers_can_price
from rca.features import FeatureSet
from rca.window.job import Topology
from rca.window.window import Window

#: Least share of the shorter slow segment in which both jobs are slow.
MIN_SHARED_STEPS = 0.5


def with_hidden_faults(
    found: Classification,
    window: Window,
    features: FeatureSet,
    bundle: Bundle,
    priors: Mapping[str, float] | None,
) -> Classification:
    """Add the certain suspects of the same job without the lateness of its first suspects.

    The counterfactual job is classified without the fault history of nodes: it could make suspects certain.

    Parameters
    ----------
    found : Classification
        Of a slow job, its suspects reweighted by machine evidence.
    features : FeatureSet
        Of the window.
    priors : mapping of cause to float, optional
        As in `Classifier.classify`.
    """
    if not _has_known_lateness(found, features):
        return found
    removed = Counterfactual.of(features, named_ranks(found.suspects))
    if not removed.is_still_slow():
        return found
    counterfactual = removed.features_without_lateness(window)
    again = bundle.classifier.classify(counterfactual, priors)
    if again.mode != "fail_slow" or not _at_the_same_time(features, counterfactual):
        return found
    busy = BusyEvidence.from_features(counterfactual, bundle.mechanisms)
    candidates = [with_machine_evidence(suspect, counterfactual, busy) for suspect in again.suspects]
    first = [as_component_cause(each) for each in found.suspects]
    new = [
        each
        for each in candidates
        if is_residual_suspect(
            as_component_cause(each), next(iter(each.causes.values())), first, features, counterfactual
        )
    ]
    return (
        replace(found, suspects=add_hidden_suspects(found.suspects, new, features.topology)) if new else found
    )


def _has_known_lateness(found: Classification, features: FeatureSet) -> bool:
    """Whether timers show how late the suspects are, and there are other ranks to compare with."""
    if not found.suspects or features.comparison.slowed is not None:
        return False
    some = len(named_ranks(found.suspects)) < features.topology.n_ranks
    return some and timers_can_price(found.suspects, features)


def _at_the_same_time(features: FeatureSet, counterfactual: FeatureSet) -> bool:
    """Whether both jobs are mostly slow in the same steps, by the shorter of the two segments.

    Faults in other steps are left to `rca.diagnosis.segment_rediagnosis`, which prices them in their steps.
    """
    n_steps = features.work.steps.size
    slow, left = (each.comparison.segment.mask(n_steps) for each in (features, counterfactual))
    return int((slow & left).sum()) >= MIN_SHARED_STEPS * min(int(slow.sum()), int(left.sum()))


def add_hidden_suspects(
    first: Sequence[Suspect], new: Sequence[Suspect], topology: Topology
) -> list[Suspect]:
    """First and new suspects, the job as a whole last; one cause in one place is one suspect.

    A merged suspect keeps the probabilities of the one that was found first.
    """
    suspects = list(first)
    for each in new:
        for place, other in enumerate(suspects):
            both = merge_suspects([as_component_cause(other), as_component_cause(each)], topology)
            if len(both) == 1:
                suspects[place] = replace(other, component=both[0])
                break
        else:
            suspects.append(each)
    return suspects
